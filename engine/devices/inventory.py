"""Holds the devices of one resource as bitsets over numbered ids: health, allocation, NUMA nodes.

Ids are numbered in bytewise order, so the lowest index is the lowest id. Devices that a container holds stay
numbered when the plugin no longer lists them. Pure: messages are bytes, nothing is awaited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine._fast.devices import bitset, device_list
from engine.devices.checkpoint import NO_NODE
from engine.topologymanager.policy import Numa
from engine.topologymanager.search import DeviceCounts

if TYPE_CHECKING:
    from engine._fast.devices.device_list import NodeIds

Bits: TypeAlias = "NDArray[np.uint64]"
_Number = TypeVar("_Number", "np.uint8", "np.int32")


class DeviceGroup(msgspec.Struct, frozen=True):
    """Group listed devices with the same NUMA nodes; None if they have no topology."""

    nodes: NodeIds | None
    members: Bits
    size: int


class Inventory:
    """Hold one resource's devices. `claim` and `release` count holders, because a pod's containers may share
    a device.
    """

    def __init__(self) -> None:
        self.complaint = ""
        """What was wrong with the plugin's last list, or an empty text."""
        self._message: bytes | None = None
        self._set_ids([])
        self._state: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._topology: NDArray[np.int32] = np.zeros(0, np.int32)
        self._holders: NDArray[np.int32] = np.zeros(0, np.int32)
        self._groups: tuple[DeviceGroup, ...] | None = None
        self._pack()

    # Lists from the plugin

    def update(self, message: bytes) -> bool:
        """Apply a serialized ListAndWatchResponse; return whether it changed anything.

        Devices missing in the message are gone. Of several devices with one id, the last counts. Raises
        `ValueError` for malformed bytes.
        """
        if message == self._message:
            return False
        listed = self._index.read(message)
        self._message = message
        changed = bool(listed.new_ids) or not (
            np.array_equal(listed.state, self._state) and np.array_equal(listed.topology, self._topology)
        )
        if changed:
            self._state, self._topology = listed.state, listed.topology
            if listed.new_ids:
                self._intern(listed.new_ids)
            self._pack()
        wrong = (
            ("repeated ids", listed.duplicates),
            ("empty ids", listed.nameless),
            ("odd health", listed.odd),
        )
        self.complaint = ", ".join(f"{count} devices with {what}" for what, count in wrong if count)
        return changed

    def disconnect(self) -> None:
        """Mark every listed device as unhealthy until the plugin reports again."""
        self._message = None
        self._state = np.minimum(self._state, device_list.UNHEALTHY)
        self._pack()

    # Devices held by containers

    def claim(self, ids: Collection[str]) -> None:
        """Count a holder for each device, known or not."""
        unknown = [id for id in ids if id not in self._rows]
        if unknown:
            self._state = _longer(self._state, len(unknown), device_list.ABSENT)
            self._topology = _longer(self._topology, len(unknown), device_list.NO_TOPOLOGY)
            self._intern(unknown)
            self._pack()
        for id in ids:
            row = self._rows[id]
            self._holders[row] += 1
            self.allocated[row >> 6] |= np.uint64(1 << (row & 63))

    def release(self, ids: Iterable[str]) -> None:
        """Undo one `claim`."""
        for id in ids:
            row = self._rows[id]
            self._holders[row] -= 1
            if self._holders[row] == 0:
                self.allocated[row >> 6] &= np.uint64(~(1 << (row & 63)) & 0xFFFF_FFFF_FFFF_FFFF)

    # Queries

    @property
    def healthy_count(self) -> int:
        return bitset.count(self.healthy)

    @property
    def listed_count(self) -> int:
        return int(np.count_nonzero(self._state))

    @property
    def allocated_count(self) -> int:
        return bitset.count(self.allocated)

    @property
    def available_count(self) -> int:
        return bitset.count_difference(self.healthy, self.allocated)

    @property
    def aligned(self) -> bool:
        """Return whether any device names a NUMA node; only then does the resource have hints."""
        return self._aligned

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        if self._groups is None:
            self._groups = self._make_groups()
        return self._groups

    def names(self, bits: Bits) -> list[str]:
        """Return the ids of a bitset, lowest first."""
        return self._names_at(bitset.first(bits, 64 * bits.shape[0]))

    def lowest(self, bits: Bits, taken: Bits, n: int) -> list[str]:
        """Return the `n` lowest ids of `bits` without `taken`."""
        return [self._ids[row] for row in bitset.first_of_difference(bits, taken, n)]

    def bits(self, ids: Iterable[str]) -> Bits:
        """Return a bitset of the known ids."""
        out = np.zeros_like(self.healthy)
        for id in ids:
            row = self._rows.get(id)
            if row is not None:
                out[row >> 6] |= np.uint64(1 << (row & 63))
        return out

    def healthy_names(self) -> list[str]:
        return self.names(self.healthy)

    def is_healthy(self, ids: Iterable[str]) -> bool:
        """Tell whether every device is listed and healthy."""
        rows = [self._rows.get(id) for id in ids]
        return all(row is not None and self._state[row] == device_list.HEALTHY for row in rows)

    def is_unhealthy(self, id: str) -> bool:
        """Return whether the plugin reported the device as unhealthy or disconnected; false
        before a report.
        """
        row = self._rows.get(id)
        return row is not None and bool(self._state[row] == device_list.UNHEALTHY)

    def nodes_of(self, id: str) -> NodeIds | None:
        """Return the NUMA nodes of a listed device; None without topology."""
        row = self._rows.get(id)
        return None if row is None else self._index.nodes(int(self._topology[row]))

    def near(self, nodes: Collection[int], within: Bits) -> tuple[Bits, Bits, Bits]:
        """Split listed devices into those at `nodes`, those only at others, and those without nodes.

        Plugins that pass on sysfs's `numa_node` list a device without a node at node -1.
        """
        parts = [np.zeros_like(within) for _ in range(3)]
        for group in self.groups:
            at = set(group.nodes or ()) - {NO_NODE}
            part = 2 if not at else 0 if any(node in nodes for node in at) else 1
            parts[part] |= group.members
        return tuple(bitset.intersection(part, within) for part in parts)  # type: ignore[return-value]

    def counts(self, numa: Numa, free: Bits, reusable: Bits | None, request: int) -> DeviceCounts:
        """Return what NUMA hints for `request` devices are computed from, in the node order of `numa`."""
        groups = self.groups
        return DeviceCounts(
            tuple(numa.mask(group.nodes or ()) for group in groups),
            tuple(group.size for group in groups),
            tuple(bitset.count_intersection(group.members, free) for group in groups),
            tuple(
                0
                if reusable is None or group.nodes is None
                else bitset.count_intersection(group.members, reusable)
                for group in groups
            ),
            request,
        )

    def rows(self) -> list[tuple[str, str, NodeIds | None, int]]:
        """Return every listed or held device: id, health, NUMA nodes, holders."""
        words = {
            device_list.ABSENT: "Gone",
            device_list.UNHEALTHY: "Unhealthy",
            device_list.HEALTHY: "Healthy",
        }
        return [
            (id, words[int(state)], self._index.nodes(int(topology)), int(holders))
            for id, state, topology, holders in zip(
                self._ids, self._state, self._topology, self._holders, strict=True
            )
            if state != device_list.ABSENT or holders
        ]

    # Numbering

    def _set_ids(self, ids: list[str]) -> None:
        self._ids = ids
        self._rows = {id: row for row, id in enumerate(ids)}
        self._index = device_list.DeviceIndex(ids)

    def _intern(self, new_ids: Sequence[str]) -> None:
        """Number the ids again in order, keeping listed and held ones."""
        ids = [*self._ids, *new_ids]
        holders = _longer(self._holders, len(new_ids), 0)
        old_index = self._index
        held_or_listed = (self._state != device_list.ABSENT) | (holders > 0)
        held_or_listed[len(self._ids) :] = True
        order = sorted(np.flatnonzero(held_or_listed).tolist(), key=ids.__getitem__)
        self._state, topology, self._holders = self._state[order], self._topology[order], holders[order]
        self._set_ids([ids[i] for i in order])
        numbers = np.zeros(int(topology.max(initial=0)) + 1, np.int32)
        for old in np.unique(topology).tolist():
            numbers[old] = self._index.intern(old_index.nodes(old))
        self._topology = numbers[topology]

    def _pack(self) -> None:
        self.healthy: Bits = _packed(self._state == device_list.HEALTHY)
        self.allocated: Bits = _packed(self._holders > 0)
        self._groups = None
        numbers = np.unique(self._topology[self._state != device_list.ABSENT])
        self._aligned = any(self._index.nodes(number) for number in numbers.tolist())

    def _make_groups(self) -> tuple[DeviceGroup, ...]:
        listed = self._state != device_list.ABSENT
        sizes = Counter(self._topology[listed].tolist())
        return tuple(
            DeviceGroup(self._index.nodes(number), _packed((self._topology == number) & listed), size)
            for number, size in sorted(sizes.items())
        )

    def _names_at(self, rows: NDArray[np.int32]) -> list[str]:
        return [self._ids[row] for row in rows.tolist()]


def _packed(flags: NDArray[np.bool_]) -> Bits:
    words = (flags.shape[0] + 63) // 64
    octets = np.zeros(8 * words, np.uint8)
    packed = np.packbits(flags, bitorder="little")
    octets[: packed.shape[0]] = packed
    return octets.view("<u8").astype(np.uint64, copy=False)


def _longer(column: NDArray[_Number], by: int, fill: int) -> NDArray[_Number]:
    return np.concatenate([column, np.full(by, fill, column.dtype)])
