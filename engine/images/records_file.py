"""The records on disk, so that a restart doesn't make every image new (kubernetes/kubernetes#119642)."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from engine.api.errors import Refused
from engine.host.files import replace_file
from engine.images.records import ImageRecords

FILE_NAME = "image_gc_records.json"
VERSION = 1

log = logging.getLogger("kubengine.images")


class _Record(msgspec.Struct, rename="camel"):
    first_detected: float
    last_used: float
    size: int


class _Document(msgspec.Struct):
    version: int
    records: dict[str, _Record]


def load(path: Path, records: ImageRecords, now: float) -> None:
    """Take up saved records. A file that cannot be read is said and left out: every image is then new,
    which errs on the side of keeping it."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        log.warning("image records %s cannot be read, starting without: %s", path, error)
        return
    if document.version != VERSION:
        log.warning("image records %s are of version %d, starting without", path, document.version)
        return
    saved = {key: msgspec.to_builtins(record) for key, record in document.records.items()}
    records.restore(saved, now)


def save(path: Path, records: ImageRecords) -> None:
    """Raises `Refused` with the path."""
    data = msgspec.json.encode({"version": VERSION, "records": records.export()})
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        text = f"cannot make: {error.strerror}"
        raise Refused(text, subject=str(path.parent), errno=error.errno) from error
    replace_file(path, data)
