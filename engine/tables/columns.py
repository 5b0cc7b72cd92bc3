"""Dtypes and meanings of the pod columns: the one place where they are named.

Every column has one entry per row. Amounts are integers as the kubelet computes with them: cpu in
milli-CPU, everything else in base units (bytes, pieces), rounded up once per pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

AMOUNT: Final = "int64"
NODE: Final = "int32"
PRIORITY: Final = "int32"
QOS: Final = "uint8"
FLAGS: Final = "uint8"
TIME: Final = "float64"
ROW: Final = "int32"
OFFSET: Final = "int64"

Amounts: TypeAlias = "NDArray[np.int64]"
Rows: TypeAlias = "NDArray[np.int32]"

NAMES: Final = ("node", "qos", "flags", "priority", "creation", "requests", "ranking", "limits")
"""Of a table's columns."""

BEST_EFFORT: Final = 0
BURSTABLE: Final = 1
GUARANTEED: Final = 2
QOS_NAMES: Final = ("BestEffort", "Burstable", "Guaranteed")
QOS_CODES: Final = {name: code for code, name in enumerate(QOS_NAMES)}

LIVE: Final = 1
CRITICAL: Final = 2
HAS_PRIORITY: Final = 4
STATIC: Final = 8
MIRROR: Final = 16
PROTECTED: Final = 32
CPU_LIMITED: Final = 64
MEMORY_LIMITED: Final = 128

LIMITED_RESOURCES: Final = 3
"""Limits are kept for the first so many resource ids: cpu, memory, ephemeral-storage."""

DO_NOT_PREEMPT_ANNOTATION: Final = "kubengine.dev/do-not-preempt"
"""Set to `true`, it keeps a pod from the policies `priority` and `minimal`; the kubelet ignores it."""

Fractions = dict[int, tuple[int, int]]


class PodColumns(msgspec.Struct):
    """Hold columns of N rows (`capacity`) and R resource ids: 18 + 24 + 16 R bytes a row.

    node      int32[N]     the node's index; 0 in a table of one node
    qos       uint8[N]     BEST_EFFORT, BURSTABLE or GUARANTEED; status wins over the spec
    flags     uint8[N]     LIVE (0 is a free row), CRITICAL, HAS_PRIORITY, STATIC, MIRROR, PROTECTED
                           (annotated "do not preempt"), CPU_LIMITED and MEMORY_LIMITED (every
                           container has that limit)
    priority  int32[N]     0 where HAS_PRIORITY is not set
    creation  float64[N]   Unix seconds, 0 if unknown
    requests  int64[R, N]  as admission sees them: sidecars in full, overhead always
    ranking   int64[R, N]  as preemption and eviction see them: a sidecar is an init container,
                           overhead only on a non-zero total. May be the same array as `requests`
    limits    int64[3, N]  of cpu, memory, ephemeral-storage, overhead included; 0 is none
    fractions {row: (memory, ephemeral-storage)}: by how many billionths of a byte `ranking` was
              rounded up. Only rows with fractional bytes are in it: in practice none.

    The first index of `requests` and `ranking` is a resource id of the table's `ResourceNames`.
    """

    node: NDArray[np.int32]
    qos: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    priority: NDArray[np.int32]
    creation: NDArray[np.float64]
    requests: Amounts
    ranking: Amounts
    limits: Amounts
    fractions: Fractions = msgspec.field(default_factory=dict)

    @classmethod
    def zeros(cls, capacity: int, resources: int) -> PodColumns:
        return cls(
            node=np.zeros(capacity, NODE),
            qos=np.zeros(capacity, QOS),
            flags=np.zeros(capacity, FLAGS),
            priority=np.zeros(capacity, PRIORITY),
            creation=np.zeros(capacity, TIME),
            requests=np.zeros((resources, capacity), AMOUNT),
            ranking=np.zeros((resources, capacity), AMOUNT),
            limits=np.zeros((LIMITED_RESOURCES, capacity), AMOUNT),
        )

    @property
    def capacity(self) -> int:
        return len(self.flags)

    @property
    def resources(self) -> int:
        """Return how many resource ids have a column."""
        return len(self.ranking)

    def arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Return names and arrays; `ranking` is left out where it shares memory with `requests`."""
        for name in NAMES:
            if name != "ranking" or self.ranking is not self.requests:
                yield name, getattr(self, name)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(array.nbytes for _, array in self.arrays())
