"""Whether the kernel can limit swap."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.documents import parse_pods
from engine.cgroups.formulas.containers import ContainerRules, container_resources
from engine.cgroups.manager import swap_controller
from engine.host.cgroupfs.mounts import CgroupHierarchy


@pytest.mark.parametrize(
    ("version", "file"), [(1, "memory.memsw.limit_in_bytes"), (2, "agents/own/memory.swap.max")]
)
def test_swap_can_be_limited_where_its_file_is_be_there_swap_or_not(tmp_path: Path, version: int, file: str):
    own = tmp_path / "own"
    own.write_text("3:memory:/elsewhere\n0::/agents/own\n")
    tree = tmp_path / "cgroup"
    hierarchy = CgroupHierarchy(str(tree), frozenset({"memory"}))
    assert not swap_controller(hierarchy, version, str(own))
    (tree / file).parent.mkdir(parents=True)
    (tree / file).touch()
    assert swap_controller(hierarchy, version, str(own))


@pytest.mark.parametrize("given", ["64Mi", ""])
def test_under_v1_memory_and_swap_have_the_memory_limit_together(given: str):
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: a}}
spec: {{containers: [{{name: c, resources: {{limits: {{{"memory: " + given if given else ""}}}}}}}]}}
"""
    (pod,), _ = parse_pods(text.encode(), "a.yaml")
    (container,) = pod.spec.containers
    limit = 64 << 20 if given else 0
    rules = ContainerRules(1 << 30, swap_controller=True)
    assert container_resources(pod, container, rules).memory_swap_limit_in_bytes == limit
    without = ContainerRules(1 << 30, swap_controller=False)
    assert container_resources(pod, container, without).memory_swap_limit_in_bytes == 0
