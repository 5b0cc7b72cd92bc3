"""Pods for tests of runtimes, and an embedded runtime that must leave nothing behind."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.cri.client import RuntimeClient
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.shim.linux import start_time
from engine.testing.containerd import mounts_below
from engine.wire import cri_v1_pb2 as cri
from tests.groups import CGROUPS, groups_with
from tests.waiting import eventually

BUSYBOX = "docker.io/library/busybox:latest"
_numbers = itertools.count()


class Pods:
    """Make pods and containers with short calls, and keep their configurations, to remove all of them."""

    def __init__(self, client: RuntimeClient, directory: Path, cgroup_root: str, kind: str) -> None:
        self.client = client
        self.directory = directory
        self.cgroup_root = cgroup_root
        self.kind = kind
        self.configs: dict[str, cri.PodSandboxConfig] = {}
        self.pids: dict[int, int] = {}

    def config(self, name: str = "", **fields: Any) -> cri.PodSandboxConfig:
        number = next(_numbers)
        name = name or f"pod-{number}"
        uid = f"uid-{number}"
        logs = self.directory / "logs" / name
        logs.mkdir(parents=True, exist_ok=True)
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace="test"),
            hostname=name,
            log_directory=str(logs),
            linux=cri.LinuxPodSandboxConfig(cgroup_parent=f"{self.cgroup_root}/{uid}"),
        )
        config.MergeFrom(cri.PodSandboxConfig(**fields))
        if config.linux.security_context.namespace_options.network == cri.NODE:
            config.hostname = ""
        return config

    async def pod(self, config: cri.PodSandboxConfig | None = None, **fields: Any) -> str:
        config = config or self.config(**fields)
        sandbox = await self.client.run_pod_sandbox(config)
        self.configs[sandbox] = config
        return sandbox

    async def create(
        self,
        sandbox: str,
        *command: str,
        name: str = "",
        image: str = BUSYBOX,
        pid: cri.NamespaceMode = cri.CONTAINER,
        **fields: Any,
    ) -> str:
        name = name or f"c-{next(_numbers)}"
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=image),
            command=command,
            log_path=f"{name}.log",
        )
        config.linux.security_context.namespace_options.pid = pid
        config.MergeFrom(cri.ContainerConfig(**fields))
        return await self.client.create_container(sandbox, config, self.configs[sandbox])

    async def start(self, sandbox: str, *command: str, **fields: Any) -> str:
        container = await self.create(sandbox, *command, **fields)
        await self.client.start_container(container)
        return container

    async def shell(self, script: str, sandbox: str = "", **fields: Any) -> str:
        """Start a shell in a new pod (or `sandbox`)."""
        return await self.start(sandbox or await self.pod(), "/bin/sh", "-c", script, **fields)

    async def output(self, script: str, sandbox: str = "", **fields: Any) -> str:
        """Run a shell script, and return its standard output; it must exit with 0.

        A busy containerd may report the exit before it has written all of the log.
        """
        container = await self.shell(script, sandbox, **fields)
        status = await self.ended(container)
        assert status.exit_code == 0, self.log(status)
        await eventually(lambda: self._written(status))
        return "\n".join(self._written(status))

    def _written(self, status: cri.ContainerStatus) -> list[str]:
        return [text for stream, _, text in self.log(status) if stream == "stdout"]

    async def status(self, container: str) -> cri.ContainerStatus:
        return (await self.client.container_status(container)).status

    async def ended(self, container: str) -> cri.ContainerStatus:
        async def exited() -> bool:
            return (await self.status(container)).state == cri.CONTAINER_EXITED

        await eventually(exited)
        return await self.status(container)

    def log(self, status: cri.ContainerStatus) -> list[tuple[str, str, str]]:
        """Stream, tag and text of each line."""
        lines = Path(status.log_path).read_bytes().decode(errors="replace").splitlines()
        return [(line.split(" ", 3)[1], line.split(" ", 3)[2], line.split(" ", 3)[3]) for line in lines]

    async def note_processes(self) -> None:
        """Remember every process that must be gone in the end."""
        for sandbox in await self.client.list_pod_sandboxes():
            info = (await self.client.pod_sandbox_status(sandbox.id, verbose=True)).info
            self._note(json.loads(info["info"])["pid"])
        for container in await self.client.list_containers():
            facts = json.loads((await self.client.container_status(container.id, verbose=True)).info["info"])
            self._note(facts["pid"])
            self._note(facts.get("shim", 0))

    async def remove_all(self) -> None:
        for sandbox in await self.client.list_pod_sandboxes():
            if sandbox.id in self.configs:
                await self.client.stop_pod_sandbox(sandbox.id)
                await self.client.remove_pod_sandbox(sandbox.id)

    def _note(self, pid: int) -> None:
        if pid:
            self.pids[pid] = start_time(pid)


@asynccontextmanager
async def embedded_runtime(
    directory: Path, archive: Path, cgroup_root: str, **options: Any
) -> AsyncIterator[Pods]:
    """Run an embedded runtime below `directory` with the images of `archive`, and yield its pods.

    At the end, purge the runtime and check that no process, mount, cgroup, bridge or file is left.
    """
    root, state = directory / "root", directory / "state"
    runtime = EmbeddedRuntime(socket=directory / "r.sock", root=root, state=state, **options)
    await runtime.start()
    await runtime.import_image(archive)
    client = RuntimeClient(str(runtime.socket))
    pods = Pods(client, directory, cgroup_root, "embedded")
    bridge = runtime.processes.network.bridge
    try:
        yield pods
        await pods.note_processes()
    finally:
        await client.close()
        await runtime.purge()
    await assert_nothing_left(root, state, bridge, cgroup_root, pods.pids)


async def assert_nothing_left(
    root: Path, state: Path, bridge: str, cgroup_root: str, pids: dict[int, int]
) -> None:
    assert not root.exists()
    assert not state.exists()
    assert not mounts_below(root, state)
    assert not Path("/sys/class/net", bridge).exists()
    for tree in CGROUPS.iterdir():
        top = tree / cgroup_root.strip("/")
        left = [group for group in groups_with("", top) if len(Path(group).relative_to(top).parts) > 1]
        assert not left, left

    async def gone() -> bool:
        return not any(began and start_time(pid) == began for pid, began in pids.items())

    await eventually(gone)
