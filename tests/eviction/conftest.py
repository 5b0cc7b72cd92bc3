"""Offers the piece of this machine that plays the node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.eviction.private_node import PrivateNode


@pytest.fixture
def node(private_cgroup_root: str) -> Iterator[PrivateNode]:
    node = PrivateNode(private_cgroup_root)
    yield node
    node.close()
