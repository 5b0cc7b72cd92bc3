"""The embedded runtime on a real cgroup v2 kernel."""

from __future__ import annotations

import pytest

from engine.testing.uml import run_in_uml

BODY = r"""
import asyncio
import tempfile
from pathlib import Path
from engine.cri.client import RuntimeClient
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.processes import RuntimeCgroups
from engine.testing.images import write_busybox
from engine.wire import cri_v1_pb2 as cri

HOST = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)  # the kernel has no bridge
LIMITS = cri.LinuxContainerResources(
    cpu_shares=1024, cpu_quota=50000, cpu_period=100000, memory_limit_in_bytes=64 << 20,
    unified={"memory.min": str(1 << 20), "memory.oom.group": "1"},
)

async def main():
    directory = Path(tempfile.gettempdir()) / "runtime"
    directory.mkdir()
    runtime = EmbeddedRuntime(
        socket=directory / "r.sock", root=directory / "root", state=directory / "state",
        cgroups=RuntimeCgroups(mount=Path(CGROUPS)),
    )
    await runtime.start()
    await runtime.import_image(write_busybox(directory / "b.tar"))
    client = RuntimeClient(str(directory / "r.sock"))
    pod = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="p", uid="u", namespace="d"),
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent="/kubepods/podu",
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=HOST),
        ),
    )
    sandbox = await client.run_pod_sandbox(pod)

    async def run(name, *command):
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name), image=cri.ImageSpec(image="busybox"), command=command,
            linux=cri.LinuxContainerConfig(
                resources=LIMITS, security_context=cri.LinuxContainerSecurityContext(namespace_options=HOST)
            ),
        )
        container = await client.create_container(sandbox, config, pod)
        await client.start_container(container)
        return container

    sleeper = await run("sleeper", "sleep", "1000")
    group = Path(CGROUPS, "kubepods/podu", sleeper)
    read = lambda *names: {name: (group / name).read_text().strip() for name in names}
    seen = {"values": read("cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.oom.group")}
    inside = await client.exec_sync(sleeper, ["cat", "/proc/self/cgroup"], 20)
    seen["inside"] = inside.stdout.decode()
    members = await client.exec_sync(sleeper, ["cat", "/sys/fs/cgroup/cgroup.procs"], 20)
    seen["members"] = len(members.stdout.split())
    await client.update_container_resources(
        sleeper, cri.LinuxContainerResources(cpu_shares=2048, memory_limit_in_bytes=96 << 20)
    )
    seen["updated"] = read("cpu.weight", "cpu.max", "memory.max")
    eater = await run("eater", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=100M count=1; exec sleep 1000")
    for _ in range(2400):
        status = (await client.container_status(eater)).status
        if status.state == cri.CONTAINER_EXITED:
            break
        await asyncio.sleep(0.1)
    seen["eater"] = [status.exit_code, status.reason]
    stats = await client.container_stats(sleeper)
    seen["working_set"] = stats.memory.working_set_bytes.value
    await client.close()
    await runtime.purge()
    seen["left"] = [path.name for path in Path(CGROUPS, "kubepods/podu").iterdir() if path.is_dir()]
    report(seen)

asyncio.run(main())
"""


@pytest.mark.uml
@pytest.mark.root
@pytest.mark.slow
def test_limits_update_and_memory_kill() -> None:
    seen = run_in_uml(BODY)
    assert seen["values"] == {
        "cpu.weight": "39",
        "cpu.max": "50000 100000",
        "memory.max": str(64 << 20),
        "memory.min": str(1 << 20),
        "memory.oom.group": "1",
    }
    assert seen["inside"] == "0::/\n"
    assert seen["members"] == 2
    assert seen["updated"] == {
        "cpu.weight": "79",
        "cpu.max": "50000 100000",
        "memory.max": str(96 << 20),
    }
    assert seen["eater"] == [137, "OOMKilled"]
    assert 0 < seen["working_set"] < 64 << 20
    assert seen["left"] == []
