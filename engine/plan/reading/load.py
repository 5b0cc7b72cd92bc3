"""Open snapshots: read whatever the user has into one `Snapshot`, with a progress bar."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.plan.reading.progress import progress, silent
from engine.plan.reading.reader import SnapshotReader
from engine.plan.reading.sources import Advance, open_sources, total_size
from engine.plan.snapshot.columnar_file import SnapshotFile, is_snapshot_file, spooled
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import FaultLog


def load_snapshot(
    paths: list[str], *, strict: bool = False, faults: FaultLog | None = None, advance: Advance | None = None
) -> Snapshot:
    """Load everything in `paths` into a snapshot: JSON of any shape (gz, tar, folders, `-`,
    `http://NODE:PORT`) or one columnar file.

    Raise `InvalidInput` naming the file, with `strict` at the first fault.
    """
    faults = faults if faults is not None else FaultLog(strict=strict)
    if len(paths) == 1 and is_snapshot_file(paths[0]):
        return SnapshotFile(Path(paths[0])).load()
    digest = hashlib.sha256()
    reader = SnapshotReader(faults)
    for source in open_sources(paths, digest, advance or silent):
        if source.is_snapshot:
            if len(paths) > 1:
                raise InvalidInput(
                    "a columnar snapshot cannot be combined with other inputs", subject=source.origin
                )
            file = spooled(source.stream)
            try:
                return SnapshotFile(file).load()
            finally:
                file.unlink()
        reader.read(source)
    return reader.snapshot(digest, paths)


def load_shown(paths: list[str], *, strict: bool, shown: bool, faults: FaultLog) -> Snapshot:
    """Call `load_snapshot` with a progress bar."""
    with progress("reading", total_size(paths), shown=shown, unit="bytes") as advance:
        return load_snapshot(paths, strict=strict, faults=faults, advance=advance)
