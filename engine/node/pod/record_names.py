"""Names the records of pods in the agent's record file, and takes over those of earlier versions.

A record belongs to one directory `pods/<uid>`: a kubelet that ran in between may have removed the pod, and
started another with the same uid. The directory therefore holds a symbolic link `kubengine`, whose target, a
random word, is part of the record's name. Without it the record is outdated.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.api.errors import Refused
from engine.host.checksummed_file import read_checksummed, set_aside
from engine.host.files import sync_directory
from engine.host.records.store import RecordStore, StoredNames

LINK: Final = "kubengine"
ACCEPTED: Final = "accepted"
END: Final = "end"
READINESS: Final = "readiness"
KINDS: Final = (ACCEPTED, END, READINESS)

log = logging.getLogger("kubengine.pods")


def key(uid: str, kind: str) -> str:
    return f"{uid}/{kind}"


def forget(store: RecordStore, uid: str) -> None:
    """Forget the records of a pod whose directory is gone."""
    for kind in KINDS:
        store.discard(key(uid, kind))


class PodRecordNames(StoredNames):
    """Name records after directories of pods, which are in `pods`."""

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._unsynced: set[Path] = set()

    def of(self, key: str) -> str:
        uid, _, kind = key.partition("/")
        return f"{uid}/{self._word(uid)}/{kind}"

    def sync(self) -> None:
        """Return when the links created since the last call are on disk."""
        for directory in list(self._unsynced):
            # A pod that was removed meanwhile took its link with it.
            with suppress(FileNotFoundError):
                sync_directory(directory)
            self._unsynced.discard(directory)

    def key(self, name: str) -> str | None:
        uid, _, rest = name.partition("/")
        word, _, kind = rest.partition("/")
        with suppress(OSError):
            if os.readlink(self._pods.joinpath(uid, LINK)) == word:  # noqa: PTH115 - a word, not a path
                return key(uid, kind)
        return None

    def _word(self, uid: str) -> str:
        link = self._pods.joinpath(uid, LINK)
        try:
            return os.readlink(link)  # noqa: PTH115 - a word, not a path
        except FileNotFoundError:
            link.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            log.error("%s: %s; %s", link, error.strerror, set_aside(link))
        word = os.urandom(8).hex()
        link.symlink_to(word)
        # Synced before the record itself, which is worth nothing without its link.
        self._unsynced.add(link.parent)
        return word


async def take_over(pods: Path, store: RecordStore) -> None:
    """Move the records of earlier versions, files in the pods' directories, to the store.

    A file is newer than a record: only an earlier version writes one. It stays until its record is on disk.
    Raises `Unavailable` if the machine lacks the descriptors to read it.
    """
    found = list(_files(pods)) if pods.is_dir() else []
    for path, name in found:
        content = read_checksummed(path, bytes, without="it is unknown what was recorded there")
        if content is not None:
            # A record is one line; JSON means the same with blanks.
            store.put_soon(name, content.replace(b"\n", b" "))
    try:
        if found:
            await store.flush()
    except Refused as error:
        log.error("%s; the records of the earlier version stay files until the next start", error)
        return
    for path, _ in found:
        with suppress(FileNotFoundError):
            path.unlink()


def _files(pods: Path) -> Iterator[tuple[Path, str]]:
    for directory in pods.iterdir():
        for kind in KINDS:
            path = directory / f"{kind}.json"
            if path.exists():
                yield path, key(directory.name, kind)
