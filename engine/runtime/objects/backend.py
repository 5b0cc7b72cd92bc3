"""What the CRI service asks of whatever runs containers, and what it is told back."""

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
    """An image store. References are names, tags, digests or ids."""

    def resolve(self, reference: str) -> cri.Image | None: ...

    def list(self) -> Sequence[cri.Image]: ...

    async def pull(self, reference: str) -> cri.Image:
        """Raises Missing where nobody has it."""

    async def remove(self, reference: str) -> None:
        """Removing what isn't there is no error."""

    def usage(self) -> tuple[str, int, int]:
        """Mount point (a path on the file system), bytes and inodes used."""

    def info(self, image_id: str) -> dict[str, str]:
        """Verbose facts: values are JSON."""


class Listener(Protocol):
    """Told by the backend what happened without a call."""

    def container_exited(
        self, container: RuntimeContainer, *, exit_code: int, finished_at: int, reason: str, message: str = ""
    ) -> None: ...

    def sandbox_died(self, sandbox: Sandbox) -> None: ...


class Commands(Protocol):
    """Runs commands in containers."""

    async def exec_sync(
        self, container: RuntimeContainer, command: Sequence[str], timeout: float | None
    ) -> ExecResult:
        """Raises TimedOut after `timeout` seconds, with the command and its children killed."""


class Backend(Protocol):
    """Runs sandboxes and containers; the service has checked states and names before it calls."""

    name: str

    @property
    def images(self) -> Images: ...

    @property
    def commands(self) -> Commands: ...

    async def start(self, records: Records, listener: Listener) -> None:
        """Fill `records` with what survived from before."""

    async def stop(self) -> None:
        """Let go; containers go on running."""

    async def run_sandbox(self, sandbox: Sandbox) -> None: ...

    async def stop_sandbox(self, sandbox: Sandbox) -> None: ...

    async def remove_sandbox(self, sandbox: Sandbox) -> None: ...

    async def create_container(self, container: RuntimeContainer, image: cri.Image) -> None: ...

    async def start_container(self, container: RuntimeContainer) -> None:
        """Sets `pid` and `user`. Raises Refused with the reason that the user should read."""

    async def stop_container(self, container: RuntimeContainer, grace: float) -> None:
        """Returns when `container_exited` has been told."""

    async def remove_container(self, container: RuntimeContainer) -> None: ...

    async def reopen_log(self, container: RuntimeContainer) -> None: ...

    async def update_resources(
        self, container: RuntimeContainer, wanted: cri.LinuxContainerResources
    ) -> None: ...

    async def container_stats(self, containers: Sequence[RuntimeContainer]) -> list[cri.ContainerStats]: ...

    async def sandbox_stats(self, sandbox: Sandbox) -> cri.LinuxPodSandboxStats: ...

    def info(self, record: Sandbox | RuntimeContainer) -> dict[str, str]:
        """Verbose facts: values are JSON."""
