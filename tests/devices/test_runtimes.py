"""Check plugins' answers inside real containers, and CDI names as the runtime gets them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import cast

import pytest

from engine.cri.client import RuntimeClient
from engine.devices.manager import DeviceManager
from engine.devices.run_options import DeviceRunOptions
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import SampleAllocation, SampleDevicePlugin
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig, container
from tests.runtime.pods import BUSYBOX, Pods, embedded_runtime
from tests.waiting import eventually

GPU = "example.com/gpu"
SCRIPT = (
    "echo $EXAMPLE_COM_GPU; cat /gpu/hello; test -c /dev/$EXAMPLE_COM_GPU && echo node; "
    "echo lost > /dev/$EXAMPLE_COM_GPU && echo written; touch /gpu/x 2>/dev/null || echo read-only"
)


def fields(options: DeviceRunOptions) -> dict[str, object]:
    """Return the fields of a container's configuration that a node makes from the options."""
    return {
        "envs": [cri.KeyValue(key=key, value=value.encode()) for key, value in options.envs.items()],
        "mounts": options.mounts,
        "devices": options.devices,
        "annotations": dict(options.annotations),
        "CDI_devices": options.cdi_devices,
    }


async def container_sees(agent, pods: Pods, tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "hello").write_text("hello\n")
    await agent.plugin(count=2, allocation=SampleAllocation(mount=tmp_path / "shared"))
    pod = await agent.admit(agent.make_pod("a"))
    options = await agent.manager.container_config(pod, "app")
    return await pods.output(SCRIPT, **fields(options))


EXPECTED = "gpu-0\nhello\nnode\nwritten\nread-only"


@pytest.mark.root
async def test_a_container_of_the_embedded_runtime_sees_its_device(
    agent, tmp_path, busybox_archive, private_cgroup_root
):
    async with embedded_runtime(tmp_path, busybox_archive, private_cgroup_root) as pods:
        assert await container_sees(agent, pods, tmp_path) == EXPECTED


@pytest.mark.root
@pytest.mark.containerd
async def test_a_container_of_containerd_sees_its_device(agent, tmp_path, containerd, private_cgroup_root):
    client = RuntimeClient(str(containerd.socket))
    pods = Pods(client, tmp_path, private_cgroup_root, "containerd")
    try:
        assert await container_sees(agent, pods, tmp_path) == EXPECTED
    finally:
        await pods.remove_all()
        await client.close()


async def test_cdi_names_reach_the_runtime(agent, tmp_path):
    await agent.plugin(count=2, allocation=SampleAllocation(cdi=True))
    pod = await agent.admit(agent.make_pod("a", agent.container("app", gpu=2)))
    options = await agent.manager.container_config(pod, "app")
    async with HollowRuntime(tmp_path / "r.sock") as runtime:
        client = RuntimeClient(str(runtime.socket))
        await client.pull_image(BUSYBOX)
        pods = Pods(client, tmp_path, "/hollow", "hollow")
        started = await pods.shell("true", **fields(options))
        config = runtime.service.records.container(started).config
        await client.close()
    assert [device.name for device in config.CDI_devices] == [
        "example.com/gpu=gpu-0",
        "example.com/gpu=gpu-1",
    ]
    assert config.annotations["devices.example.com.gpu"] == "gpu-0,gpu-1"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.containerd
async def test_a_node_on_containerd_keeps_devices_through_restarts(tmp_path, containerd):
    """Manifest to log line: the container prints its devices, ends, and prints the same ones again."""
    with tempfile.TemporaryDirectory(prefix="kd-") as short:
        rig = Rig(Path(short), containerd.socket)
        plugin_dir = rig.root / "device-plugins"
        plugin = SampleDevicePlugin(
            GPU, plugin_dir / "gpu.sock", count=2, allocation=SampleAllocation(mount=tmp_path)
        )
        (tmp_path / "hello").write_text("hello\n")
        await plugin.start()
        plugin.follow(plugin_dir)
        await rig.start()
        try:
            await eventually(lambda: devices(rig).capacity()[1] == {GPU: 2})
            script = f"{SCRIPT}; echo end; sleep 1"
            wanted = container("app", command=["/bin/sh", "-c", script], resources={"limits": {GPU: 1}})
            wanted["image"] = BUSYBOX
            for name in ("a", "b"):
                rig.write(name, {"containers": [wanted]})
                await eventually(lambda name=name: 0 in runs(rig, name))
            await rig.restart()
            await eventually(lambda: devices(rig).capacity()[1] == {GPU: 2})
            await eventually(lambda: any(runs(rig, "a")) and any(runs(rig, "b")))
            assert set(runs(rig, "a").values()) == {EXPECTED}
            assert set(runs(rig, "b").values()) == {EXPECTED.replace("gpu-0", "gpu-1")}
        finally:
            await plugin.stop()
            await rig.close()
            await asyncio.to_thread(containerd.remove_pods)


def devices(rig: Rig) -> DeviceManager:
    return cast("DeviceManager", rig.node.components["devices"])


def runs(rig: Rig, name: str) -> dict[int, str]:
    """Return the output of each finished run of the pod's container, by attempt."""
    found = {}
    for path in Path(rig.config.pod_logs_dir).glob(f"*_{name}-n1_*/app/*.log"):
        lines = [line.split(" ", 3)[3] for line in path.read_text().splitlines()]
        if lines and lines[-1] == "end":
            found[int(path.stem)] = "\n".join(lines[:-1])
    return found
