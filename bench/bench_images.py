"""Image GC: order and cut, and detection, beside the kubelet's own times on the same amounts.

`pytest bench/bench_images.py`. The kubelet's figures (v1.32, Go, same kind of machine, 2 shared cores at
2.5 GHz) are orientation, printed in the group names: freeSpace over half of N images with its logging
on (as configured by default) and off; detectImages with N images and 2N containers.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine._fast import _image_order_c, _image_order_py
from engine.images import records as records_module
from engine.images import selection
from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.tables import ImageTable

NOW = 1_700_000_000.0
FREE_SPACE = {100: "187 / 23 µs", 1_000: "1.88 / 0.224 ms", 10_000: "18.8 / 3.15 ms"}
DETECT = {100: "145 µs", 1_000: "1.59 ms", 10_000: "22.7 ms"}
KERNELS = {"kernel": _image_order_c, "twin": _image_order_py}


def table(count: int) -> ImageTable:
    random = np.random.default_rng(1)
    images = ImageTable(count)
    for number in range(count):
        images.add(f"sha256:{number:064x}", size=int(random.integers(1 << 20, 1 << 30)), detected=NOW - 9e5)
    columns = images.columns
    columns.first_detected[:count] = NOW - random.integers(1000, 900_000, count)
    columns.last_used[:count] = np.where(
        random.random(count) < 0.3, 0.0, NOW - random.integers(1, 900_000, count)
    )
    return images


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", FREE_SPACE)
def test_order_and_cut_half(benchmark, monkeypatch, count, which):
    """From the columns to the rows to remove, eligibility included."""
    benchmark.group = f"order and cut, half of {count} images (kubelet freeSpace: {FREE_SPACE[count]})"
    monkeypatch.setattr(selection, "order_and_cut", KERNELS[which].order_and_cut)
    columns = table(count).columns
    policy = ImageGCPolicy()
    target = int(columns.size.sum()) // 2

    def run() -> int:
        return len(selection.order(columns, selection.spare(columns, policy, NOW), policy, NOW, target))

    assert count * 0.4 < benchmark(run) < count * 0.6


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("count", DETECT)
def test_detect(benchmark, monkeypatch, count, which):
    """From the runtime's lists (ids as strings) to up-to-date records; five images and ten containers
    change between two looks."""
    benchmark.group = f"detection, {count} images, {2 * count} containers (kubelet: {DETECT[count]})"
    monkeypatch.setattr(records_module, "mark", KERNELS[which].mark)
    monkeypatch.setattr(records_module, "match", KERNELS[which].match)
    records = ImageRecords()
    seen = [SeenImage(f"sha256:{n:064x}", 1 << 20) for n in range(count + 5)]
    worlds = [
        (seen[:count], [seen[(7 * n) % count].id for n in range(2 * count)]),
        (seen[5:], [seen[(7 * n) % count + 5].id for n in range(2 * count)]),
    ]
    for images, used in worlds:
        records.detect(images, used, NOW)
    turn = [0]

    def run() -> None:
        turn[0] ^= 1
        images, used = worlds[turn[0]]
        records.detect(images, used, NOW + turn[0])

    benchmark(run)
    assert len(records) == count
