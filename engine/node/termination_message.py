"""A container's last words: its message file, or the tail of its log if it asks for that."""

from __future__ import annotations

import os
from pathlib import Path

from engine.cri.records import ContainerRecord

MAX_FILE_BYTES = 4096
MAX_LOG_BYTES = 2048
MAX_LOG_LINES = 80


def termination_message(record: ContainerRecord, policy: str) -> str:
    """What the status of an ended container says; the runtime's own message if there is no other."""
    text = _tail(record.message_path, MAX_FILE_BYTES) if record.message_path else ""
    if not text and policy == "FallbackToLogsOnError" and record.exit_code != 0 and record.log_path:
        lines = _tail(record.log_path, MAX_LOG_BYTES * 4).splitlines()[-MAX_LOG_LINES:]
        text = "\n".join(_log_text(line) for line in lines)[-MAX_LOG_BYTES:]
    return text or record.message


def _tail(path: str, limit: int) -> str:
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _log_text(line: str) -> str:
    """The text of a CRI log line: time, stream and tag go before it."""
    parts = line.split(" ", 3)
    return parts[3] if len(parts) == 4 else line
