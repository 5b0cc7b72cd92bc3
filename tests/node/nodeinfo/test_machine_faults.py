"""A pod that the machine keeps out waits, in bounds: a cluster's as one of a manifest."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from engine.api.duration import Duration
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Pod
from engine.node import pod_admission
from engine.node.pod_admission import is_of_the_machine
from engine.node.sync.probing import Probing
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster
from tests.devices.device_rig import GPU, DeviceRig
from tests.node_rig import container
from tests.waiting import PATIENCE, eventually

FULL = os.strerror(errno.ENOSPC)
WITH_DEVICE = container(resources={"limits": {GPU: 1}})


class JoinedDevices(DeviceRig):
    """Run a node with devices that belongs to a cluster and has manifests as well."""

    kubeconfig: Path

    def waits(self) -> dict[tuple[str, ...], float]:
        assert self.node is not None
        return dict(self.node.registry.metrics["kubengine_admission_waits_total"].values)

    def outcomes(self, name: str) -> list[str]:
        """Return the outcomes of a pod's admissions, in order."""
        assert self.node is not None
        kept = self.node.decisions.after(0)
        return [d.outcome for d in kept if d.kind == "admission" and d.pod == f"default/{name}"]


@pytest.fixture
async def rig(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JoinedDevices]:
    monkeypatch.setattr(pod_admission, "RETRY_SECONDS", 0.05)
    with tempfile.TemporaryDirectory(prefix="km-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            rig = JoinedDevices(Path(short), runtime)
            rig.kubeconfig = cluster.server.kubeconfig("system:node:n1")
            yield rig
            await rig.close()


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=PATIENCE)


@pytest.fixture
def full_disk(rig: JoinedDevices) -> Iterator[Path]:
    """Mount a disk of 64 KiB for the device checkpoint. Yield the path of the file that a test writes to
    fill it."""
    with small_disk(rig.plugin_dir):
        yield rig.plugin_dir / "ballast"


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError):
        ballast.write_bytes(b"x" * (128 << 10))


@pytest.mark.root
async def test_pods_wait_while_the_disk_is_full_and_start_when_space_is_free(
    rig: JoinedDevices, cluster: Cluster, full_disk: Path
):
    await rig.start()
    await rig.plugin(2)
    fill(full_disk)
    await cluster.run("ours", containers=[WITH_DEVICE])
    rig.write("static", {"containers": [WITH_DEVICE]})
    waiting = await cluster.wait_for("ours", lambda pod: pod is not None and "reason" in pod["status"])
    assert waiting is not None
    assert waiting["status"]["phase"] == "Pending"
    assert waiting["status"]["reason"] == "AwaitingNode"
    assert FULL in waiting["status"]["message"]
    await eventually(lambda: rig.reason("static") == "AwaitingNode")
    full_disk.unlink()
    running = await cluster.until("ours", "Running")
    assert "reason" not in running["status"]
    await eventually(lambda: rig.running("static"))
    assert rig.outcomes("ours") == rig.outcomes("static-n1") == ["waiting", "admitted"]
    assert rig.waits() == {("AwaitingNode",): 2}
    assert "UnexpectedAdmissionError" not in rig.reasons()


@pytest.mark.root
async def test_a_pod_of_a_cluster_waits_only_until_its_limit(
    rig: JoinedDevices, cluster: Cluster, full_disk: Path
):
    rig.section.admission.patience = Duration(0.2)
    await rig.start()
    await rig.plugin(2)
    fill(full_disk)
    await cluster.run("ours", containers=[WITH_DEVICE])
    rig.write("static", {"containers": [WITH_DEVICE]})
    failed = await cluster.until("ours", "Failed")
    assert failed["status"]["reason"] == "UnexpectedAdmissionError"
    assert FULL in failed["status"]["message"]
    assert rig.outcomes("ours") == ["waiting", "refused"]
    await eventually(lambda: rig.outcomes("static-n1")[:2] == ["waiting", "refused"])
    full_disk.unlink()
    await eventually(lambda: rig.running("static"))
    assert await cluster.pod("ours") == failed


async def test_resources_are_released_when_the_last_step_fails(
    rig: JoinedDevices, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    accepted, failures = Probing.accepted, 0

    def short_of_descriptors(self: Probing, pod: Pod) -> None:
        nonlocal failures
        failures += 1
        if failures < 3:
            shortage = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise Unavailable("cannot be read", subject="readiness.json") from shortage
        accepted(self, pod)

    monkeypatch.setattr(Probing, "accepted", short_of_descriptors)
    await rig.start()
    await rig.plugin(1)
    await cluster.run("ours", containers=[WITH_DEVICE])
    await cluster.until("ours", "Running")
    assert failures == 3
    assert rig.outcomes("ours") == ["waiting", "admitted"]
    assert rig.node is not None
    assert cast(Any, rig.node.components["admission"]).describe()["pods"] == 1


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL_DISK = OSError(errno.ENOSPC, FULL)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (FULL_DISK, True),
        (Refused("cannot write", errno=errno.EIO), True),
        (caused(AdmissionRejected("UnexpectedAdmissionError", "said"), FULL_DISK), True),
        (caused(Unavailable("cannot be read"), FULL_DISK), True),
        (Refused("the plugin says no"), False),
        (Unavailable("the plugin does not answer"), False),
        (caused(AdmissionRejected("UnexpectedAdmissionError", "said"), InvalidInput("odd")), False),
    ],
)
def test_which_refusals_are_machine_faults(error: Exception, passes: bool):
    assert is_of_the_machine(error) is passes
