"""Gives access to a pod's containers from outside: logs, commands, attach, port forwarding, checkpoints.

Names come from a request. The rules for looking them up and the error texts are those of kubelet v1.36
(`pkg/kubelet/server/server.go`, `kubelet_pods.go`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine.api.errors import InvalidInput, KubengineError, NotFound, Refused
from engine.api.pod import Pod
from engine.api.timestamps import rfc3339
from engine.cri.client import RuntimeClient
from engine.cri.records import ContainerRecord, PodRecord
from engine.node.logs.container_logs import LogOptions, logged_container, spec_of
from engine.node.logs.log_reader import LogWatch, read_log


class Unknown(InvalidInput):
    """Raised if there is no such pod or container."""

    grpc_status = "NOT_FOUND"


class ContainerStreams(msgspec.Struct, frozen=True):
    """Hold the streams of a session; a terminal has one output."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class ContainerAccess:
    """Look up containers. `pods` are those that the node knows, `held` returns what the runtime
    holds of one.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        *,
        pods: Callable[[], Sequence[Pod]],
        held: Callable[[str], PodRecord],
        pod_logs: Path,
        checkpoints: Path,
    ) -> None:
        self._runtime = runtime
        self._pods = pods
        self._held = held
        self._pod_logs = pod_logs
        self._checkpoints = checkpoints
        self._watch = LogWatch()

    def pod(self, namespace: str, name: str) -> Pod:
        """Return the pod, the newest of this name: its predecessor may still be ending. Raises Unknown."""
        for pod in reversed(self._pods()):
            if pod.metadata.name == name and (pod.metadata.namespace or "default") == namespace:
                return pod
        raise Unknown("pod does not exist")

    async def logs(
        self, namespace: str, name: str, container: str, options: LogOptions
    ) -> AsyncGenerator[bytes, None]:
        """Open the log of a container. Raises Unknown, and InvalidInput if there is no log yet."""
        try:
            pod = self.pod(namespace, name)
        except Unknown:
            raise Unknown(f'pod "{name}" does not exist') from None
        if spec_of(pod, container) is None:
            raise Unknown(f'container "{container}" not found in pod "{name}"')
        wanted = logged_container(pod, container, previous=options.previous)
        uid = pod.metadata.uid
        record = self._record(uid, wanted)
        if record is None or not record.log_path:
            raise InvalidInput(f"unable to retrieve container logs for {wanted}")

        def running() -> bool:
            now = self._record(uid, wanted)
            return now is not None and now.running

        path = Path(record.log_path)
        pieces = read_log(path, self._pod_logs, options, running=running, watch=self._watch)
        await anext(pieces)
        return pieces

    async def exec_url(
        self, namespace: str, name: str, container: str, command: list[str], streams: ContainerStreams
    ) -> str:
        """Return the URL at which the runtime waits for the streams. Raises Unknown, or the
        runtime's error.
        """
        running = self._running(self.pod(namespace, name), container)
        with _as_unknown():
            return await self._runtime.exec_url(
                running.id,
                command,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                tty=streams.tty,
            )

    async def attach_url(
        self, namespace: str, name: str, uid: str, container: str, streams: ContainerStreams
    ) -> str:
        """Return the URL for attaching, like `exec_url`; the container's spec decides whether there is a
        terminal.
        """
        pod = self.pod(namespace, name)
        full_name = f"{name}_{namespace}"
        record = self._held(pod.metadata.uid).container(container)
        spec = spec_of(pod, container)
        if record is None or not record.running or spec is None:
            raise Refused(f"container {container} not found in pod {full_name}")
        if uid and uid != pod.metadata.uid:
            raise Refused(f"pod {full_name} not found")
        with _as_unknown():
            return await self._runtime.attach_url(
                record.id,
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr and not spec.tty,
                tty=spec.tty,
            )

    async def port_forward_url(self, namespace: str, name: str, uid: str, ports: list[int]) -> str:
        """Return the URL for port forwarding; `ports` may be empty if each connection names its own."""
        pod = self.pod(namespace, name)
        if uid and uid != pod.metadata.uid:
            raise Unknown("pod not found")
        sandbox = self._held(pod.metadata.uid).sandbox
        if sandbox is None or not sandbox.ready:
            raise Refused(f'pod not found ("{name}_{namespace}")')
        with _as_unknown():
            return await self._runtime.port_forward_url(sandbox.id, ports)

    async def run(self, namespace: str, name: str, container: str, command: list[str]) -> bytes:
        """Run a command and return both outputs. Raises Refused with the output if it fails."""
        running = self._running(self.pod(namespace, name), container)
        result = await self._runtime.exec_sync(running.id, command, 0)
        printed = result.stdout + result.stderr
        if result.exit_code:
            words = printed.decode(errors="replace")
            raise Refused(f"command '{' '.join(command)}' exited with {result.exit_code}: {words}")
        return printed

    async def checkpoint(self, namespace: str, name: str, container: str, timeout_seconds: int) -> Path:
        """Checkpoint a container and return the archive's path. Raises Unknown, or Refused with what went
        wrong.
        """
        pod = self.pod(namespace, name)
        if spec_of(pod, container) is None:
            raise Unknown(f"container {container} does not exist")
        file = f"checkpoint-{name}_{namespace}-{container}-{rfc3339(time.time())}.tar"
        archive = self._checkpoints / file
        try:
            running = self._running(pod, container)
            self._checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
            await self._runtime.checkpoint_container(running.id, str(archive), timeout_seconds)
        except (KubengineError, OSError) as error:
            why = (error.status_text if isinstance(error, Refused) else "") or error
            raise Refused(f"checkpointing of {namespace}/{name}/{container} failed ({why})") from error
        return archive

    def _running(self, pod: Pod, container: str) -> ContainerRecord:
        record = self._held(pod.metadata.uid).container(container)
        if record is None or not record.running:
            raise Refused(f'container not found ("{container}")')
        return record

    def _record(self, uid: str, container_id: str) -> ContainerRecord | None:
        return next((each for each in self._held(uid).containers if each.id == container_id), None)


@contextmanager
def _as_unknown() -> Iterator[None]:
    """Report what the runtime no longer knows as unknown."""
    try:
        yield
    except NotFound as error:
        raise Unknown(str(error)) from error
