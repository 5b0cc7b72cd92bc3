"""Define the interface between the CRI service and the backend that runs containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.runtime.objects.records import Records, RuntimeContainer, Sandbox
from engine.wire import cri_v1_pb2 as cri


class ExecResult(NamedTuple):
    stdout: bytes
    stderr: bytes
    exit_code: int


class Images(Protocol):
    """Store images. References are names, tags, digests or ids."""

    def resolve(self, reference: str) -> cri.Image | None: ...

    def list(self) -> Sequence[cri.Image]: ...

    async def pull(self, reference: str) -> cri.Image:
        """Pull an image. Raise NoSuchObject if it is not available."""

    async def remove(self, reference: str) -> None:
        """Remove an image; a missing one is not an error."""

    def usage(self) -> tuple[str, int, int]:
        """Return the mount point (a path on the file system), bytes and inodes used."""

    def info(self, image_id: str) -> dict[str, str]:
        """Return verbose facts: values are JSON."""


class Listener(Protocol):
    """Receive what happens in the backend outside of calls."""

    def container_exited(
        self, container: RuntimeContainer, *, exit_code: int, finished_at: int, reason: str, message: str = ""
    ) -> None: ...

    def sandbox_died(self, sandbox: Sandbox) -> None: ...


class Commands(Protocol):
    """Run commands in containers."""

    async def exec_sync(
        self, container: RuntimeContainer, command: Sequence[str], timeout: float | None
    ) -> ExecResult:
        """Run a command. Raise TimedOut after `timeout` seconds, with the command and its children killed."""


class Backend(Protocol):
    """Run sandboxes and containers; the service checks states and names before it calls."""

    name: str

    @property
    def images(self) -> Images: ...

    @property
    def commands(self) -> Commands: ...

    async def start(self, records: Records, listener: Listener) -> None:
        """Fill `records` with what survived from before."""

    async def stop(self) -> None:
        """Release resources; containers keep running."""

    async def run_sandbox(self, sandbox: Sandbox) -> None: ...

    async def stop_sandbox(self, sandbox: Sandbox) -> None: ...

    async def remove_sandbox(self, sandbox: Sandbox) -> None: ...

    async def create_container(self, container: RuntimeContainer, image: cri.Image) -> None: ...

    async def start_container(self, container: RuntimeContainer) -> None:
        """Start the container and set `pid` and `user`. Raise Refused with a reason for the user."""

    async def stop_container(self, container: RuntimeContainer, grace: float) -> None:
        """Stop the container; return when `container_exited` has been called."""

    async def remove_container(self, container: RuntimeContainer) -> None: ...

    async def reopen_log(self, container: RuntimeContainer) -> None: ...

    async def update_resources(
        self, container: RuntimeContainer, wanted: cri.LinuxContainerResources
    ) -> None: ...

    async def container_stats(self, containers: Sequence[RuntimeContainer]) -> list[cri.ContainerStats]: ...

    async def sandbox_stats(self, sandbox: Sandbox) -> cri.LinuxPodSandboxStats: ...

    def info(self, record: Sandbox | RuntimeContainer) -> dict[str, str]:
        """Return verbose facts: values are JSON."""
