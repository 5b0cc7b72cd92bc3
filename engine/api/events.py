"""Records events about pods and the node in a bounded ring, and passes them to listeners."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from sys import intern
from types import MappingProxyType
from typing import Final

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.pod import Pod

NORMAL = "Normal"
WARNING = "Warning"

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

log = logging.getLogger("kubengine.events")


class Event(msgspec.Struct, frozen=True, gc=False):
    """Describe one event about the node, a pod, a claim or a volume.

    `pod` is `namespace/name`, empty for the node; `at` is a Unix time; `field_path` is the path of the
    container in the pod. With a `claim` (its name), the event is about that claim of the pod; with a
    `volume`, about that persistent volume.
    """

    type: str
    reason: str
    message: str
    at: float
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    annotations: Mapping[str, str] = msgspec.field(default_factory=lambda: _NOTHING)
    field_path: str = ""
    claim: str = ""
    claim_uid: str = ""
    volume: str = ""
    volume_uid: str = ""


class EventRecorder:
    """Record the events of all packages. Holds the last `capacity`, with repeated texts stored once.

    Listeners must not block.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = 1000) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=capacity)
        self._listeners: list[Callable[[Event], None]] = []

    def listen(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def pod(
        self,
        pod: Pod,
        type: str,
        reason: str,
        message: str,
        *,
        container: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event about a pod or one of its containers."""
        self._record(
            Event(
                type,
                reason,
                intern(message),
                self._clock(),
                intern(pod.full_name),
                pod.uid,
                container,
                annotations or _NOTHING,
                intern(_field_path(pod, container)) if container else "",
            )
        )

    def claim(self, pod: Pod, claim: ObjectMeta, type: str, reason: str, message: str) -> None:
        """Record an event about a claim of a pod."""
        self._record(
            Event(
                type,
                reason,
                message,
                self._clock(),
                pod.full_name,
                pod.uid,
                claim=claim.name,
                claim_uid=claim.uid,
            )
        )

    def volume(self, volume: ObjectMeta, type: str, reason: str, message: str) -> None:
        """Record an event about a persistent volume."""
        self._record(Event(type, reason, message, self._clock(), volume=volume.name, volume_uid=volume.uid))

    def node(self, type: str, reason: str, message: str) -> None:
        """Record an event about the node."""
        self._record(Event(type, reason, message, self._clock()))

    def _record(self, event: Event) -> None:
        self._events.append(event)
        level = logging.WARNING if event.type == WARNING else logging.INFO
        part = event.container or event.claim
        about = f"{event.pod}/{part}" if part else event.pod or event.volume or "node"
        log.log(level, "%s %s: %s", event.reason, about, event.message)
        for listener in self._listeners:
            listener(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))


def _field_path(pod: Pod, container: str) -> str:
    for each in pod.spec.init_containers or ():
        if each.name == container:
            return f"spec.initContainers{{{container}}}"
    for each in pod.spec.ephemeral_containers or ():
        if each.name == container:
            return f"spec.ephemeralContainers{{{container}}}"
    return f"spec.containers{{{container}}}"
