"""Pods, records and observations, as a shadow's kinds take them; and a real kubelet of a test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.testing.containerd import Containerd
from tests.shadow.fake_kubelet import Answers, Fake
from tests.system.kubelet import Kubelet


@pytest.fixture
def kubelet(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> Iterator[Kubelet]:
    """Yield a kubelet that has not been started; its manifests are in `tmp_path / "manifests"`."""
    with kubelet_of(tmp_path, containerd, private_cgroup_root) as kubelet:
        yield kubelet


@contextmanager
def kubelet_of(
    directory: Path, containerd: Containerd, cgroup_root: str, *, kubeconfig: Path | None = None
) -> Iterator[Kubelet]:
    """Yield a kubelet, and stop it and its pods at the end; `kubeconfig` joins it to a cluster."""
    more: dict[str, Any] = {
        "podPidsLimit": 500,
        "kubeReserved": {"cpu": "100m"},
        "evictionPressureTransitionPeriod": "1s",
    }
    (directory / "manifests").mkdir()
    kubelet = Kubelet(
        directory,
        containerd.socket,
        manifests=directory / "manifests",
        root=directory / "root",
        cgroup_root=cgroup_root,
        more=more,
        kubeconfig=kubeconfig,
    )
    kubelet.share_root()
    yield kubelet
    kubelet.stop()
    containerd.remove_pods()
    kubelet.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake(("127.0.0.1", 0), Answers)
    server.answers, server.asked = {}, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
