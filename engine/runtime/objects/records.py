"""Record a runtime's sandboxes, containers, reserved names and their CRI messages.

Pure state: nothing here touches the system. List entries are kept in their wire form until the object
changes, because a node agent lists all of them far more often than they change.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from engine.runtime.objects.failures import Exists, NoSuchObject
from engine.wire import cri_v1_pb2 as cri

T = TypeVar("T")

STREAM_CHUNK = 500

READY = cri.SANDBOX_READY
NOT_READY = cri.SANDBOX_NOTREADY
CREATED = cri.CONTAINER_CREATED
RUNNING = cri.CONTAINER_RUNNING
EXITED = cri.CONTAINER_EXITED


@dataclass(slots=True, eq=False)
class Sandbox:
    """Record a pod sandbox. Times are Unix nanoseconds; `pid` and `start_time` (clock ticks) identify the
    process that holds its namespaces, 0 if there is none.
    """

    id: str
    config: cri.PodSandboxConfig
    created_at: int
    handler: str = ""
    state: cri.PodSandboxState = READY
    ips: list[str] = field(default_factory=list)
    pid: int = 0
    start_time: int = 0
    containers: dict[str, RuntimeContainer] = field(default_factory=dict)
    wire: bytes | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        meta = self.config.metadata
        return f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"

    def entry(self) -> cri.PodSandbox:
        return cri.PodSandbox(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.handler,
        )

    def status(self) -> cri.PodSandboxStatus:
        ips = self.ips if self.state == READY else []
        return cri.PodSandboxStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            network=cri.PodSandboxNetworkStatus(
                ip=ips[0] if ips else "", additional_ips=[cri.PodIP(ip=ip) for ip in ips[1:]]
            ),
            linux=cri.LinuxPodSandboxStatus(
                namespaces=cri.Namespace(
                    options=self.config.linux.security_context.namespace_options,
                )
            ),
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.handler,
        )


@dataclass(slots=True, eq=False)
class RuntimeContainer:
    """Record a container. Times are Unix nanoseconds (0: not yet). `pid` is its first process, `shim` the
    process that watches it, each with its start time in clock ticks, 0 if there is none.
    """

    id: str
    sandbox: Sandbox
    config: cri.ContainerConfig
    created_at: int
    image_id: str = ""
    image_ref: str = ""
    image_name: str = ""
    state: cri.ContainerState = CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    pid: int = 0
    start_time: int = 0
    shim: int = 0
    shim_start_time: int = 0
    user: cri.ContainerUser | None = None
    wire: bytes | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return f"{self.config.metadata.name}_{self.sandbox.id}_{self.config.metadata.attempt}"

    @property
    def log_path(self) -> str:
        """Return the absolute path of the log file, empty if none is wanted."""
        directory = self.sandbox.config.log_directory
        if not directory or not self.config.log_path:
            return ""
        return f"{directory.rstrip('/')}/{self.config.log_path}"

    def image_spec(self) -> cri.ImageSpec:
        return cri.ImageSpec(
            image=self.image_name or self.config.image.image,
            annotations=self.config.image.annotations,
            user_specified_image=self.config.image.user_specified_image,
            runtime_handler=self.config.image.runtime_handler,
        )

    def entry(self) -> cri.Container:
        return cri.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox.id,
            metadata=self.config.metadata,
            image=self.image_spec(),
            image_ref=self.image_id,  # as containerd does in lists; image GC compares it with image ids
            image_id=self.image_id,
            state=self.state,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def status(self) -> cri.ContainerStatus:
        reason = self.reason
        if self.state == EXITED and not reason:
            reason = "Error" if self.exit_code else "Completed"
        return cri.ContainerStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            image=self.image_spec(),
            image_ref=self.image_ref,
            image_id=self.image_id,
            reason=reason,
            message=self.message,
            labels=self.config.labels,
            annotations=self.config.annotations,
            mounts=self.config.mounts,
            log_path=self.log_path,
            resources=cri.ContainerResources(linux=self.config.linux.resources),
            user=self.user,
            stop_signal=self.config.stop_signal,
        )


class Records:
    """Hold all sandboxes and containers, and their reserved names."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, RuntimeContainer] = {}
        self._names: dict[str, str] = {}

    def reserve(self, record: Sandbox | RuntimeContainer) -> None:
        """Reserve its name while it is created. Raise Exists if another has the same metadata."""
        holder = self._names.setdefault(record.name, record.id)
        if holder != record.id:
            kind = type(record).__name__.lower()
            raise Exists(f"its name {record.name!r} belongs to {holder}", subject=f"{kind} {record.id}")

    def release(self, record: Sandbox | RuntimeContainer) -> None:
        if self._names.get(record.name) == record.id:
            del self._names[record.name]

    def add_sandbox(self, sandbox: Sandbox) -> None:
        self.reserve(sandbox)
        self.sandboxes[sandbox.id] = sandbox

    def add_container(self, container: RuntimeContainer) -> None:
        self.reserve(container)
        self.containers[container.id] = container
        container.sandbox.containers[container.id] = container

    def drop_sandbox(self, sandbox: Sandbox) -> None:
        self.sandboxes.pop(sandbox.id, None)
        self.release(sandbox)

    def drop_container(self, container: RuntimeContainer) -> None:
        self.containers.pop(container.id, None)
        container.sandbox.containers.pop(container.id, None)
        self.release(container)

    def sandbox(self, identifier: str) -> Sandbox:
        """Return a sandbox by id or by a unique prefix. Raise NoSuchObject."""
        return _resolve(self.sandboxes, identifier, "sandbox")

    def container(self, identifier: str) -> RuntimeContainer:
        return _resolve(self.containers, identifier, "container")

    def select_sandboxes(self, filter: cri.PodSandboxFilter) -> Iterator[Sandbox]:
        state = filter.state.state if filter.HasField("state") else None
        selector = dict(filter.label_selector)
        for sandbox in _candidates(self.sandboxes, filter.id):
            if (state is None or sandbox.state == state) and _matches(selector, sandbox.config.labels):
                yield sandbox

    def select_containers(self, filter: cri.ContainerFilter) -> Iterator[RuntimeContainer]:
        state = filter.state.state if filter.HasField("state") else None
        selector = dict(filter.label_selector)
        for container in _candidates(self.containers, filter.id):
            if (
                (state is None or container.state == state)
                and (not filter.pod_sandbox_id or container.sandbox.id.startswith(filter.pod_sandbox_id))
                and _matches(selector, container.config.labels)
            ):
                yield container


def new_id() -> str:
    return secrets.token_hex(32)


def joined(records: Iterable[Sandbox | RuntimeContainer]) -> bytes:
    """Return the wire form of a list answer: entries under field number 1."""
    parts = []
    for record in records:
        wire = record.wire
        if wire is None:
            wire = record.wire = as_field(1, record.entry())
        parts.append(wire)
    return b"".join(parts)


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of STREAM_CHUNK, as the streaming list calls return them."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == STREAM_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def as_field(number: int, message: Message) -> bytes:
    """Encode `message` as field `number` (below 16) of an enclosing message."""
    body = message.SerializeToString()
    head = bytearray([number << 3 | 2])
    size = len(body)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + body


def _resolve(table: Mapping[str, T], identifier: str, kind: str) -> T:
    found = table.get(identifier)
    if found is not None:
        return found
    matches = [key for key in table if key.startswith(identifier)] if identifier else []
    if len(matches) != 1:
        why = f"{len(matches)} have this prefix" if matches else "not found"
        raise NoSuchObject(why, subject=f"{kind} {identifier!r}")
    return table[matches[0]]


def _candidates(table: Mapping[str, T], identifier: str) -> list[T]:
    if not identifier:
        return list(table.values())
    if identifier in table:
        return [table[identifier]]
    return [record for key, record in table.items() if key.startswith(identifier)]


def _matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())
