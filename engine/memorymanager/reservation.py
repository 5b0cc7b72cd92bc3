"""Parses `reservedMemory`, the system's memory on each NUMA node, and checks its sum.

Source: kubelet v1.36 `memorymanager/memory_manager.go`, including the error messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.api.config import MemoryReservation
from engine.api.errors import InvalidInput
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import MEMORY, is_hugepage

SUBJECT = "reservedMemory"


def reserved_memory(
    nodes: Sequence[int], reserved: Mapping[str, Quantity], reservations: Sequence[MemoryReservation]
) -> dict[int, dict[str, int]]:
    """Return the reserved bytes by NUMA node and type.

    `reserved` is the memory that node allocatable excludes: kubeReserved, systemReserved and hard eviction
    thresholds. The reservations of all nodes must add up to it. Raises `InvalidInput`.
    """
    by_node: dict[int, dict[str, int]] = {node: {} for node in nodes}
    totals: dict[str, Quantity] = {}
    for reservation in reservations:
        if reservation.numa_node not in by_node:
            raise InvalidInput(
                "the reserved memory configuration references a NUMA node "
                f"{reservation.numa_node} that does not exist on this machine",
                subject=SUBJECT,
            )
        for kind, amount in (reservation.limits or {}).items():
            totals[kind] = totals.get(kind, ZERO) + amount
            by_node[reservation.numa_node][kind] = amount.value
    for kind in sorted(totals.keys() | {k for k in reserved if k == MEMORY or is_hugepage(k)}):
        total, wanted = totals.get(kind, ZERO), reserved.get(kind, ZERO)
        if total != wanted:
            raise InvalidInput(
                f'the total amount "{total}" of type "{kind}" is not equal to the value "{wanted}" '
                "determined by Node Allocatable feature",
                subject=SUBJECT,
            )
    if sum(one.get(MEMORY, 0) for one in by_node.values()) <= 0:
        raise InvalidInput("[memorymanager] you should specify the system reserved memory", subject=SUBJECT)
    return by_node
