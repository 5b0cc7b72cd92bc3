"""Serves the whole CRI and its states without processes: thousands of pods at next to no cost.

For tests of what is above the runtime, and for benches that must not measure containers. Annotations
let containers end without anybody stopping them; each may be on the container, on the sandbox for all of
its containers, or on the sandbox with `.NAME` appended for the container of that name:

    runtime.kubengine.dev/exit-after      2s, 150ms: it ends this long after its start
    runtime.kubengine.dev/exit-code       with this code (0)
    runtime.kubengine.dev/exit-reason     and this reason, such as OOMKilled
    runtime.kubengine.dev/stop-after      it needs this long to obey a stop (0s)
    runtime.kubengine.dev/start-error     StartContainer fails with this text
    runtime.kubengine.dev/exec-exit-code  what its ExecSync answers (0)
    runtime.kubengine.dev/ip              on the sandbox: the pod's address
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.api.duration import Duration
from engine.api.errors import InvalidInput, Refused
from engine.runtime.image_service import ImageService
from engine.runtime.objects.backend import ExecResult, Listener
from engine.runtime.objects.records import RUNNING, Records, RuntimeContainer, Sandbox
from engine.runtime.objects.references import normalised
from engine.runtime.server import CriServer
from engine.runtime.service import RuntimeService
from engine.wire import cri_v1_pb2 as cri

PREFIX = "runtime.kubengine.dev/"
KILLED, TERMINATED = 137, 143


class HollowImages:
    """Succeed at every pull; derive sizes from the name, always the same for one name."""

    def __init__(self) -> None:
        self._images: dict[str, cri.Image] = {}

    def add(self, reference: str, *, size: int | None = None, pinned: bool = False) -> cri.Image:
        name = normalised(reference)
        digest = hashlib.sha256(name.encode()).hexdigest()
        image = cri.Image(
            id=f"sha256:{digest}",
            repo_tags=[name] if "@" not in name else [],
            repo_digests=[f"{name.partition('@')[0].rpartition(':')[0] or name}@sha256:{digest}"],
            size=(1 << 20) + int(digest[:6], 16) if size is None else size,
            uid=cri.Int64Value(value=0),
            pinned=pinned,
        )
        self._images[image.id] = image
        return image

    def resolve(self, reference: str) -> cri.Image | None:
        found = self._images.get(reference) or self._images.get(f"sha256:{reference}")
        if found is None:
            name = normalised(reference)
            found = self._images.get("sha256:" + hashlib.sha256(name.encode()).hexdigest())
        if found is None:
            found = next((image for image in self._images.values() if name in image.repo_digests), None)
        return found

    def list(self) -> Sequence[cri.Image]:
        return list(self._images.values())

    async def pull(self, reference: str) -> cri.Image:
        return self.resolve(reference) or self.add(reference)

    async def remove(self, reference: str) -> None:
        image = self.resolve(reference)
        if image is not None:
            del self._images[image.id]

    def usage(self) -> tuple[str, int, int]:
        return "/", sum(image.size for image in self._images.values()), len(self._images)

    def info(self, image_id: str) -> dict[str, str]:
        return {"info": json.dumps({"id": image_id, "hollow": True})}


class HollowCommands:
    """Run no command; end each one as its annotations say."""

    async def exec_sync(
        self, container: RuntimeContainer, command: Sequence[str], timeout: float | None
    ) -> ExecResult:
        return ExecResult(b"", b"", _integer(container, "exec-exit-code"))


class HollowBackend:
    """Represent containers by a state and possibly a timer."""

    name = "kubengine-hollow"

    def __init__(self, *, pod_ip: str = "127.0.0.1") -> None:
        self.images = HollowImages()
        self.commands = HollowCommands()
        self._pod_ip = pod_ip
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._listener: Listener | None = None

    async def start(self, records: Records, listener: Listener) -> None:
        self._listener = listener

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def run_sandbox(self, sandbox: Sandbox) -> None:
        sandbox.ips = [sandbox.config.annotations.get(PREFIX + "ip", self._pod_ip)]

    async def stop_sandbox(self, sandbox: Sandbox) -> None:
        pass

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        pass

    async def create_container(self, container: RuntimeContainer, image: cri.Image) -> None:
        _seconds(container, "exit-after")
        _integer(container, "exit-code")

    async def start_container(self, container: RuntimeContainer) -> None:
        error = _annotation(container, "start-error")
        if error:
            raise Refused(error, subject=f"container {container.id}")
        security = container.config.linux.security_context
        container.user = cri.ContainerUser(
            linux=cri.LinuxContainerUser(uid=security.run_as_user.value, gid=security.run_as_group.value)
        )
        lifetime = _seconds(container, "exit-after")
        if lifetime is not None:
            code = _integer(container, "exit-code")
            self._end_later(container, lifetime, code, _annotation(container, "exit-reason"))

    async def stop_container(self, container: RuntimeContainer, grace: float) -> None:
        delay = _seconds(container, "stop-after") or 0.0
        if delay:
            await asyncio.sleep(min(delay, grace))
        if container.state == RUNNING:
            self._end(container, TERMINATED if delay <= grace and grace > 0 else KILLED, "")

    async def remove_container(self, container: RuntimeContainer) -> None:
        self._cancel(container)

    async def reopen_log(self, container: RuntimeContainer) -> None:
        pass

    async def update_resources(
        self, container: RuntimeContainer, wanted: cri.LinuxContainerResources
    ) -> None:
        container.config.linux.resources.MergeFrom(wanted)

    async def container_stats(self, containers: Sequence[RuntimeContainer]) -> list[cri.ContainerStats]:
        now = time.time_ns()
        found = [
            cri.ContainerStats(
                attributes=cri.ContainerAttributes(
                    id=container.id,
                    metadata=container.config.metadata,
                    labels=container.config.labels,
                    annotations=container.config.annotations,
                ),
                cpu=cri.CpuUsage(
                    timestamp=now,
                    usage_core_nano_seconds=cri.UInt64Value(value=0),
                    usage_nano_cores=cri.UInt64Value(value=0),
                ),
                memory=cri.MemoryUsage(timestamp=now, working_set_bytes=cri.UInt64Value(value=1 << 20)),
                writable_layer=cri.FilesystemUsage(
                    timestamp=now, used_bytes=cri.UInt64Value(value=0), inodes_used=cri.UInt64Value(value=0)
                ),
            )
            for container in containers
        ]
        for container, stats in zip(containers, found, strict=True):
            if container.state != RUNNING:
                stats.ClearField("cpu")
                stats.ClearField("memory")
        return found

    async def sandbox_stats(self, sandbox: Sandbox) -> cri.LinuxPodSandboxStats:
        now = time.time_ns()
        running = sum(c.state == RUNNING for c in sandbox.containers.values())
        return cri.LinuxPodSandboxStats(
            cpu=cri.CpuUsage(timestamp=now, usage_core_nano_seconds=cri.UInt64Value(value=0)),
            memory=cri.MemoryUsage(timestamp=now, working_set_bytes=cri.UInt64Value(value=running << 20)),
            process=cri.ProcessUsage(timestamp=now, process_count=cri.UInt64Value(value=running)),
        )

    def info(self, record: Sandbox | RuntimeContainer) -> dict[str, str]:
        return {"info": json.dumps({"pid": 0, "hollow": True})}

    def _end_later(self, container: RuntimeContainer, delay: float, code: int, reason: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[container.id] = loop.call_later(delay, self._end, container, code, reason)

    def _end(self, container: RuntimeContainer, code: int, reason: str) -> None:
        self._cancel(container)
        assert self._listener is not None
        self._listener.container_exited(container, exit_code=code, finished_at=time.time_ns(), reason=reason)

    def _cancel(self, container: RuntimeContainer) -> None:
        timer = self._timers.pop(container.id, None)
        if timer is not None:
            timer.cancel()


class HollowRuntime:
    """Serve a hollow runtime on a unix socket: `async with HollowRuntime(path) as runtime: …`."""

    def __init__(
        self, socket: Path | str, *, pod_ip: str = "127.0.0.1", cgroup_driver: str = "cgroupfs"
    ) -> None:
        self.backend = HollowBackend(pod_ip=pod_ip)
        self.service = RuntimeService(self.backend, cgroup_driver=cgroup_driver)
        services = {"RuntimeService": self.service, "ImageService": ImageService(self.backend.images)}
        self._server = CriServer(Path(socket), services)
        self.socket = self._server.socket

    @property
    def images(self) -> HollowImages:
        return self.backend.images

    async def start(self) -> None:
        await self.service.start()
        await self._server.start()

    async def stop(self) -> None:
        await self.service.stop()
        await self._server.stop()

    async def purge(self) -> None:
        """Do the same as `stop`: nothing is left behind."""
        await self.stop()

    async def __aenter__(self) -> HollowRuntime:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return calls, errors, bytes_in and bytes_out of each method called since the start."""
        return {name: asdict(count) for name, count in self._server.counts.items() if count.calls}

    def end_container(self, container_id: str, *, exit_code: int, reason: str = "") -> None:
        """End a running container now, as if it had exited by itself."""
        self.backend._end(self.service.records.container(container_id), exit_code, reason)


def _annotation(container: RuntimeContainer, key: str) -> str:
    own: Any = container.config.annotations
    pods: Any = container.sandbox.config.annotations
    name = PREFIX + key
    return own.get(name) or pods.get(f"{name}.{container.config.metadata.name}") or pods.get(name) or ""


def _seconds(container: RuntimeContainer, key: str) -> float | None:
    text = _annotation(container, key)
    try:
        return float(Duration.parse(text)) if text else None
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=f"annotation {PREFIX}{key}") from None


def _integer(container: RuntimeContainer, key: str) -> int:
    text = _annotation(container, key)
    try:
        return int(text or 0)
    except ValueError:
        raise InvalidInput(
            f"expected an integer, got {text!r}", subject=f"annotation {PREFIX}{key}"
        ) from None
