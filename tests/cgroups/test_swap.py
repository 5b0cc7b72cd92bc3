"""Whether the kernel can limit swap."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cgroups.machine import swap_controller
from engine.cgroups.mounts import Hierarchy


@pytest.mark.parametrize(
    ("version", "file"), [(1, "memory.memsw.limit_in_bytes"), (2, "agents/own/memory.swap.max")]
)
def test_swap_can_be_limited_where_its_file_is_be_there_swap_or_not(tmp_path: Path, version: int, file: str):
    own = tmp_path / "own"
    own.write_text("3:memory:/elsewhere\n0::/agents/own\n")
    tree = tmp_path / "cgroup"
    hierarchy = Hierarchy(str(tree), frozenset({"memory"}))
    assert not swap_controller(hierarchy, version, str(own))
    (tree / file).parent.mkdir(parents=True)
    (tree / file).touch()
    assert swap_controller(hierarchy, version, str(own))
