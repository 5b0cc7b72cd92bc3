"""Computes what the removal of an image really frees: layers that no other image has. Pure.

The runtime's verbose status lists an image's layers: names and sizes (`layerSizes`), or only names, as
containerd's `rootfs.diff_ids`; then each counts as an equal part of the image. An image without information
is one layer of its own.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Layer(NamedTuple):
    """Hold a layer's name and its `size` in bytes."""

    name: str
    size: int


Layers = tuple[Layer, ...]


def reported_layers(info: Mapping[str, str], image: str, size: int) -> Layers:
    """Return an image's layers from its verbose status. `image` is its id, `size` its size according to the
    runtime.
    """
    try:
        document = json.loads(info.get("info", "{}"))
        sized = document.get("layerSizes") or {}
        if sized:
            return tuple(Layer(str(name), int(bytes_)) for name, bytes_ in sized.items())
        names = document["imageSpec"]["rootfs"]["diff_ids"]
        if names:
            return tuple(Layer(str(name), size // len(names)) for name in names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return (Layer(image, size),)


def removal_order(
    layers: Sequence[Layers], last_used: Sequence[float], eligible: Iterable[int]
) -> list[tuple[int, int]]:
    """Return eligible images with the bytes that each frees after the ones before.

    The longest unused come first, and among equally old ones the one that frees most by then. `layers` and
    `last_used` cover all present images.
    """
    held = Counter(layer.name for image in layers for layer in set(image))
    holders: dict[str, set[int]] = {}
    rows = sorted(eligible, key=lambda row: last_used[row])
    for row in rows:
        for layer in layers[row]:
            holders.setdefault(layer.name, set()).add(row)

    def frees(row: int) -> int:
        return sum(layer.size for layer in set(layers[row]) if held[layer.name] == 1)

    left = {row: frees(row) for row in rows}
    queue = [(last_used[row], -left[row], row) for row in rows]
    heapq.heapify(queue)
    order: list[tuple[int, int]] = []
    while queue:
        _, freed, row = heapq.heappop(queue)
        if left.get(row) != -freed:
            continue
        order.append((row, left.pop(row)))
        for layer in set(layers[row]):
            held[layer.name] -= 1
            holders[layer.name].discard(row)
            if held[layer.name] != 1:
                continue
            for last in holders[layer.name]:
                left[last] = frees(last)
                heapq.heappush(queue, (last_used[last], -left[last], last))
    return order
