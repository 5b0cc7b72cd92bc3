"""Reads and writes `graceful_node_shutdown_state`: start and end of the last graceful shutdown, in the
kubelet's format.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.host.files import replace_file

NEVER = "0001-01-01T00:00:00Z"


class ShutdownTimes(msgspec.Struct, frozen=True, rename="camel"):
    """Times as RFC 3339; `NEVER` is Go's zero time."""

    start_time: str = NEVER
    end_time: str = NEVER


def seconds(time: str) -> int:
    """Return Unix seconds, 0 for `NEVER`. Raises ValueError."""
    return 0 if time == NEVER else int(datetime.fromisoformat(time).timestamp())


def read_times(path: Path) -> ShutdownTimes:
    """Read the times that the last agent or kubelet wrote; `NEVER` without a file. Raises OSError or
    ValueError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ShutdownTimes()
    return msgspec.json.decode(data, type=ShutdownTimes)


def write_times(path: Path, times: ShutdownTimes) -> None:
    """Write the times. Raises `Refused` naming the file."""
    replace_file(path, encode_json(times), mode=0o644)
