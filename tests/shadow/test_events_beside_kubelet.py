"""A shadow next to a kubelet of a cluster records the events of it and of its runtime, and writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.record.reader import Record
from engine.testing.containerd import Containerd
from engine.testing.pytest_plugin import running_containerd2
from tests.cluster.control_plane import ControlPlane, binaries
from tests.shadow.conftest import kubelet_of
from tests.shadow.test_beside_kubelet import command, traced
from tests.system.busybox import WAIT, container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import wait_until

pytestmark = [pytest.mark.containerd, pytest.mark.root, pytest.mark.slow, needs_kubelet]

UNHEALTHY = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
PODS: dict[str, dict[str, Any]] = {
    "plain": {"containers": [container(script=WAIT)]},
    "unhealthy": {"containers": [container(script=WAIT, livenessProbe=UNHEALTHY)]},
}


@pytest.fixture(scope="module")
def containerd2(tmp_path_factory: pytest.TempPathFactory, busybox_archive: Path) -> Iterator[Containerd]:
    with running_containerd2(tmp_path_factory.mktemp("containerd2"), busybox_archive) as running:
        yield running


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path / "plane", binaries()) as plane:
        yield plane


@pytest.fixture
def kubelet(
    tmp_path: Path, containerd2: Containerd, plane: ControlPlane, private_cgroup_root: str
) -> Iterator[Kubelet]:
    with kubelet_of(tmp_path, containerd2, private_cgroup_root, kubeconfig=plane.node) as kubelet:
        yield kubelet


def test_events_are_recorded_and_nothing_is_written(
    kubelet: Kubelet, plane: ControlPlane, tmp_path: Path
) -> None:
    kubelet.start()
    for name, spec in PODS.items():
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        (tmp_path / "manifests" / f"{name}.json").write_text(json.dumps(document))
    wait_until(lambda: kubelet.phases() == dict.fromkeys(PODS, "Running"))
    directory = tmp_path / "record"
    options = ["--for", "40s", "--interval", "2s", "--record", str(directory), "--kubeconfig"]
    done, written = traced(command(kubelet, tmp_path, *options, str(plane.admin)), tmp_path / "trace")
    report = json.loads(done.stdout)
    assert (report["differences"], report["faults"]) == ([], {}), done.stderr
    assert [call for call in written if f'"{directory}' not in call] == []
    rows = list(Record(directory).rows())
    assert {"container stopped", "container started"} <= {one.name for one in rows if one.stream == "runtime"}
    assert {"Killing", "Unhealthy", "Started"} <= {one.name for one in rows if one.stream == "event"}
    line = [sys.executable, "-m", "engine.cli", "why", "unhealthy-n1", "--record", str(directory)]
    output = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "was stopped because of a probe: Container c failed liveness probe" in output
    # The kubelet's own certificate may not list events: the record has those of the runtime, and says why.
    options = ["--for", "8s", "--interval", "2s", "--record", str(tmp_path / "other"), "--kubeconfig"]
    done, written = traced(command(kubelet, tmp_path, *options, str(plane.node)), tmp_path / "trace")
    assert [call for call in written if f'"{tmp_path / "other"}' not in call] == []
    assert "events is forbidden" in json.loads(done.stdout)["faults"]["events"]["text"]
