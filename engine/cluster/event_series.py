"""Decides whether an event is written to the API server as it is, counted, combined with others, or dropped.

Pure. Source: client-go's correlator (tools/record, v1.36). A repeated event increments the count of the first
one. From `SIMILAR` messages of one reason about one object within `WINDOW` seconds on, one combined event is
counted up instead. One object may emit `BURST` events at once and one more each `REFILL` seconds.
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


class EventToWrite(msgspec.Struct, frozen=True):
    """Describe an Event to write under `name`. A `count` above 1 patches the existing one."""

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
        self._written: OrderedDict[tuple[str, ...], EventToWrite] = OrderedDict()

    def next(self, event: Event, name: str) -> EventToWrite | None:
        """Return the Event to write for `event`, or None to drop it; `name` is a fresh name for a new
        Event.
        """
        about = (event.pod, event.pod_uid, event.claim, event.volume)
        reason: tuple[str, ...] = (*about, event.type, event.reason)
        if self._are_many(reason, event):
            event = replace(event, message=f"(combined from similar events): {event.message}")
            key = reason
        else:
            key = (*reason, event.container, event.message)
        known = self._written.get(key)
        entry = (
            replace(known, event=event, count=known.count + 1)
            if known is not None
            else EventToWrite(event, name, 1, event.at, key)
        )
        _remember(self._written, key, entry)
        return entry if self._is_within_budget(about, event.at) else None

    def recreated(self, entry: EventToWrite, name: str) -> EventToWrite:
        """Create the event again under `name`, because the server no longer has the one to count up."""
        made = replace(entry, name=name, count=1, first=entry.event.at)
        _remember(self._written, entry.key, made)
        return made

    def _is_within_budget(self, about: Object, now: float) -> bool:
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
        similar.messages.pop()  # bounds the set; any message may be removed
        return True


def _remember(entries: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > REMEMBERED:
        entries.popitem(last=False)
