"""Selects the log of a container, the part of it that a reader wants, and the form of its lines. Pure.

The rules and error texts are those of kubelet v1.36 (`pkg/kubelet/kubelet_pods.go`, `cri-client/pkg/logs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.api.status import ContainerStatus

_TRUE: Final = frozenset(("", "1", "t", "true"))
_FALSE: Final = frozenset(("0", "f", "false"))
_IMAGE_TROUBLE: Final = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}
STREAMS: Final = (b"stdout", b"stderr")
_NAMED_STREAMS: Final = {"All": STREAMS, "Stdout": STREAMS[:1], "Stderr": STREAMS[1:]}


class OutOfRange(InvalidInput):
    """Raised for a value of the right type that makes no sense."""


class LogOptions(msgspec.Struct, frozen=True):
    """Hold the part of a log to return: the last `tail` lines, at most `limit` bytes, lines since `since`
    (Unix nanoseconds), lines of some streams.

    None and 0 mean everything.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit: int | None = None
    since: int = 0
    streams: tuple[bytes, ...] = STREAMS


def log_options(query: Mapping[str, str], now: float) -> LogOptions:
    """Read the fields of v1.PodLogOptions. Raises InvalidInput for a malformed value and OutOfRange for a
    senseless one.
    """
    streams = _NAMED_STREAMS.get(query.get("stream", "All"))
    old = query.get("tail", "")
    tail = ("" if old == "all" else old) if old else query.get("tailLines", "")
    lines = _number(tail, "tailLines") if tail else None
    limit = _number(query["limitBytes"], "limitBytes") if query.get("limitBytes") else None
    seconds = _number(query["sinceSeconds"], "sinceSeconds") if query.get("sinceSeconds") else None
    time = nanoseconds(query["sinceTime"]) if query.get("sinceTime") else None
    if lines is not None and lines < 0:
        raise OutOfRange("must be greater than or equal to 0", subject="tailLines")
    if limit is not None and limit < 1:
        raise OutOfRange("must be greater than 0", subject="limitBytes")
    if seconds is not None and seconds < 1:
        raise OutOfRange("must be greater than 0", subject="sinceSeconds")
    if seconds is not None and time is not None:
        raise OutOfRange("at most one of sinceTime or sinceSeconds may be specified")
    if streams is None:
        raise OutOfRange(f"must be one of {', '.join(_NAMED_STREAMS)}", subject="stream")
    if streams != STREAMS and tail:
        raise OutOfRange("at most one of tailLines and a single stream may be specified")
    since = int(now * 1e9) - seconds * 10**9 if seconds is not None else time or 0
    return LogOptions(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail=lines,
        limit=limit,
        since=since,
        streams=streams,
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false").lower()
    if text not in _TRUE | _FALSE:
        raise InvalidInput(f"expected true or false, got {text!r}", subject=name)
    return text in _TRUE


def _number(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise InvalidInput(f"expected a number, got {text!r}", subject=name)
    return int(text)


def nanoseconds(text: str) -> int:
    """Convert an RFC 3339 time to Unix nanoseconds. Raises InvalidInput."""
    try:
        whole, dot, rest = text.partition(".")
        zone = rest.lstrip("0123456789") if dot else ""
        fraction = rest[: len(rest) - len(zone)] if dot else ""
        moment = datetime.fromisoformat(whole + zone)
        if moment.tzinfo is None or len(whole) < len("2006-01-02T15:04:05"):
            raise ValueError(text)
        return int(moment.timestamp()) * 10**9 + int((fraction + "000000000")[:9])
    except (ValueError, OverflowError):
        raise InvalidInput(f"expected a time in RFC 3339, got {text[:64]!r}") from None


def spec_of(pod: Pod, name: str) -> Container | None:
    """Return the container with that name, of any kind."""
    return next((each for each in pod.every_container if each.name == name), None)


def logged_container(pod: Pod, name: str, *, previous: bool) -> str:
    """Return the id of the container whose log is wanted. Raises InvalidInput in the kubelet's words if there
    is none yet.
    """
    status = _status_of(pod, name)
    named = f'container "{name}" in pod "{pod.metadata.name}"'
    if status is None:
        raise InvalidInput(f"{named} is not available")
    state, last = status.state, status.last_state.terminated
    if previous:
        if last is None or not last.container_id:
            raise InvalidInput(f"previous terminated {named} not found")
        found = last.container_id
    elif state.running is not None:
        found = status.container_id
    elif state.terminated is not None or last is not None:
        ended = [each.container_id for each in (state.terminated, last) if each is not None]
        found = next(filter(None, ended), "")
        if not found:
            raise InvalidInput(f"{named} is terminated")
    elif state.waiting is not None:
        reason = state.waiting.reason
        raise InvalidInput(f"{named} is waiting to start: {_IMAGE_TROUBLE.get(reason, reason)}")
    else:
        raise InvalidInput(f"{named} is waiting to start - no logs yet")
    return found.rpartition("://")[2]


def _status_of(pod: Pod, name: str) -> ContainerStatus | None:
    kinds: Iterable[list[ContainerStatus] | None] = (
        pod.status.container_statuses,
        pod.status.init_container_statuses,
        pod.status.ephemeral_container_statuses,
    )
    return next((each for kind in kinds for each in kind or () if each.name == name), None)


class LogText:
    """Convert log lines to what the reader gets, until `done`."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._bytes_left = options.limit
        self._lines = None if options.follow else options.tail
        self._begins = True
        self.done = self._lines == 0

    def take_all(self, lines: Iterable[bytes]) -> bytes:
        """Convert as many of the lines as are wanted."""
        out = []
        for line in lines:
            if self.done:
                break
            out.append(self.take(line))
        return b"".join(out)

    def take(self, line: bytes) -> bytes:
        """Convert one line of the log, `TIME stdout|stderr F|P TEXT`, including its newline if it is
        complete.

        Lines of any other form and of other streams are left out.
        """
        time, stream, tags, text = _split(line)
        if stream not in self._options.streams:
            return b""
        try:
            at = nanoseconds(time.decode("ascii"))
        except (InvalidInput, UnicodeDecodeError):
            return b""
        # The next line continues a partial one, so its newline is only the log format's.
        if tags.split(b":")[0] == b"P":
            text = text.removesuffix(b"\n")
        out = b""
        if at >= self._options.since:
            stamp = _fixed(time, at) + b" " if self._options.timestamps and self._begins else b""
            out = self._within_limit(stamp + text)
        if self._lines is not None:
            self._lines -= 1
            self.done = self.done or not self._lines
        self._begins = text[-1:] in (b"", b"\n")
        return out

    def _within_limit(self, text: bytes) -> bytes:
        if self._bytes_left is None:
            return text
        text = text[: self._bytes_left]
        self._bytes_left -= len(text)
        self.done = self.done or self._bytes_left <= 0
        return text


def _split(line: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    parts = line.split(b" ", 3)
    return (parts[0], parts[1], parts[2], parts[3]) if len(parts) == 4 else (b"", b"", b"", b"")


def _fixed(time: bytes, at: int) -> bytes:
    """Format a time with all nine digits of the second, in the zone of the log."""
    return b"%s.%09d%s" % (time[:19], at % 10**9, time[19:].lstrip(b".0123456789"))
