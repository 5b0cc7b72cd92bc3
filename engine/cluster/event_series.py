"""Decides how events go to the API server: unchanged, counted up, combined, or not at all.

Pure; the rules of client-go's correlator (tools/record, v1.36). A repeated event is counted up. From
`SIMILAR` messages of one reason about one object within `WINDOW` seconds on, one combined event is counted
up instead. One object may emit `BURST` events at once and one more each `REFILL` seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from engine.api.events import Event

SIMILAR: Final = 10
WINDOW: Final = 600.0
BURST: Final = 25
REFILL: Final = 300.0
REMEMBERED: Final = 4096

Object = tuple[str, ...]
Key = TypeVar("Key")
Value = TypeVar("Value")


class Said(msgspec.Struct, frozen=True):
    """What to write. `name` is that of the Event; a `count` above 1 patches the existing one."""

    event: Event
    name: str
    count: int
    first: float
    key: tuple[str, ...]


class _Bucket(msgspec.Struct):
    left: float
    at: float


class _Similar(msgspec.Struct):
    messages: set[str]
    last: float


class EventSeries:
    """Remember recent events, at most `REMEMBERED` of each kind."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Object, _Bucket] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._said: OrderedDict[tuple[str, ...], Said] = OrderedDict()

    def next(self, event: Event, name: str) -> Said | None:
        """Return what to write for `event`, or None; `name` is a fresh name for a new Event."""
        about = (event.pod, event.pod_uid, event.claim, event.volume)
        reason: tuple[str, ...] = (*about, event.type, event.reason)
        if self._are_many(reason, event):
            event = replace(event, message=f"(combined from similar events): {event.message}")
            key = reason
        else:
            key = (*reason, event.container, event.message)
        known = self._said.get(key)
        said = (
            replace(known, event=event, count=known.count + 1)
            if known is not None
            else Said(event, name, 1, event.at, key)
        )
        _remember(self._said, key, said)
        return said if self._may_speak(about, event.at) else None

    def recreated(self, said: Said, name: str) -> Said:
        """Create the event again under `name`, because the server has forgotten the one to count up."""
        made = replace(said, name=name, count=1, first=said.event.at)
        _remember(self._said, said.key, made)
        return made

    def _may_speak(self, about: Object, now: float) -> bool:
        bucket = self._buckets.get(about) or _Bucket(BURST, now)
        bucket.left = min(BURST, bucket.left + max(0.0, now - bucket.at) / REFILL)
        bucket.at = now
        _remember(self._buckets, about, bucket)
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True

    def _are_many(self, reason: tuple[str, ...], event: Event) -> bool:
        similar = self._similar.get(reason)
        if similar is None or event.at - similar.last > WINDOW:
            similar = _Similar(set(), event.at)
        similar.last = event.at
        similar.messages.add(event.message)
        _remember(self._similar, reason, similar)
        if len(similar.messages) < SIMILAR:
            return False
        similar.messages.pop()
        return True


def _remember(entries: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > REMEMBERED:
        entries.popitem(last=False)
