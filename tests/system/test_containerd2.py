"""What containerd 2 has and 1.6 lacks, with runc and with crun."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import Refused
from engine.testing.containerd import Containerd
from engine.testing.images import ImageEntry, make_layer, write_image
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.containerd]

MODEL = "docker.io/library/model:1"


@pytest.fixture
async def rig(tmp_path: Path, containerd2: Containerd, private_cgroup_root: str) -> AsyncIterator[Rig]:
    rig = Rig(
        tmp_path,
        containerd2.socket,
        cgroups_per_qos=True,
        enforce_node_allocatable=["pods"],
        cgroup_root=private_cgroup_root,
    )
    yield rig
    await rig.close()


@pytest.fixture
def model(tmp_path: Path, containerd2: Containerd) -> None:
    """Import the image `MODEL`, which holds a directory with a file, and a file beside it."""
    files = [
        ImageEntry("sub"),
        ImageEntry("sub/weights", data=b"42\n", mode=0o644),
        ImageEntry("secret", data=b"s"),
    ]
    archive = write_image(tmp_path / "model.tar", [MODEL], layers=[make_layer(files)])
    containerd2.import_image(archive)


def with_model(script: str = WAIT, **mount: Any) -> dict[str, Any]:
    volumes = [
        {"name": "model", "image": {"reference": MODEL, "pullPolicy": "Never"}},
        {"name": "out", "emptyDir": {}},
    ]
    mounts = [{"name": "model", "mountPath": "/model", **mount}, {"name": "out", "mountPath": "/out"}]
    return {"volumes": volumes, "containers": [container("c", script, volumeMounts=mounts)]}


def out(rig: Rig, name: str) -> Path:
    return rig.root / "pods" / rig.pod(name).uid / "volumes/kubernetes.io~empty-dir/out"


def waiting(rig: Rig, name: str) -> Any:
    pod = rig.pod(name)
    states = [status.state.waiting for status in (pod.status.container_statuses if pod else None) or []]
    return states[0] if states else None


@pytest.mark.parametrize(
    "mount", [{"subPath": "sub"}, {"subPathExpr": "$(PART)"}], ids=lambda m: next(iter(m))
)
async def test_a_sub_path_of_an_image_is_all_that_its_container_sees(
    rig: Rig, model: None, mount: dict[str, str]
):
    await rig.start()
    spec = with_model(f"ls /model > /out/seen; cat /model/weights >> /out/seen; {WAIT}", **mount)
    spec["containers"][0]["env"] = [{"name": "PART", "value": "sub"}]
    rig.write("p", spec)
    await eventually(lambda: rig.phase("p") == "Running")
    seen = out(rig, "p") / "seen"
    await eventually(lambda: seen.exists() and seen.read_text() == "weights\n42\n")


@pytest.mark.parametrize(
    ("sub_path", "why"),
    [
        ("missing", 'failed to ensure image subpath "missing" in'),
        ("secret", "only directory subpath is supported"),
    ],
)
async def test_a_sub_path_that_the_image_lacks_fails_with_the_runtimes_message(
    rig: Rig, model: None, sub_path: str, why: str
):
    await rig.start()
    rig.write("p", with_model(subPath=sub_path))
    await eventually(lambda: getattr(waiting(rig, "p"), "reason", "") == "CreateContainerError")
    assert why in waiting(rig, "p").message
    assert "too old" not in waiting(rig, "p").message


async def test_its_events_are_followed_and_nothing_is_listed_while_pods_come_and_go(rig: Rig):
    node = await rig.start()
    watch = node.running.watch
    await eventually(lambda: watch.streaming)
    rig.write("p", {"containers": [container("c", "exit 3")], "restartPolicy": "Never"})
    await eventually(lambda: rig.phase("p") == "Failed")
    assert watch.streaming
    (status,) = rig.pod("p").status.container_statuses
    assert status.state.terminated.exit_code == 3


async def test_a_status_shows_the_users_and_groups_that_a_container_got(rig: Rig):
    await rig.start()
    context = {
        "runAsUser": 1000,
        "runAsGroup": 2000,
        "supplementalGroups": [3000],
        "supplementalGroupsPolicy": "Strict",
    }
    rig.write("p", {"containers": [container()], "securityContext": context})
    await eventually(lambda: rig.phase("p") == "Running")
    (status,) = rig.pod("p").status.container_statuses
    user = status.user.linux
    assert (user.uid, user.gid, sorted(user.supplemental_groups)) == (1000, 2000, [2000, 3000])


async def test_a_running_pod_is_resized(rig: Rig):
    await rig.start()
    rig.write("p", {"containers": [container(resources={"requests": {"cpu": "100m"}})]})
    await eventually(lambda: rig.phase("p") == "Running")
    rig.write("p", {"containers": [container(resources={"requests": {"cpu": "200m"}})]})
    await eventually(lambda: "ResizeCompleted" in rig.reasons())
    assert "ResizeError" not in rig.reasons()
    (status,) = rig.pod("p").status.container_statuses
    assert status.restart_count == 0


async def test_a_failed_checkpoint_carries_the_runtimes_status(rig: Rig):
    if shutil.which("criu"):
        pytest.skip("criu is installed, so that checkpoints work")
    node = await rig.start()
    rig.write("p", {"containers": [container()]})
    await eventually(lambda: rig.phase("p") == "Running")
    status = r"rpc error: code = \w+ desc = .*(CRIU|criu)"
    with pytest.raises(Refused, match=rf"checkpointing of default/p-n1/c failed \({status}"):
        await node.containers.checkpoint("default", "p-n1", "c", 60)


async def test_a_pod_with_users_of_its_own_runs_where_the_runtime_can(rig: Rig):
    node = await rig.start()
    if not node.running.runtime_health.features.of_handler("").user_namespaces:
        pytest.skip("the OCI runtime cannot map the ids of mounts: runc before 1.2, crun before 1.8.6")
    spec = {"containers": [container("c", f"cat /proc/self/uid_map > /out/map; {WAIT}")], "hostUsers": False}
    spec["containers"][0]["volumeMounts"] = [{"name": "out", "mountPath": "/out"}]
    rig.write("p", {**spec, "volumes": [{"name": "out", "emptyDir": {}}]})
    await eventually(lambda: rig.phase("p") == "Running")
    mapped = out(rig, "p") / "map"
    await eventually(
        lambda: mapped.exists() and mapped.read_text().split()[1:] not in ([], ["0", "4294967295"])
    )
