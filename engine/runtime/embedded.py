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
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.runtime import cdi
from engine.runtime.image_service import ImageService
from engine.runtime.processes import ProcessBackend, RuntimeCgroups
from engine.runtime.server import CriServer
from engine.runtime.service import RuntimeService
from engine.runtime.streaming.server import StreamingServer
from engine.wire import cri_v1_pb2 as cri


@dataclass(frozen=True)
class RuntimeNetwork:
    """Name the network of the runtime.

    `pod_cidr` is the pods' subnet, a free one by default. `streaming_port` is the port on 127.0.0.1 that
    serves Exec, Attach and PortForward, a free one by default.
    """

    pod_cidr: str | None = None
    streaming_port: int = 0


USUAL_CGROUPS, USUAL_NETWORK = RuntimeCgroups(), RuntimeNetwork()


class EmbeddedRuntime:
    """Serve a CRI runtime on `socket`.

    `root` holds images and writable layers, `state` (preferably below /run) the running objects. `archives`
    is a directory of image archives in which PullImage looks. Without `overlay` layers are copied. Raise
    Refused if the user is not root or another runtime uses the state directory or the socket.
    """

    def __init__(
        self,
        *,
        socket: Path | str,
        root: Path | str,
        state: Path | str,
        cgroups: RuntimeCgroups = USUAL_CGROUPS,
        network: RuntimeNetwork = USUAL_NETWORK,
        archives: Path | None = None,
        overlay: bool = True,
        cdi_directories: Sequence[Path] = cdi.DIRECTORIES,
    ) -> None:
        self.processes = ProcessBackend(
            root=Path(root),
            state=Path(state),
            cgroups=cgroups,
            pod_cidr=network.pod_cidr,
            archives=archives,
            overlay=overlay,
            cdi_directories=cdi_directories,
        )
        streaming = StreamingServer(self.processes.commands, port=network.streaming_port)
        self.service = RuntimeService(self.processes, cgroup_driver=cgroups.driver, streaming=streaming)
        services = {"RuntimeService": self.service, "ImageService": ImageService(self.processes.images)}
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
        await self.processes.remove_everything()

    async def import_image(self, archive: Path) -> list[str]:
        """Import the images of `archive` into the store and return their ids."""
        stored = await asyncio.to_thread(self.processes.images.import_archive, archive)
        return [image.id for image in stored]

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return calls, errors, bytes_in and bytes_out of each method called since the start."""
        return {name: asdict(count) for name, count in self._server.counts.items() if count.calls}
