"""Chooses a container's devices: the kubelet's order of preference, the lowest ids first within a class.

Reusable devices of earlier init containers → NUMA-aligned → plugin-preferred → unaligned → no affinity. The
plugin is asked about the aligned devices if fewer are needed than are aligned, otherwise about all free
ones. Rule: kubelet v1.36 `devicemanager.devicesToAllocate`. Pure: a question to the plugin is yielded, and
its answer is sent back in.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple

import msgspec

from engine._fast.devices import bitset
from engine.devices.inventory import Inventory


class SelectionError(Exception):
    """Raised if there are no devices for the container, with the kubelet's message."""


class Preference(msgspec.Struct, frozen=True):
    """Hold a question to the plugin: which `size` of `available`, including `must_include`?"""

    available: list[str]
    must_include: list[str]
    size: int


class DeviceSelection(NamedTuple):
    """Hold the chosen devices by the reason of their choice, in order."""

    reused: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    no_affinity: tuple[str, ...] = ()

    @property
    def devices(self) -> list[str]:
        return [*self.reused, *self.aligned, *self.preferred, *self.unaligned, *self.no_affinity]


Choosing = Generator[Preference, Sequence[str], DeviceSelection]


def select(
    inventory: Inventory,
    resource: str,
    required: int,
    *,
    reusable: Collection[str] = (),
    affinity: Collection[int] | None = None,
    consult: bool = False,
) -> Choosing:
    """Choose `required` devices without claiming them.

    `affinity` are preferred NUMA node ids; `consult` tells whether the plugin has preferences. Raises
    `SelectionError` if there are not enough.
    """
    reused = sorted(reusable)[:required]
    needed = required - len(reused)
    if needed == 0:
        return DeviceSelection(tuple(reused))
    if not consult and (affinity is None or not inventory.aligned):
        lowest = inventory.lowest(inventory.healthy, inventory.allocated, needed)
        if len(lowest) == needed:
            return DeviceSelection(tuple(reused), no_affinity=tuple(lowest))
    available = inventory.available_count
    if available < needed:
        raise SelectionError(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {needed}, Available: {available}"
        )
    if affinity is None or not inventory.aligned:
        free = bitset.difference(inventory.healthy, inventory.allocated)
        aligned, unaligned, nowhere = free[:0], free[:0], free
        near: list[str] = []
    else:
        free = bitset.difference(inventory.healthy, inventory.allocated)
        aligned, unaligned, nowhere = inventory.near(affinity, free)
        if needed < bitset.count(aligned):
            pool = inventory.names(aligned)
            answer = yield from _ask(consult, pool, reused, required)
            preferred = _picked(answer, pool, needed)
            rest = [id for id in pool if id not in set(preferred)][: needed - len(preferred)]
            return DeviceSelection(tuple(reused), tuple(rest), tuple(preferred))
        near = inventory.names(aligned)
        needed -= len(near)
        if needed == 0:
            return DeviceSelection(tuple(reused), tuple(near))
    if not consult:
        off = inventory.lowest(unaligned, inventory.allocated, needed) if unaligned.size else []
        anywhere = inventory.lowest(nowhere, inventory.allocated, needed - len(off)) if nowhere.size else []
        return DeviceSelection(tuple(reused), tuple(near), (), tuple(off), tuple(anywhere))
    # Use names rather than bits from here on: a new list may renumber devices while the plugin answers.
    pool, far, homeless = inventory.names(free), inventory.names(unaligned), inventory.names(nowhere)
    answer = yield from _ask(consult, pool, [*reused, *near], required)
    preferred = _picked(answer, set(pool).difference(near), needed)
    taken = {*preferred, *near}
    off = [id for id in far if id not in taken][: needed - len(preferred)]
    anywhere = [id for id in homeless if id not in taken][: needed - len(preferred) - len(off)]
    return DeviceSelection(tuple(reused), tuple(near), tuple(preferred), tuple(off), tuple(anywhere))


def _ask(
    consult: bool, pool: Sequence[str], included: Sequence[str], size: int
) -> Generator[Preference, Sequence[str], Sequence[str]]:
    if not consult:
        return ()
    return (yield Preference(sorted({*pool, *included}), list(included), size))


def _picked(answer: Sequence[str], pool: Collection[str], needed: int) -> list[str]:
    """Return what the plugin prefers and may have, each once."""
    allowed = set(pool)
    return [id for id in dict.fromkeys(answer) if id in allowed][:needed]
