"""Keeps the node's view of the runtime current: its event stream, with relists as the safety net.

Without a stream, after a stream failed, or in doubt, a relist follows within a second. With a stream,
relists become rarer: the interval is the age of the stream, up to 300 s, because nothing tells when a slow
runtime has begun to send events. A relist compares ids and states, and asks for the full status only of pods
that differ. An idle node therefore costs two lists, and lists that equal the last ones are not even decoded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from engine._fast.messages.message_fields import Picker
from engine.api.errors import NotFound, Refused
from engine.cri import labels
from engine.cri.client import RuntimeClient, Undecodable, Unimplemented
from engine.cri.records import (
    NANO,
    PodRecord,
    container_record,
    pod_of,
    sandbox_record,
)
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.wire import cri_v1_pb2 as cri

log = logging.getLogger("kubengine.runtime")

RELIST_SECONDS = 1.0
RELIST_WITH_EVENTS_SECONDS = 300.0
UNHEALTHY_AFTER_SECONDS = 180.0
RETRY_SECONDS = 1.0
STREAM_SETTLED_SECONDS = 1.0
STEP_SECONDS = 600.0
"""Seconds after which a relist counts as stuck."""

EVENT_DELAY_SECONDS = 600.0
"""Seconds for which an event may wait until a busy agent reads it."""

OnChange = Callable[[str], None]
OnEvent = Callable[[cri.ContainerEventResponse], None]


_UID: Final = f"labels[{labels.POD_UID}]"
_IDENTITY: Final = [_UID, f"labels[{labels.POD_NAME}]", f"labels[{labels.POD_NAMESPACE}]"]
_SANDBOX_STATES: Final = Picker("ListPodSandboxResponse", [_UID, "id", "state"])
_CONTAINER_STATES: Final = Picker("ListContainersResponse", [_UID, "id", "state"])
_SANDBOXES: Final = Picker("ListPodSandboxResponse", [*_IDENTITY, "id", "state"])
_CONTAINERS: Final = Picker("ListContainersResponse", [*_IDENTITY, "id", "state", "pod_sandbox_id"])
_States = dict[str, tuple[str, int]]
"""Container or sandbox id → uid of its pod, and its state."""


class _Sandbox(NamedTuple):
    uid: str
    name: str
    namespace: str
    id: str
    state: int


class _Container(NamedTuple):
    uid: str
    name: str
    namespace: str
    id: str
    state: int
    sandbox_id: str


class _Listed(msgspec.Struct):
    """Hold what two lists report about one pod."""

    sandboxes: list[_Sandbox] = msgspec.field(default_factory=list)
    containers: list[_Container] = msgspec.field(default_factory=list)

    def states(self) -> dict[str, int]:
        states = {sandbox.id: int(sandbox.state == cri.SANDBOX_READY) for sandbox in self.sandboxes}
        states.update({container.id: container.state for container in self.containers})
        return states

    def identity(self) -> tuple[str, str, str] | None:
        if self.sandboxes:
            return self.sandboxes[0][:3] if self.sandboxes[0].uid else None
        return self.containers[0][:3] if self.containers and self.containers[0].uid else None


class _RelistMetrics:
    """Count under the names of the kubelet's pod lifecycle event generator, for which a relist stands
    here.
    """

    def __init__(self, registry: Registry, silent: Callable[[], float]) -> None:
        self.seconds = registry.histogram(
            "kubelet_pleg_relist_duration_seconds", "Duration of a relist of the runtime."
        )
        self.interval = registry.histogram(
            "kubelet_pleg_relist_interval_seconds", "Time from one relist of the runtime to the next."
        )
        registry.collected(
            "gauge",
            "kubelet_pleg_last_seen_seconds",
            "When the runtime was last known to answer, in Unix seconds.",
            [],
            lambda: [((), time.time() - silent())],
        )


class RuntimeWatch:
    """Hold all pods of the runtime by uid.

    `on_change(uid)` is called whenever a pod changed; `on_trouble` when the event stream broke or a relist
    failed; `on_event` with each event of the stream.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        *,
        on_change: OnChange,
        clock: Callable[[], float],
        registry: Registry,
        on_trouble: Callable[[], None] = lambda: None,
        tasks: Tasks | None = None,
        relist_seconds: float = RELIST_SECONDS,
        on_event: OnEvent | None = None,
    ) -> None:
        self._runtime = runtime
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._on_event = on_event
        self._clock = clock
        self._relist_seconds = relist_seconds
        self._began = clock()
        self._streaming = False
        self._streaming_since = 0.0
        self._listed_at = 0.0
        self._stream_lost_at = 0.0
        tasks = tasks or Tasks()
        self._following = tasks.task("runtime-events")
        self._relisting = tasks.task("runtime-relist")
        self._wake = asyncio.Event()
        self._metrics = _RelistMetrics(registry, lambda: clock() - self.last_contact())
        self._touched: dict[str, float] = {}
        """Monotonic time of the last news about a pod; lists requested earlier are older than it."""
        self._removed: dict[str, float] = {}
        """When the last object of each pod was removed lately, in seconds of the clock."""
        self._relist_timer: asyncio.TimerHandle | None = None
        self._agreed: tuple[int, int] | None = None
        """The encoded lists that matched the known state, valid while that does not change."""
        self.pods: dict[str, PodRecord] = {}
        self.last_relist = 0.0
        self.last_error = ""

    async def start(self) -> None:
        """Read the runtime once. Raises the runtime's error if it cannot be read."""
        await self.relist()
        self.follow()
        self._relisting.start(self._keep_relisting)

    def follow(self) -> None:
        """Follow the event stream only, for a caller that asks with `refresh` when it needs the view."""
        self._following.start(self._follow_events)

    async def stop(self) -> None:
        await self._following.stop()
        await self._relisting.stop()
        self._cancel_relist()

    def relist_soon(self) -> None:
        """Schedule a relist soon, because something may have happened without an event."""
        if self._relist_timer is None:
            loop = asyncio.get_running_loop()
            self._relist_timer = loop.call_later(self._relist_seconds, self._wake.set)

    def _cancel_relist(self) -> None:
        if self._relist_timer is not None:
            self._relist_timer.cancel()
            self._relist_timer = None

    def health(self) -> str:
        """Return why the view is too old to be trusted, or an empty text."""
        age = self._clock() - self.last_relist
        limit = UNHEALTHY_AFTER_SECONDS
        if self._streaming:
            limit += RELIST_WITH_EVENTS_SECONDS
        return f"the runtime was last read {age:.0f} s ago: {self.last_error}" if age > limit else ""

    def runs(self, uid: str, container: str) -> bool:
        """Tell whether the newest container of that name runs."""
        newest = self.pod(uid).container(container)
        return newest is not None and newest.running

    @property
    def streaming(self) -> bool:
        """Return whether the runtime's event stream is open."""
        return self._streaming

    def last_contact(self) -> float:
        """Return when the runtime last answered, in seconds of the clock."""
        # An open stream is contact: a runtime that dies closes it.
        return self._clock() if self._streaming else max(self.last_relist, self._stream_lost_at)

    def pod(self, uid: str) -> PodRecord:
        """Return the record of a pod; it is empty if the runtime holds nothing of it."""
        return self.pods.get(uid) or PodRecord(uid, "", "")

    async def refresh(self) -> None:
        """Relist, unless the event stream has reported each change since then. Raises the first failure."""
        stood = self._listed_at - self._streaming_since
        if self._streaming and stood > 0 and time.monotonic() - self._listed_at < relist_period(stood):
            return
        await self.relist()

    async def relist(self) -> None:
        """Relist now. Raises the first failure, after it has read every pod that can be read."""
        began = self._clock()
        if self.last_relist:
            self._metrics.interval.observe(began - self.last_relist)
        listed_at = time.monotonic()
        sandboxes, digest = await self._runtime.read_pod_sandboxes(_with_sandbox_digest)
        containers, of_containers = await self._runtime.read_containers(_with_container_digest)
        # Digests of the raw messages: the lists of a full node are decoded only when something in them moved.
        if (digest, of_containers) != self._agreed:
            changed = self._changed(_sandbox_states(sandboxes) | _container_states(containers))
            if changed:
                await self._reread_changed(_listed(sandboxes, containers, changed), listed_at)
            else:
                self._agreed = digest, of_containers
        # Events that arrived before this list was requested are part of it, and contradict nothing any
        # longer.
        self._touched = {uid: at for uid, at in self._touched.items() if at >= listed_at}
        self._removed = {uid: at for uid, at in self._removed.items() if at > began - EVENT_DELAY_SECONDS}
        self._listed_at = listed_at
        self.last_relist = self._clock()
        self.last_error = ""
        self._metrics.seconds.observe(self.last_relist - began)

    async def _reread_changed(self, found: dict[str, _Listed], listed_at: float) -> None:
        failure: Exception | None = None
        for uid, listed in found.items():
            if listed.states() == _states(self.pod(uid)):
                continue
            # An event overtook the list: what the list says of this pod may already be wrong.
            if self._is_older(listed_at, uid):
                self.relist_soon()
                continue
            try:
                await self._reread(uid, listed)
            except Exception as error:
                # One pod that cannot be read must not hide the changes of the others.
                failure = failure or error
        if failure is not None:
            raise failure

    def _is_older(self, listed_at: float, uid: str) -> bool:
        """Tell whether a list was requested before the latest news about the pod, and so may lack it."""
        return self._touched.get(uid, 0.0) >= listed_at

    def _changed(self, listed: _States) -> set[str]:
        """Return the uids of pods that a list shows differently from what is known."""
        known = {
            id: (uid, state) for uid, record in self.pods.items() for id, state in _states(record).items()
        }
        if listed == known:
            return set()
        return {uid for _, (uid, _) in listed.items() ^ known.items()} - {""}

    async def _reread(self, uid: str, listed: _Listed) -> None:
        """Update one pod's record from the lists just read."""
        identity = listed.identity()
        self._agreed = None
        if identity is None:
            record = self.pods.pop(uid, None)
            if record is not None:
                record.drop(set(_states(record)))
                self._on_change(uid)
            return
        record = self.pods.setdefault(uid, PodRecord(*identity))
        states = _states(record)
        record.drop(states.keys() - listed.states().keys())
        for sandbox in listed.sandboxes:
            if states.get(sandbox.id) != int(sandbox.state == cri.SANDBOX_READY):
                await self.refresh_sandbox(uid, sandbox.id, notify=False)
        for container in listed.containers:
            if states.get(container.id) != container.state:
                await self.refresh_container(uid, container.id, container.sandbox_id, notify=False)
        self._on_change(uid)

    async def reread_pod(self, uid: str) -> PodRecord:
        """Read one pod whose record is in doubt; repeat if an event arrived meanwhile."""
        while True:
            listed_at = time.monotonic()
            listed = await self._list_pod(uid)
            if not self._is_older(listed_at, uid):
                await self._reread(uid, listed)
                return self.pod(uid)

    async def _list_pod(self, uid: str) -> _Listed:
        selector = {labels.POD_UID: uid}
        sandboxes = await self._runtime.list_pod_sandboxes(cri.PodSandboxFilter(label_selector=selector))
        containers = await self._runtime.list_containers(cri.ContainerFilter(label_selector=selector))
        return _Listed(
            [_Sandbox(*_identity(s.labels), s.id, s.state) for s in sandboxes],
            [_Container(*_identity(c.labels), c.id, c.state, c.pod_sandbox_id) for c in containers],
        )

    async def refresh_container(
        self, uid: str, container_id: str, sandbox_id: str, *, notify: bool = True
    ) -> None:
        """Read the status of one container after an operation on it.

        A container that is not found counts as gone only if the lists do not contain it either: containerd
        may fail to find a running container for a moment.
        """
        self._touched[uid] = time.monotonic()
        try:
            answer = await self._runtime.container_status(container_id)
        except NotFound:
            if not await self._runtime.list_containers(cri.ContainerFilter(id=container_id)):
                self._forget(uid, container_id)
                return
            answer = await self._runtime.container_status(container_id)
        self._put(answer.status, sandbox_id, notify=notify)

    async def refresh_sandbox(self, uid: str, sandbox_id: str, *, notify: bool = True) -> None:
        """Read the status of one sandbox after an operation on it; a missing one is treated like a
        container.
        """
        self._touched[uid] = time.monotonic()
        try:
            answer = await self._runtime.pod_sandbox_status(sandbox_id)
        except NotFound:
            if not await self._runtime.list_pod_sandboxes(cri.PodSandboxFilter(id=sandbox_id)):
                self._forget(uid, sandbox_id)
                return
            answer = await self._runtime.pod_sandbox_status(sandbox_id)
        record = self._record(answer.status.labels)
        if record is not None and record.put_sandbox(sandbox_record(answer.status)) and notify:
            self._on_change(record.uid)

    def forget(self, uid: str, ids: Iterable[str]) -> None:
        """Forget what the agent itself has removed, without asking the runtime."""
        self._touched[uid] = time.monotonic()
        for removed in ids:
            self._forget(uid, removed)

    def _forget(self, uid: str, removed: str) -> None:
        self._agreed = None
        record = self.pods.get(uid)
        if record is not None and record.drop({removed}):
            if record.empty:
                del self.pods[uid]
                self._removed[uid] = self._clock()
            self._on_change(uid)

    def _record(self, labels: Mapping[str, str]) -> PodRecord | None:
        """Return the record of the pod with these labels, for a change."""
        self._agreed = None
        identity = pod_of(labels)
        return self.pods.setdefault(identity[0], PodRecord(*identity)) if identity is not None else None

    def _put(self, status: cri.ContainerStatus, sandbox_id: str, *, notify: bool) -> None:
        record = self._record(status.labels)
        if (
            record is not None
            and record.put_container(container_record(status, sandbox_id, self._began))
            and notify
        ):
            self._on_change(record.uid)

    async def _follow_events(self) -> None:
        while True:
            # A runtime without events answers Unimplemented at once; a stream that stands for a moment works.
            up_timer = asyncio.get_running_loop().call_later(STREAM_SETTLED_SECONDS, self._stream_is_up)
            asked_at = self._clock()
            try:
                async for event in self._runtime.events():
                    # While nobody listens, containerd 2 keeps events for five minutes. The list that follows
                    # once the stream is up is newer, and also makes up for a clock that was set meanwhile.
                    if self._streaming or not 0 < event.created_at * NANO < asked_at:
                        self._apply(event)
                raise Refused("the event stream ended", subject=self._runtime.endpoint)
            except Unimplemented:
                log.info("the runtime has no event stream; relisting every %g s", self._relist_seconds)
                return
            except Undecodable:
                # A message that we cannot decode is no outage: the task counts and reports it.
                raise
            except Refused as error:
                if self._streaming:
                    log.warning("%s", error)
            finally:
                up_timer.cancel()
                # Nothing reports what happens from here on, so health and views must not trust the stream.
                if self._streaming:
                    self._stream_lost_at = self._clock()
                    self._streaming = False
                    self._on_trouble()
                self._wake.set()
            await asyncio.sleep(RETRY_SECONDS)

    def _stream_is_up(self) -> None:
        """Relist after the stream has stood for a moment, to catch what happened before it."""
        self._streaming = True
        self._streaming_since = time.monotonic()
        self._following.works()
        self._wake.set()

    def _apply(self, event: cri.ContainerEventResponse) -> None:
        if self._on_event is not None:
            self._on_event(event)
        sandbox = event.pod_sandbox_status
        if self._removed and self._is_outdated(event):
            return
        record = self._record(sandbox.labels)
        if record is None:
            return
        self._touched[record.uid] = time.monotonic()
        changed = False
        if event.container_event_type == cri.CONTAINER_DELETED_EVENT:
            changed = record.drop({event.container_id})
        elif sandbox.id:
            changed = record.put_sandbox(sandbox_record(sandbox))
        for status in event.containers_statuses:
            changed |= record.put_container(container_record(status, sandbox.id, self._began))
        if record.empty:
            self.pods.pop(record.uid, None)
        if changed:
            self._on_change(record.uid)

    def _is_outdated(self, event: cri.ContainerEventResponse) -> bool:
        """Tell whether an event was sent before its pod was removed, and waited while the agent was busy. The
        states in it would make the pod known again.
        """
        identity = pod_of(event.pod_sandbox_status.labels)
        if identity is None or identity[0] in self.pods:
            return False
        return 0 < event.created_at * NANO < self._removed.get(identity[0], 0.0)

    async def _keep_relisting(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            stood = (
                time.monotonic() - self._streaming_since if self._streaming and not self.last_error else 0.0
            )
            timer = loop.call_later(relist_period(stood, self._relist_seconds), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            self._wake.clear()
            self._cancel_relist()
            try:
                with self._relisting.step(STEP_SECONDS):
                    await self.relist()
            except Exception as error:
                if isinstance(error, Undecodable) or not isinstance(error, Refused):
                    self._relisting.failed(error)
                elif not self.last_error:
                    log.error("%s", error)
                self.last_error = str(error) or type(error).__name__
                self._on_trouble()


def relist_period(stood: float, least: float = RELIST_SECONDS) -> float:
    """Return the seconds until the next routine relist, for a stream that has stood so long."""
    return min(max(stood, least), RELIST_WITH_EVENTS_SECONDS)


def _with_sandbox_digest(message: bytes) -> tuple[bytes, int]:
    return message, _SANDBOX_STATES.digest(message)


def _with_container_digest(message: bytes) -> tuple[bytes, int]:
    return message, _CONTAINER_STATES.digest(message)


def _sandbox_states(message: bytes) -> _States:
    uids, ids, states = _SANDBOX_STATES.pick(message)
    ready = [int(state == cri.SANDBOX_READY) for state in states]
    return dict(zip(ids, zip(uids, ready, strict=True), strict=True))


def _container_states(message: bytes) -> _States:
    uids, ids, states = _CONTAINER_STATES.pick(message)
    return dict(zip(ids, zip(uids, states, strict=True), strict=True))


def _listed(sandboxes: bytes, containers: bytes, uids: set[str]) -> dict[str, _Listed]:
    """Return what the lists report about these pods."""
    found = {uid: _Listed() for uid in uids}
    for sandbox in map(_Sandbox, *_SANDBOXES.pick(sandboxes)):
        if sandbox.uid in uids:
            found[sandbox.uid].sandboxes.append(sandbox)
    for container in map(_Container, *_CONTAINERS.pick(containers)):
        if container.uid in uids:
            found[container.uid].containers.append(container)
    return found


def _identity(labels: Mapping[str, str]) -> tuple[str, str, str]:
    return pod_of(labels) or ("", "", "")


def _states(record: PodRecord) -> dict[str, int]:
    states = {sandbox.id: int(sandbox.ready) for sandbox in record.sandboxes}
    states.update({container.id: container.state for container in record.containers})
    return states
