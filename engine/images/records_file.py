"""Stores the records on disk, so that a restart does not make every image new
(kubernetes/kubernetes#119642).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import Refused
from engine.host.checksummed_file import read_checksummed, write_checksummed
from engine.images.records import ImageRecords

FILE_NAME = "image_gc_records.json"
VERSION = 1


class _Record(msgspec.Struct, rename="camel"):
    first_detected: float
    last_used: float
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Document(msgspec.Struct):
    version: int
    records: dict[str, _Record]


def load(path: Path, records: ImageRecords, now: float) -> None:
    """Load the records. A damaged file is set aside; every image is new then, and so is rather kept."""
    saved = read_checksummed(path, _decode, without="every image counts as new")
    if saved is not None:
        records.restore(saved, now)


def _decode(content: bytes) -> dict[str, dict[str, float]]:
    document = msgspec.json.decode(content, type=_Document)
    if document.version != VERSION:
        raise ValueError(f"of version {document.version}")
    return {key: msgspec.to_builtins(record) for key, record in document.records.items()}


def save(path: Path, records: ImageRecords) -> None:
    """Store the records. Raises `Refused` with the path."""
    data = encode_json({"version": VERSION, "records": records.export()})
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        text = f"cannot create: {error.strerror}"
        raise Refused(text, subject=str(path.parent), errno=error.errno) from error
    write_checksummed(path, data)
