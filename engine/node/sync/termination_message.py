"""A container's last words: its message file, or the tail of its log if it asks for that.

Both can lie where a container can replace them, so they are read beneath a directory that it cannot reach,
through no link, and only as regular files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.api.pod import Pod
from engine.cri.records import EXITED, ContainerRecord, PodRecord
from engine.host.safe_open import opened_parent, read_regular

MAX_FILE_BYTES = 4096
MAX_LOG_BYTES = 2048
MAX_LOG_LINES = 80
READ_TIMEOUT = 10.0


class TerminationMessages:
    """The messages of one pod's ended containers, each read once."""

    def __init__(self, *, root: Path, logs: Path) -> None:
        self._root, self._logs = root, logs
        self._messages: dict[str, str] = {}

    def of(self, record: ContainerRecord) -> str:
        """Empty for a container that has not ended, or whose message is not read yet."""
        return self._messages.get(record.id, "")

    async def read(self, pod: Pod, record: PodRecord) -> None:
        """Reads what is new, off the loop; forgets containers that are gone."""
        ended = [c for c in record.containers if c.state == EXITED]
        self._messages = {c.id: self._messages[c.id] for c in ended if c.id in self._messages}
        if len(self._messages) == len(ended):
            return
        policies = {c.name: c.termination_message_policy for c in pod.every_container}
        for container in ended:
            if container.id in self._messages or container.name not in policies:
                continue
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    message = await asyncio.to_thread(
                        termination_message,
                        container,
                        policies[container.name],
                        root=self._root,
                        logs=self._logs,
                    )
            except TimeoutError:
                path = container.message_path
                message = f"Error on reading termination log {path}: no answer in {READ_TIMEOUT:.0f} s"
            self._messages[container.id] = message


def termination_message(record: ContainerRecord, policy: str, *, root: Path, logs: Path) -> str:
    """What the status of an ended container says; the runtime's own message if there is no other.

    `root` is the node's directory and `logs` that of all pods' logs; what lies elsewhere (a hostPath) is
    read if no part of its path is a link. May wait for a dead file system: for a thread.
    """
    text = ""
    if record.message_path:
        try:
            text = _tail(record.message_path, root, MAX_FILE_BYTES)
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"Error on reading termination log {record.message_path}: {error.strerror}"
    if not text and policy == "FallbackToLogsOnError" and record.exit_code != 0 and record.log_path:
        try:
            lines = _tail(record.log_path, logs, MAX_LOG_BYTES * 4).splitlines(keepends=True)[-MAX_LOG_LINES:]
        except OSError as error:
            return f"Error on reading termination message from logs: {error.strerror}"
        text = "".join(map(_log_text, lines))[-MAX_LOG_BYTES:]
    return text or record.message


def _tail(path: str, top: Path, limit: int) -> str:
    with opened_parent(path, top) as (directory, name):
        data = read_regular(directory, name, limit, from_end=True)
    return data.decode("utf-8", "replace")


def _log_text(line: str) -> str:
    """The text of a CRI log line: time, stream and tag go before it. A part of a line (P) has no end."""
    parts = line.split(" ", 3)
    if len(parts) < 4:
        return line
    return parts[3].removesuffix("\n") if parts[2].split(":")[0] == "P" else parts[3]
