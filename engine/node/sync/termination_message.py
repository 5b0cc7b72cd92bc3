"""Reads termination messages: the container's message file, or the tail of its log if it asks for that.

A container may be able to replace both files. They are therefore opened below a directory that the container
cannot reach, without following links, and only if they are regular files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.api.pod import Pod
from engine.cri.records import ContainerRecord
from engine.host.safe_open import opened_parent, read_regular
from engine.host.threads import to_own_thread

MAX_FILE_BYTES = 4096
MAX_LOG_BYTES = 2048
MAX_LOG_LINES = 80
READ_TIMEOUT = 10.0


async def read_messages(
    pod: Pod, ended: Sequence[ContainerRecord], known: Mapping[str, str], *, root: Path, logs: Path
) -> dict[str, str]:
    """Return the messages of the ended containers by container id: `known` ones, others read in a thread."""
    messages = {c.id: known[c.id] for c in ended if c.id in known}
    if len(messages) == len(ended):
        return messages
    policies = {c.name: c.termination_message_policy for c in pod.every_container}
    for container in ended:
        if container.id in messages or container.name not in policies:
            continue
        try:
            # A path of a kubelet may lie on a volume whose server does not answer.
            async with asyncio.timeout(READ_TIMEOUT):
                ours = Path(container.message_path).is_relative_to(root)
                message = await (asyncio.to_thread if ours else to_own_thread)(
                    termination_message, container, policies[container.name], root=root, logs=logs
                )
        except TimeoutError:
            path = container.message_path
            message = f"Error on reading termination log {path}: no answer in {READ_TIMEOUT:.0f} s"
        messages[container.id] = message
    return messages


def termination_message(record: ContainerRecord, policy: str, *, root: Path, logs: Path) -> str:
    """Return the message for the status of an ended container; the runtime's own message as a fallback.

    `root` is the agent's directory and `logs` that of all pod logs. A path elsewhere (a hostPath) is read
    only if no part of it is a link. Call it in a thread: the file system may be dead.
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
    """Return the text of a CRI log line without time, stream and tag; a partial line (P) has no newline."""
    parts = line.split(" ", 3)
    if len(parts) < 4:
        return line
    return parts[3].removesuffix("\n") if parts[2].split(":")[0] == "P" else parts[3]
