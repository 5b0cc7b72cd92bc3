"""Read, replace, remove or damage a pod's records in the agent's file while no agent runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.host.records import lines
from engine.host.records.store import RecordStore
from engine.node.pod.record_names import PodRecordNames
from engine.node.running_node import RECORDS


def recorded(root: Path, uid: str, kind: str) -> bytes | None:
    """Return the newest record of a pod; an agent may be running."""
    found = [value for name, value in _all(root) if _is_of(name, uid, kind)]
    return found[-1] if found else None


def replace(root: Path, uid: str, kind: str, value: bytes) -> None:
    """Replace a record's value, with a correct checksum."""
    changed = [(name, value if _is_of(name, uid, kind) else each) for name, each in _all(root)]
    _write(root, changed)


def remove(root: Path, kind: str, uid: str = "") -> None:
    """Remove the records of one kind, of each pod or of one."""
    _write(root, [(name, each) for name, each in _all(root) if not _is_of(name, uid or _uid(name), kind)])


def damage(root: Path, uid: str, kind: str) -> None:
    """Change one byte of each record."""
    text = b"".join(
        _spoilt(lines.line(name, each)) if _is_of(name, uid, kind) else lines.line(name, each)
        for name, each in _all(root)
    )
    (root / RECORDS).write_bytes(text)


@contextmanager
def store_at(directory: Path) -> Iterator[RecordStore]:
    """Return a store for pods below `directory/pods` without a writer: pending records can be read."""
    (directory / "pods").mkdir(parents=True, exist_ok=True)
    store = RecordStore(directory / RECORDS, names=PodRecordNames(directory / "pods"))
    store.open()
    yield store


def _all(root: Path) -> list[tuple[str, bytes]]:
    path = root / RECORDS
    data = path.read_bytes() if path.exists() else b""
    return [lines.read(each) for each in data.splitlines(keepends=True) if each.endswith(b"\n")]


def _write(root: Path, records: list[tuple[str, bytes]]) -> None:
    (root / RECORDS).write_bytes(b"".join(lines.line(name, each) for name, each in records))


def _uid(name: str) -> str:
    return name.partition("/")[0]


def _is_of(name: str, uid: str, kind: str) -> bool:
    return name.startswith(f"{uid}/") and name.endswith(f"/{kind}")


def _spoilt(line: bytes) -> bytes:
    middle = len(line) // 2
    return line[:middle] + bytes([line[middle] ^ 4]) + line[middle + 1 :]
