"""Holds what the runtime reports about a pod, in small values.

Pure: built from CRI messages, compared and merged; nothing here calls the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from sys import intern

import msgspec

from engine.api.qos import SOURCE_ANNOTATION
from engine.api.quantity import decimal
from engine.cri import labels
from engine.wire import cri_v1_pb2 as cri

CREATED = cri.CONTAINER_CREATED
RUNNING = cri.CONTAINER_RUNNING
EXITED = cri.CONTAINER_EXITED
UNKNOWN = cri.CONTAINER_UNKNOWN

NANO = 1e-9
CANCELED = "context canceled"
"""Part of the messages of containerd and CRI-O for a call whose caller is gone; the embedded runtime sends
none.
"""

_STAGES: dict[int, int] = {CREATED: 0, UNKNOWN: 1, RUNNING: 1, EXITED: 2}
"""The states of a container in the order of its life; a report of an earlier state is outdated."""


class ContainerRecord(msgspec.Struct, frozen=True, gc=False):
    """Hold one container of the runtime. Times are Unix seconds, 0 if they have not come."""

    id: str
    name: str
    sandbox_id: str
    state: int
    attempt: int
    created_at: float
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    image: str = ""
    image_id: str = ""
    hash: str = ""
    log_path: str = ""
    message_path: str = ""
    grace_seconds: int | None = None
    resources: tuple[int, ...] | None = None
    """CPU shares, quota, period and memory limit, if the runtime reports them."""
    user: tuple[int, ...] | None = None
    """uid, gid and supplemental groups, if the runtime reports them."""
    stop_signal: int = cri.RUNTIME_DEFAULT
    """A value of CRI's Signal; the default if the runtime does not report it."""
    image_volumes: tuple[tuple[str, str], ...] = ()
    """The mounted image volumes: the path in the container, and the image as the runtime identifies it."""

    @property
    def running(self) -> bool:
        return self.state == RUNNING

    @property
    def stage(self) -> int:
        """Return the container's stage of life. An interrupted start counts as an end."""
        return _STAGES[EXITED] if self.finished_at else _STAGES[self.state]


class SandboxRecord(msgspec.Struct, frozen=True, gc=False):
    """Hold one pod sandbox. `ips` are its addresses, empty in the host's network."""

    id: str
    ready: bool
    attempt: int
    created_at: float
    ips: tuple[str, ...] = ()
    host_network: bool = False
    source: str = ""
    """The source of its pod: `file` for a manifest, `api` for an API server."""
    handler: str = ""
    """The runtime handler, '' for the default one."""


class PodRecord(msgspec.Struct, gc=False):
    """Hold everything that the runtime holds of one pod; both lists are newest first."""

    uid: str
    name: str
    namespace: str
    sandboxes: list[SandboxRecord] = msgspec.field(default_factory=list)
    containers: list[ContainerRecord] = msgspec.field(default_factory=list)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def sandbox(self) -> SandboxRecord | None:
        """Return the newest sandbox."""
        return self.sandboxes[0] if self.sandboxes else None

    def container(self, name: str) -> ContainerRecord | None:
        """Return the newest container of that name."""
        for container in self.containers:
            if container.name == name:
                return container
        return None

    def previous(self, name: str) -> ContainerRecord | None:
        """Return the container of that name before the newest."""
        newest = self.container(name)
        for container in self.containers:
            if container.name == name and container is not newest:
                return container
        return None

    @property
    def may_run(self) -> list[ContainerRecord]:
        """Return the containers that run, and those whose state the runtime does not know."""
        return [c for c in self.containers if c.state in (RUNNING, UNKNOWN)]

    @property
    def alive(self) -> bool:
        """Return whether any of its containers runs, or may run."""
        return bool(self.may_run) or any(sandbox.ready for sandbox in self.sandboxes)

    @property
    def empty(self) -> bool:
        return not self.sandboxes and not self.containers

    def copy(self) -> PodRecord:
        """Return a record that stays as this one is now."""
        return PodRecord(self.uid, self.name, self.namespace, list(self.sandboxes), list(self.containers))

    def put_container(self, record: ContainerRecord) -> bool:
        """Insert or replace a container; a state never goes back. Returns whether anything changed."""
        for index, known in enumerate(self.containers):
            if known.id == record.id:
                if known == record or record.stage < known.stage:
                    return False
                self.containers[index] = record
                return True
        self.containers.append(record)
        self.containers.sort(key=lambda c: (c.created_at, c.attempt), reverse=True)
        return True

    def put_sandbox(self, record: SandboxRecord) -> bool:
        """Insert or replace a sandbox; a stopped sandbox never becomes ready again."""
        for index, known in enumerate(self.sandboxes):
            if known.id == record.id:
                if known == record or (record.ready and not known.ready):
                    return False
                self.sandboxes[index] = record
                return True
        self.sandboxes.append(record)
        self.sandboxes.sort(key=lambda s: s.created_at, reverse=True)
        return True

    def drop(self, ids: set[str]) -> bool:
        """Forget what the runtime no longer has."""
        before = len(self.sandboxes) + len(self.containers)
        self.sandboxes = [s for s in self.sandboxes if s.id not in ids]
        self.containers = [c for c in self.containers if c.id not in ids]
        return len(self.sandboxes) + len(self.containers) != before


def pod_of(found: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return (uid, name, namespace) from a kubelet's labels, None for containers of others."""
    uid = found.get(labels.POD_UID)
    return (uid, found.get(labels.POD_NAME, ""), found.get(labels.POD_NAMESPACE, "")) if uid else None


def container_record(
    status: cri.ContainerStatus, sandbox_id: str, agent_began: float = 0.0
) -> ContainerRecord:
    """Build a record from the runtime's full status. `agent_began` is when this agent started, in
    Unix seconds.
    """
    annotations = status.annotations
    grace = annotations.get(labels.POD_GRACE, "")
    message_at = annotations.get(labels.MESSAGE_PATH)
    linux = status.resources.linux if status.HasField("resources") else None
    return ContainerRecord(
        id=status.id,
        name=intern(status.labels.get(labels.CONTAINER_NAME, status.metadata.name)),
        sandbox_id=sandbox_id,
        state=CREATED if _start_was_cut_short(status, agent_began) else status.state,
        attempt=_number(annotations.get(labels.RESTART_COUNT, ""), status.metadata.attempt),
        created_at=status.created_at * NANO,
        started_at=status.started_at * NANO,
        finished_at=status.finished_at * NANO if status.finished_at else 0.0,
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        image=intern(status.image.user_specified_image or status.image.image),
        image_id=intern(status.image_ref),
        hash=intern(annotations.get(labels.HASH, "")),
        log_path=status.log_path,
        message_path=next((m.host_path for m in status.mounts if m.container_path == message_at), ""),
        grace_seconds=decimal(grace),
        resources=_shared((linux.cpu_shares, linux.cpu_quota, linux.cpu_period, linux.memory_limit_in_bytes))
        if linux is not None
        else None,
        user=_user(status),
        stop_signal=status.stop_signal,
        image_volumes=tuple((m.container_path, m.image.image) for m in status.mounts if m.HasField("image")),
    )


def _user(status: cri.ContainerStatus) -> tuple[int, ...] | None:
    if not (status.HasField("user") and status.user.HasField("linux")):
        return None
    user = status.user.linux
    return _shared((user.uid, user.gid, *user.supplemental_groups))


@lru_cache(256)
def _shared(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one object for equal numbers, since many containers come from one template."""
    return numbers


def _start_was_cut_short(status: cri.ContainerStatus, agent_began: float) -> bool:
    """Tell whether a dying agent cut off the container's start.

    Such an agent takes the call to StartContainer with it, and the runtime reports the container as exited
    although it never ran. The next agent starts it, which is not a restart. A container that could not be
    started has another message than a call that lost its caller. One that the runtime has lost track of has
    no times at all and may well have run.
    """
    never_ran = status.state == EXITED and not status.started_at
    if status.message and CANCELED not in status.message:
        return False
    return never_ran and 0 < status.created_at * NANO < agent_began


def sandbox_record(status: cri.PodSandboxStatus) -> SandboxRecord:
    """Build a record from the runtime's full status."""
    network = status.network
    ips = [network.ip, *(extra.ip for extra in network.additional_ips)] if network.ip else []
    return SandboxRecord(
        id=status.id,
        ready=status.state == cri.SANDBOX_READY,
        attempt=status.metadata.attempt,
        created_at=status.created_at * NANO,
        ips=tuple(ips),
        host_network=status.linux.namespaces.options.network == cri.NODE,
        source=intern(status.annotations.get(SOURCE_ANNOTATION, "")),
        handler=intern(status.runtime_handler),
    )


def _number(text: str, default: int) -> int:
    number = decimal(text)
    return default if number is None else number
