"""Swap in the memory signal: what it needs, and on a cgroup v2 kernel with swap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.cgroups.formulas.containers import ContainerRules, pod_swap_limit
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.testing.uml import run_in_uml
from tests.contexts import node_context
from tests.eviction.private_node import MIB

TESTS = Path(__file__).parents[1]


def test_a_node_that_cannot_keep_pods_from_swapping_is_refused():
    with pytest.raises(InvalidInput, match=r"^eviction\.countSwap: needs cgroup v2"):
        EvictionManager(
            node_context(
                KubeletConfiguration(eviction_hard={}),
                eviction=EvictionSection(count_swap=True),
                recorder=EventRecorder(time.time),
            ),
            EvictablePods(active=list, kill=lambda *_: pytest.fail("nobody is there"), cgroup=lambda _: None),
        )


@pytest.mark.parametrize(
    ("behavior", "annotation", "limit"),
    [("LimitedSwap", "", 32), ("NoSwap", "", 0), ("NoSwap", "5Mi", 5), ("LimitedSwap", "max", 64)],
)
def test_the_swap_limit_of_a_pod_is_its_containers_or_its_annotation(
    behavior: str, annotation: str, limit: int
):
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: a, annotations: {{kubengine.dev/swap: "{annotation}"}}}}
spec:
  initContainers:
  - {{name: first, resources: {{requests: {{memory: 256Mi}}}}}}
  - {{name: beside, restartPolicy: Always, resources: {{requests: {{memory: 128Mi}}}}}}
  containers:
  - {{name: main, resources: {{requests: {{memory: 128Mi}}}}}}
  - {{name: none}}
"""
    (pod,), _ = parse_pods(text.replace(', annotations: {kubengine.dev/swap: ""}', "").encode(), "a.yaml")
    rules = ContainerRules(
        512 * MIB,
        cgroup_v2=True,
        swap_controller=True,
        swap_capacity=64 * MIB,
        swap_behavior=behavior,
        annotations=frozenset(["swap"]),
    )
    assert pod_swap_limit(pod, rules) == limit * MIB


@pytest.mark.uml
@pytest.mark.slow
def test_swap_that_pods_may_use_is_available_and_swap_in_use_is_used(tmp_path: Path):
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(256 * MIB)
    seen: dict[str, Any] = run_in_uml(
        f"""
        import asyncio, pathlib
        sys.path[:0] = [{str(TESTS.parent)!r}]
        from tests.eviction.swap_scene import rankings_and_evictions
        report(asyncio.run(rankings_and_evictions(pathlib.Path(CGROUPS), pathlib.Path(SCRATCH))))
        """,
        disk=disk,
    )
    assert seen["swapped out"] >= 60 * MIB
    plain, counting = seen["available"]
    assert plain < 150 < counting
    assert seen["first"] == ["beside", "swapped"]
    assert 0 < seen["metric"] <= 60
    assert seen["with swap left"] == []
    assert seen["with none"] == ["swapped"]
    assert seen["decided"] == [True]
