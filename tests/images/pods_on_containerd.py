"""Pods made straight through the CRI, for tests of components that look at what a runtime holds."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from engine.api.errors import KubengineError
from engine.cri.client import RuntimeClient
from engine.testing.containerd import Containerd
from engine.testing.images import padding_layer, write_image
from engine.wire import cri_v1_pb2 as cri


def add_image(containerd: Containerd, tmp_path: Path, name: str, size: int, *, layers=()) -> str:
    """Import an image of `size` bytes in a layer of its own; returns its reference."""
    reference = f"example.com/{name}:1"
    archive = write_image(tmp_path / f"{name}.tar", [reference], layers=[*layers, padding_layer(size, name)])
    containerd.import_image(archive)
    archive.unlink()
    return reference


class PodOnContainerd:
    """Run a sandbox and containers in a cgroup of the test."""

    def __init__(self, client: RuntimeClient, cgroup: str, logs: Path, name: str) -> None:
        self.client, self.uid = client, f"uid-{name}-{secrets.token_hex(3)}"
        self.log_directory = logs / f"default_{name}_{self.uid}"
        self.labels = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": self.uid,
        }
        self.config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, namespace="default", uid=self.uid, attempt=0),
            log_directory=str(self.log_directory),
            labels=self.labels,
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=f"{cgroup}/pod{self.uid}",
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
                ),
            ),
        )
        self.sandbox = ""
        self.attempts: dict[str, int] = {}

    async def start(self) -> None:
        self.sandbox = await self.client.run_pod_sandbox(self.config)

    async def run(self, image: str, *command: str, name: str = "main", start: bool = True) -> str:
        attempt = self.attempts[name] = self.attempts.get(name, -1) + 1
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            image=cri.ImageSpec(image=image),
            command=command or ("/bin/sleep", "600"),
            labels={**self.labels, "io.kubernetes.container.name": name},
            log_path=f"{name}/{attempt}.log",
        )
        (self.log_directory / name).mkdir(parents=True, exist_ok=True)
        id = await self.client.create_container(self.sandbox, config, self.config)
        if start:
            await self.client.start_container(id)
        return id

    async def stop(self) -> None:
        for container in await self.client.list_containers(cri.ContainerFilter(pod_sandbox_id=self.sandbox)):
            with contextlib.suppress(KubengineError):
                await self.client.stop_container(container.id, 0)
        await self.client.stop_pod_sandbox(self.sandbox)

    async def remove(self) -> None:
        with contextlib.suppress(KubengineError):
            await self.stop()
            await self.client.remove_pod_sandbox(self.sandbox)
