"""Container hashes against those that a kubelet v1.36 wrote."""

from __future__ import annotations

import pytest

from engine.api.pod import Container
from engine.node.spec.cri_config import container_hash


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("main", "busybox", "b34e1a14"),
        ("a", "registry.k8s.io/pause:3.10", "6c7e48f1"),
        ("web-0", "docker.io/library/nginx@sha256:00ff<&>", "31656fee"),
        ("", "", "edd67cc4"),
        ("ü", "x/y:z", "818b052c"),
    ],
)
def test_is_what_the_kubelet_writes(name: str, image: str, expected: str) -> None:
    assert container_hash(Container(name=name, image=image)) == expected
