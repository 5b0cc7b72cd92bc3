"""State the rule of reading a ListAndWatch message: through the protobuf library, into columns by device
index.

Device ids are interned: an index maps each known id to a dense number. Reading a message returns its values
for the known ids, followed by the new ids in order of appearance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from engine.wire.deviceplugin_v1beta1_pb2 import TopologyInfo

ABSENT = 0
UNHEALTHY = 1
HEALTHY = 2
NO_TOPOLOGY = 0

NodeIds = tuple[int, ...]


class DeviceList(NamedTuple):
    """Hold one message. Columns have a row per known id, then one per id of `new_ids`.

    `state`: `ABSENT`, `UNHEALTHY` or `HEALTHY` (exactly the text "Healthy"), uint8. `topology`: the index's
    number for the device's NUMA nodes (0: it names no topology), int32. The last of several devices with one
    id counts; `duplicates` is the number of superseded ones, `nameless` the number with an empty id, which
    are left out, `odd` the number whose health is neither word.
    """

    state: NDArray[np.uint8]
    topology: NDArray[np.int32]
    new_ids: tuple[str, ...]
    duplicates: int
    nameless: int
    odd: int


class DeviceIndex:
    """Intern the ids of one resource, and the topologies that their messages have named."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._index = {id: i for i, id in enumerate(ids)}
        self._numbers: dict[NodeIds, int] = {}
        self._nodes: list[NodeIds | None] = [None]

    def nodes(self, topology: int) -> NodeIds | None:
        """Return the NUMA node ids of a topology number, sorted; None for no topology."""
        return self._nodes[topology]

    def intern(self, nodes: NodeIds | None) -> int:
        """Return the number of a set of NUMA nodes."""
        if nodes is None:
            return NO_TOPOLOGY
        number = self._numbers.setdefault(nodes, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(nodes)
        return number

    def read(self, message: bytes) -> DeviceList:
        """Read a serialized ListAndWatchResponse. Raise `ValueError` if it is invalid."""
        from engine.wire.deviceplugin_v1beta1_pb2 import ListAndWatchResponse

        try:
            devices = ListAndWatchResponse.FromString(message).devices
        except Exception as error:
            raise ValueError(f"not a ListAndWatchResponse: {error}") from None
        rows = dict(self._index)
        said: dict[int, tuple[int, int]] = {}
        duplicates = nameless = odd = 0
        for device in devices:
            if not device.ID:
                nameless += 1
                continue
            row = rows.setdefault(device.ID, len(rows))
            duplicates += row in said
            odd += device.health not in ("Healthy", "Unhealthy")
            topology = node_ids(device.topology) if device.HasField("topology") else None
            said[row] = (HEALTHY if device.health == "Healthy" else UNHEALTHY, self.intern(topology))
        columns = [said.get(row, (ABSENT, NO_TOPOLOGY)) for row in range(len(rows))]
        return DeviceList(
            np.array([state for state, _ in columns], np.uint8),
            np.array([topology for _, topology in columns], np.int32),
            tuple(rows)[len(self._index) :],
            duplicates,
            nameless,
            odd,
        )


def read_topology(message: bytes) -> NodeIds:
    """Return the node ids of a serialized TopologyInfo. Raise as the protobuf library does."""
    from engine.wire.deviceplugin_v1beta1_pb2 import TopologyInfo

    return node_ids(TopologyInfo.FromString(message))


def node_ids(topology: TopologyInfo) -> NodeIds:
    """Return the distinct NUMA node ids of a message, sorted."""
    return tuple(sorted({node.ID for node in topology.nodes}))
