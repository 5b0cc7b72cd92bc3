"""ClusterTables: the pods of many nodes in sequence, with an offsets array (CSR)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.resources import PODS, scaled
from engine.tables.columns import AMOUNT, FLAGS, LIVE, NODE, OFFSET, PRIORITY, QOS, TIME, Amounts, PodColumns
from engine.tables.names import EPHEMERAL_STORAGE_ID, ResourceNames
from engine.tables.pods import PodTable, check_columns

ABSENT: Final = -1
"""In `allocatable`: the node does not name this resource, which differs from having none."""


class ClusterTables:
    """Hold the pods of a cluster: those of node i are rows `offsets[i]` to `offsets[i + 1]` of `columns`, all
    of them live.

    offsets      int64[nodes + 1], rising from 0 to the number of pods
    allocatable  int64[R, nodes], scaled as the pod columns; ABSENT (-1) where a node has no such resource
    pod_limit    int64[nodes], how many pods each node takes
    node_names   one per node; `uids` one per pod, or None where the snapshot has none

    Arrays are taken over, not copied. Treat the tables as read-only; scenarios copy the columns they change.
    """

    def __init__(
        self,
        *,
        resources: ResourceNames,
        offsets: NDArray[np.int64],
        columns: PodColumns,
        allocatable: Amounts,
        pod_limit: NDArray[np.int64],
        node_names: Sequence[str],
        uids: Sequence[str] | None = None,
    ) -> None:
        """Raise `InvalidInput` naming the array whose shape, dtype or content is wrong."""
        nodes = len(node_names)
        _check_offsets(offsets, nodes)
        _expect("allocatable", allocatable, AMOUNT, (columns.resources, nodes))
        _expect("pod_limit", pod_limit, AMOUNT, (nodes,))
        rows = int(offsets[-1])
        if uids is not None and len(uids) != rows:
            raise InvalidInput(f"{len(uids)} for {rows} pods", subject="uids")
        check_columns(columns, rows, resources)
        self.resources = resources
        self.offsets = offsets
        self.columns = columns
        self.allocatable = allocatable
        self.pod_limit = pod_limit
        self.node_names = node_names
        self.uids = uids

    @classmethod
    def from_arrays(
        cls,
        *,
        node_names: Sequence[str],
        allocatable: Amounts,
        pod_limit: NDArray[np.int64],
        offsets: NDArray[np.int64],
        requests: Amounts,
        resources: ResourceNames | None = None,
        ranking: Amounts | None = None,
        limits: Amounts | None = None,
        qos: NDArray[np.uint8] | None = None,
        priority: NDArray[np.int32] | None = None,
        flags: NDArray[np.uint8] | None = None,
        creation: NDArray[np.float64] | None = None,
        uids: Sequence[str] | None = None,
    ) -> ClusterTables:
        """Make a table of millions of pods from columns sorted by node (see `PodColumns` for each column).

        Left out: `ranking` is `requests` itself, `limits`, `priority` and `creation` are zero, `qos` is
        Burstable where anything is requested, `flags` is LIVE (no priority, not critical).
        """
        _check_offsets(offsets, len(node_names))
        pods = int(offsets[-1])
        if requests.ndim != 2 or requests.shape[1] != pods:
            raise InvalidInput(f"expected [R, {pods}], got {list(requests.shape)}", subject="requests")
        if qos is None:
            qos = (requests[:EPHEMERAL_STORAGE_ID].max(axis=0, initial=0) > 0).astype(QOS)
        columns = PodColumns(
            node=np.repeat(np.arange(len(node_names), dtype=NODE), np.diff(offsets)),
            qos=qos,
            flags=np.full(pods, LIVE, FLAGS) if flags is None else flags | np.uint8(LIVE),
            priority=np.zeros(pods, PRIORITY) if priority is None else priority,
            creation=np.zeros(pods, TIME) if creation is None else creation,
            requests=requests,
            ranking=requests if ranking is None else ranking,
            limits=np.zeros((3, pods), AMOUNT) if limits is None else limits,
        )
        return cls(
            resources=resources if resources is not None else ResourceNames(),
            offsets=offsets,
            columns=columns,
            allocatable=allocatable,
            pod_limit=pod_limit,
            node_names=node_names,
            uids=uids,
        )

    @classmethod
    def from_objects(cls, nodes: Iterable[tuple[Node, Sequence[Pod]]]) -> ClusterTables:
        """Build tables from Node and Pod objects. Raises `InvalidInput` for a bad amount or a repeated uid or
        node.
        """
        nodes = list(nodes)
        resources = ResourceNames()
        # Before any pod: the columns then have their width from the beginning, and are not copied for each
        # name.
        for node, _ in nodes:
            for name in node.allocatable:
                resources.intern(name)
        table = PodTable(resources, capacity=max(sum(len(pods) for _, pods in nodes), 1))
        offsets = np.zeros(len(nodes) + 1, OFFSET)
        for index, (_, pods) in enumerate(nodes):
            table.add_all(pods, index)
            offsets[index + 1] = table.end
        names = [node.metadata.name for node, _ in nodes]
        if len(set(names)) != len(names):
            raise InvalidInput("two nodes have the same name", subject="nodes")
        allocatable = np.full((table.columns.resources, len(nodes)), ABSENT, AMOUNT)
        # The native resources exist on every node; one that a Node does not name is none at all.
        allocatable[: EPHEMERAL_STORAGE_ID + 1] = 0
        pod_limit = np.zeros(len(nodes), AMOUNT)
        for index, (node, _) in enumerate(nodes):
            for name, quantity in node.allocatable.items():
                if name == PODS:
                    pod_limit[index] = quantity.value
                else:
                    allocatable[resources.ids[name], index] = scaled(name, quantity)
        return cls(
            resources=resources,
            offsets=offsets,
            columns=table.columns,
            allocatable=allocatable,
            pod_limit=pod_limit,
            node_names=names,
            uids=list(table),
        )

    @property
    def nodes(self) -> int:
        return len(self.node_names)

    @property
    def pods(self) -> int:
        return int(self.offsets[-1])

    def node_rows(self, node: int) -> slice:
        """Return the rows of one node's pods."""
        return slice(int(self.offsets[node]), int(self.offsets[node + 1]))


def _check_offsets(offsets: NDArray[np.int64], nodes: int) -> None:
    _expect("offsets", offsets, OFFSET, (nodes + 1,))
    if offsets[0] != 0 or np.any(np.diff(offsets) < 0):
        raise InvalidInput("expected to rise from 0", subject="offsets")


def _expect(name: str, array: NDArray[np.generic], dtype: str, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        wanted = f"{dtype}{list(shape)}"
        raise InvalidInput(f"expected {wanted}, got {array.dtype}{list(array.shape)}", subject=name)
