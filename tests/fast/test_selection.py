"""The compiled kernels are what runs, and KUBENGINE_PURE=1 asks for the twins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = """
from engine._fast import eviction_ranking, predicates, preempt_fewest, preemption, requests
for one in (eviction_ranking.order_by_excess, predicates.request_sums, preempt_fewest.best_of_size,
            preemption.victims, requests.requests):
    print(one.__module__ or type(one.__self__).__name__)
"""


@pytest.mark.parametrize(("pure", "suffix"), [("0", "_c"), ("1", "_py")])
def test_which_form_is_loaded(pure, suffix):
    environment = os.environ | {"KUBENGINE_PURE": pure}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    modules = shown.stdout.split()
    assert len(modules) == 5
    assert all(module.endswith(suffix) for module in modules), modules
