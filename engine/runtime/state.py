"""Stores the state by which the next runtime process finds the containers of this one.

    STATE/sandboxes/<id>/record.json    and hosts, resolv.conf, hostname; up, which its shim makes
    STATE/containers/<id>/record.json   and started and exit, which its shim writes

A container's record says CREATED until it has ended; whether it runs is in what its shim wrote.
A directory without a record is half made or half removed. It lies on a tmpfs: a
reboot ends every process that they speak of.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from engine.api.errors import Refused
from engine.host.checksummed_file import read_checksummed, set_aside, write_checksummed
from engine.host.files import replace_file
from engine.host.trees import remove_tree
from engine.runtime.objects.records import RuntimeContainer, Sandbox
from engine.wire import cri_v1_pb2 as cri

RECORD = "record.json"
WITHOUT = "its processes are killed"
log = logging.getLogger("kubengine.runtime")

PLAIN = (
    "id", "created_at", "image_id", "image_ref", "image_name", "state", "started_at", "finished_at",
    "exit_code", "reason", "message", "pid", "start_time", "shim", "shim_start_time",
)  # fmt: skip


class Ending(NamedTuple):
    """Hold a shim's record of how its container ended."""

    exit_code: int
    signal: int
    oom_kills: int
    finished_at: int


@dataclass(slots=True)
class BackendNotes:
    """Hold what the backend records about a sandbox or container besides the CRI's record.

    `cgroup` is a cgroup path, `layers` the image's, `request` the shim's request. `made` becomes true when a
    sandbox is complete.
    """

    cgroup: str = ""
    made: bool = False
    stop_signal: int = 15
    layers: list[str] = field(default_factory=list)
    request: dict[str, Any] = field(default_factory=dict)


class StateDirectory:
    """Store the records below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sandboxes = path / "sandboxes"
        self.containers = path / "containers"

    def open(self) -> None:
        for directory in (self.path, self.sandboxes, self.containers):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)

    def directory(self, record: Sandbox | RuntimeContainer) -> Path:
        return (self.sandboxes if isinstance(record, Sandbox) else self.containers) / record.id

    def save_sandbox(self, sandbox: Sandbox, notes: BackendNotes) -> None:
        document = {
            "id": sandbox.id, "created_at": sandbox.created_at, "handler": sandbox.handler,
            "state": sandbox.state, "ips": sandbox.ips, "pid": sandbox.pid, "start_time": sandbox.start_time,
            "config": _encode(sandbox.config), "extras": _plain(notes),
        }  # fmt: skip
        self._save(sandbox, document)

    def save_container(self, container: RuntimeContainer, notes: BackendNotes) -> None:
        document: dict[str, Any] = {name: getattr(container, name) for name in PLAIN}
        document["sandbox"] = container.sandbox.id
        document["config"] = _encode(container.config)
        document["user"] = _encode(container.user) if container.user else None
        document["extras"] = _plain(notes)
        self._save(container, document)

    def load_sandboxes(self) -> Iterator[tuple[Sandbox, BackendNotes]]:
        for directory in sorted(self.sandboxes.iterdir()):
            found = read_checksummed(directory / RECORD, _sandbox, without=WITHOUT)
            if found is not None:
                yield found

    def load_containers(
        self, sandboxes: Mapping[str, Sandbox]
    ) -> Iterator[tuple[RuntimeContainer, BackendNotes]]:
        """Load the containers of `sandboxes`; all others count as incomplete."""
        for directory in sorted(self.containers.iterdir()):
            found = read_checksummed(
                directory / RECORD, lambda content: _container(content, sandboxes), without=WITHOUT
            )
            if found is not None and found[0] is not None:
                yield found[0], found[1]
            # Its sandbox is gone or damaged: without a record, `half_made` finds and removes the container.
            elif found is not None:
                (directory / RECORD).unlink(missing_ok=True)

    def half_made(self) -> Iterator[Path]:
        """Return directories without a valid record."""
        for kind in (self.sandboxes, self.containers):
            for directory in kind.iterdir():
                if not (directory / RECORD).exists():
                    yield directory

    def up(self, sandbox: Sandbox) -> bool:
        """Tell whether its process was allowed to continue."""
        return (self.directory(sandbox) / "up").exists()

    def started(self, container: RuntimeContainer) -> int:
        """Return when its shim saw its program start (Unix nanoseconds), 0 if it did not."""
        path = self.directory(container) / "started"
        try:
            return int(_read_copies(path))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            written = path.lstat().st_mtime_ns
            log.error("%s: %s; %s; using the time when it was written", path, error, set_aside(path))
            with contextlib.suppress(Refused):
                replace_file(path, f"{written}\n{written}\n")
            return written

    def ending(self, container: RuntimeContainer) -> Ending | None:
        path = self.directory(container) / "exit"
        try:
            exit_code, signal, oom_kills, finished_at = map(int, _read_copies(path).split())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.error("%s: %s; %s; its exit status is unknown", path, error, set_aside(path))
            return None
        return Ending(exit_code, signal, oom_kills, finished_at)

    def forget(self, record: Sandbox | RuntimeContainer) -> None:
        self.forget_directory(self.directory(record))

    def forget_directory(self, directory: Path) -> None:
        # First: a directory without a record is removed at the next start, whatever else is left in it.
        (directory / RECORD).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            remove_tree(directory)

    def _save(self, record: Sandbox | RuntimeContainer, document: dict[str, Any]) -> None:
        directory = self.directory(record)
        directory.mkdir(mode=0o750, exist_ok=True)
        write_checksummed(directory / RECORD, json.dumps(document).encode())


def _read_copies(path: Path) -> str:
    """Read a shim's file: one line, written twice to reveal damage."""
    lines = path.read_text(encoding="ascii").split("\n")
    if len(lines) != 3 or lines[0] != lines[1] or lines[2].strip(" "):
        raise ValueError("damaged: its two copies differ")
    return lines[0]


def _sandbox(content: bytes) -> tuple[Sandbox, BackendNotes]:
    document = json.loads(content)
    config = cri.PodSandboxConfig.FromString(base64.b64decode(document.pop("config")))
    notes = BackendNotes(**document.pop("extras"))
    return Sandbox(config=config, **document), notes


def _container(
    content: bytes, sandboxes: Mapping[str, Sandbox]
) -> tuple[RuntimeContainer | None, BackendNotes]:
    document = json.loads(content)
    sandbox = sandboxes.get(document.pop("sandbox"))
    config = cri.ContainerConfig.FromString(base64.b64decode(document.pop("config")))
    user = document.pop("user")
    notes = BackendNotes(**document.pop("extras"))
    if sandbox is None:
        return None, notes
    container = RuntimeContainer(sandbox=sandbox, config=config, **document)
    if user:
        container.user = cri.ContainerUser.FromString(base64.b64decode(user))
    return container, notes


def _plain(notes: BackendNotes) -> dict[str, Any]:
    return {name: getattr(notes, name) for name in BackendNotes.__slots__}


def _encode(message: Any) -> str:
    return base64.b64encode(message.SerializeToString()).decode()
