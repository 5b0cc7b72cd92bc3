"""Eviction order: the kernel finds the same as the twin, few pods or many, amounts near or far apart."""

from __future__ import annotations

import numpy as np
import pytest

from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py

FORMS = (_eviction_ranking_c, _eviction_ranking_py)
AMOUNTS = {
    "all alike": [2**40],
    "few": [0, 1, 2**31],
    "near": list(range(2**30, 2**30 + 300)),
    "far apart": [0, 1, 255, 256, 2047, 2048, 2**32, 2**62, 2**63 - 1],
}
PRIORITIES = [-(2**31), -1, 0, 1, 255, 256, 2**31 - 1]


@pytest.mark.parametrize("count", [0, 1, 2, 300, 2047, 2048, 5000])
@pytest.mark.parametrize("spread", AMOUNTS)
def test_kernel_and_twin_agree(count, spread):
    chance = np.random.default_rng(count)
    usage, request = chance.choice(AMOUNTS[spread], (2, count)).astype(np.int64)
    known = (chance.random(count) > 0.1).astype(np.uint8)
    priority = chance.choice(PRIORITIES, count).astype(np.int32)
    some = chance.choice([0, 1, 999_999_999], count).astype(np.int32)
    for fraction in (None, some):
        for above_zero in (False, True):
            kernel, twin = (
                form.order_by_excess(usage, known, request, fraction, priority, above_zero) for form in FORMS
            )
            assert kernel.tolist() == twin.tolist()
    kernel, twin = (form.order_by_count(usage, known, priority) for form in FORMS)
    assert kernel.tolist() == twin.tolist()
