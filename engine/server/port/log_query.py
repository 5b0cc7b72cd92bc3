"""Reads the query of `/logs/` (NodeLogQuery) and turns it into journalctl's arguments. Pure.

The rules and error texts are those of kubelet v1.36 (`pkg/kubelet/kubelet_server_journal.go`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.node.logs.container_logs import nanoseconds
from engine.server.http.exchange import Request

MOST_SERVICES: Final = 4
LONGEST_SERVICE: Final = 256
MOST_LINES: Final = 100_000
UNITS: Final = ("journalctl", "--field", "_SYSTEMD_UNIT")
"""Lists the units that the journal has messages of."""
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9\-_.:@]")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class LogQuery(msgspec.Struct, frozen=True):
    """Hold a query for logs of services, or for one file below /var/log. Times are Unix nanoseconds."""

    services: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    lines: int | None = None
    pattern: str = ""
    boot: int | None = None

    @property
    def has_options(self) -> bool:
        """Tell whether something selects part of a log, which only the journal can do."""
        return any(each is not None for each in (self.since, self.until, self.lines, self.boot)) or bool(
            self.pattern
        )


def read_query(request: Request) -> LogQuery | None:
    """Read the query; None if it has nothing of a log query. Raises InvalidInput for a malformed value."""
    faults: list[str] = []
    named = request.values("query")
    files = tuple(name for name in named if "/" in name or "\\" in name)
    services = tuple(name for name in named if name not in files and name.strip())
    if named and not files and not services:
        faults.append(f"query: Invalid value: {json.dumps(named)}: query cannot be empty")
    query = LogQuery(
        services,
        files,
        _time(request, "sinceTime", faults),
        _time(request, "untilTime", faults),
        _integer(request, "tailLines", faults),
        _first(request, "pattern"),
        _integer(request, "boot", faults),
    )
    _refuse(faults)
    return query if query != LogQuery() else None


def check_query(query: LogQuery, request: Request) -> None:
    """Raise InvalidInput for a query whose values do not fit together."""
    _refuse(list(_faults(query, request)))


def journal_command(query: LogQuery) -> list[str]:
    """Return the call of journalctl that prints what the query selects."""
    command = ["journalctl", "--utc", "--no-pager", "--output=short-precise"]
    if query.since is not None:
        command.append(f"--since={_moment(query.since)}")
    if query.until is not None:
        command.append(f"--until={_moment(query.until)}")
    if query.lines is not None:
        command += ["--pager-end", f"--lines={query.lines}"]
    command += [f"--unit={service}" for service in query.services]
    if query.pattern:
        command += [f"--grep={query.pattern}", "--case-sensitive=false"]
    if query.boot is not None:
        command += ["--boot", str(query.boot)]
    return command


def file_names(service: str) -> tuple[str, str, str]:
    """Return where below /var/log a service may have its own log; the first that exists is its log."""
    return service, f"{service}.log", f"{service}/{service}.log"


def _faults(query: LogQuery, request: Request) -> Iterator[str]:
    for service in query.services:
        if len(service) > LONGEST_SERVICE:
            yield f"query: Invalid value: {_quoted(service)}: length must be less than {LONGEST_SERVICE}"
        elif _UNSAFE.search(service):
            yield f"query: Invalid value: {_quoted(service)}: input contains unsupported characters"
    if len(query.services) > MOST_SERVICES:
        yield f"query: Too many: {len(query.services)}: must have at most {MOST_SERVICES} items"
    named = json.dumps(query.files, ensure_ascii=False, separators=(",", ":"))
    if not query.files and not query.services:
        yield "query: Required value: cannot be empty with options"
    elif query.files and query.services:
        both = f"[{' '.join(query.files)}], [{' '.join(query.services)}]"
        yield f"query: Invalid value: {_quoted(both)}: cannot specify a file and service"
    elif len(query.files) > 1:
        yield f"query: Invalid value: {named}: cannot specify more than one file"
    elif query.files and query.has_options:
        yield f"query: Invalid value: {named}: cannot specify file with options"
    if query.since is not None and query.until is not None and query.since > query.until:
        until = _quoted(_first(request, "untilTime"))
        yield f"untilTime: Invalid value: {until}: must be after `sinceTime`"
    if query.boot is not None and query.boot > 0:
        yield f"boot: Invalid value: {query.boot}: must be less than 1"
    if query.lines is not None and not 0 <= query.lines <= MOST_LINES:
        yield f"tailLines: Invalid value: {query.lines}: must be between 0 and {MOST_LINES}, inclusive"
    try:
        re.compile(query.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        quoted = _quoted(query.pattern)
        yield f"pattern: Invalid value: {quoted}: error parsing regexp: {error}: `{query.pattern}`"
    if "\0" in query.pattern:
        yield f"pattern: Invalid value: {_quoted(query.pattern)}: must not contain a null byte"


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise InvalidInput(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")


def _first(request: Request, name: str) -> str:
    return next(iter(request.values(name)), "")


def _time(request: Request, name: str, faults: list[str]) -> int | None:
    text = _first(request, name)
    try:
        nanos = nanoseconds(text) if text else None
        if nanos is not None:
            _moment(nanos)
        return nanos
    # In UTC, the time may lie in the year 0 or 10000, which neither `datetime` nor journalctl knows.
    except (InvalidInput, ValueError):
        faults.append(f"{name}: Invalid value: {_quoted(text)}: invalid time format")
        return None


def _integer(request: Request, name: str, faults: list[str]) -> int | None:
    text = _first(request, name)
    if not text or _INTEGER.fullmatch(text):
        return int(text) if text else None
    faults.append(
        f"{name}: Invalid value: {_quoted(text)}: strconv.Atoi: parsing {_quoted(text)}: invalid syntax"
    )
    return None


def _moment(nanos: int) -> str:
    return datetime.fromtimestamp(nanos // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
