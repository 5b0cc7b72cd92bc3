"""Run the embedded runtime: a small built-in CRI server for development, tests and demos.

    runtime = EmbeddedRuntime(socket=…, root=…, state=…)
    await runtime.start()
    …
    await runtime.stop()     # containers keep running; the next start adopts them
    await runtime.purge()    # or: remove everything

It is not meant for production: there is no AppArmor or SELinux, no registry, no user namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from engine.api.amounts.cpu_weight import WeightFormula
from engine.runtime import cdi
from engine.runtime.hollow import HollowBackend
from engine.runtime.image_service import ImageService
from engine.runtime.processes import ProcessBackend
from engine.runtime.server import CriServer
from engine.runtime.service import RuntimeService
from engine.runtime.streaming.server import StreamingServer
from engine.wire import cri_v1_pb2 as cri


class EmbeddedRuntime:
    """Serve a CRI runtime on `socket`.

    `root` holds images and writable layers, `state` (preferably below /run) the running objects. With
    `hollow` there are no processes and neither directory is used. `archives` is a directory of image
    archives in which PullImage looks; `pod_cidr` the pods' subnet (a free one by default); `cpu_weight` the
    formula of cgroup v2 weights, which should match that of the pods' cgroups; `streaming_port` the port on
    127.0.0.1 that serves Exec, Attach and PortForward (a free one by default). Raise Refused if the user is
    not root (unless hollow) or another runtime uses the state directory or the socket.
    """

    def __init__(
        self,
        *,
        socket: Path | str,
        root: Path | str,
        state: Path | str,
        cgroup_driver: str = "cgroupfs",
        hollow: bool = False,
        archives: Path | None = None,
        pod_cidr: str | None = None,
        cgroup_mount: Path = Path("/sys/fs/cgroup"),
        overlay: bool = True,
        cdi_directories: Sequence[Path] = cdi.DIRECTORIES,
        cpu_weight: WeightFormula = "linear",
        streaming_port: int = 0,
    ) -> None:
        self._processes: ProcessBackend | None = None
        streaming: StreamingServer | None = None
        if not hollow:
            self._processes = ProcessBackend(
                root=Path(root),
                state=Path(state),
                cgroup_driver=cgroup_driver,
                cgroup_mount=cgroup_mount,
                pod_cidr=pod_cidr,
                archives=archives,
                overlay=overlay,
                cdi_directories=cdi_directories,
                cpu_weight=cpu_weight,
            )
            streaming = StreamingServer(self._processes.commands, port=streaming_port)
        backend = self._processes or HollowBackend()
        self.service = RuntimeService(backend, cgroup_driver=cgroup_driver, streaming=streaming)
        services = {"RuntimeService": self.service, "ImageService": ImageService(backend.images)}
        self._server = CriServer(Path(socket), services)
        self.socket = self._server.socket
        self._serving = False

    async def start(self) -> None:
        await self.service.start()
        try:
            await self._server.start()
        except BaseException:
            await self.service.stop()
            raise
        self._serving = True

    async def stop(self) -> None:
        """Stop serving. Containers keep running."""
        self._serving = False
        await self.service.stop()
        await self._server.stop()

    async def purge(self) -> None:
        """Stop and remove every pod, then the network, cgroups and files of the runtime.

        If a pod cannot be removed, continue with the others, keep the files, and raise its error at the end.
        """
        if not self._serving:
            await self.service.start()
        results = await asyncio.gather(
            *(
                self.service.remove_pod_sandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
                for sandbox in list(self.service.records.sandboxes)
            ),
            return_exceptions=True,
        )
        await self.stop()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if self._processes is not None:
            await self._processes.remove_everything()

    async def import_image(self, archive: Path) -> list[str]:
        """Import the images of `archive` into the store and return their ids."""
        if self._processes is None:
            return []
        stored = await asyncio.to_thread(self._processes.images.import_archive, archive)
        return [image.id for image in stored]

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return calls, errors, bytes_in and bytes_out of each method called since the start."""
        return {name: asdict(count) for name, count in self._server.counts.items() if count.calls}
