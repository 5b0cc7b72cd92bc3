"""Reads static pods from a directory, watches it, and reads changed files again.

If a file can no longer be parsed, the pods that it last contained stay, and the error is reported once per
content. Other files are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from engine.api.documents import parse_pods, read_with_status
from engine.api.duration import RetryDelays
from engine.api.encoding.digest import blake2b
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.pod import Pod
from engine.cri.records import PodRecord
from engine.host.inotify import IN_DELETE, IN_MOVED_FROM, InotifyWatch
from engine.host.tasks import Tasks
from engine.node.sources.static_pods import StaticUids, static_pod

log = logging.getLogger("kubengine.sources")

Stamp = tuple[int, int, int]
SETTLE_SECONDS = 0.02
"""Seconds to wait at most for further changes before a scan; never longer than the last scan took."""
TICK_SECONDS = 0.02
"""Seconds within which two writes may get the same timestamp from the file system."""
READ_AT_ONCE = 64
"""The number of manifests that are read before the first report. It doubles with each report, because each
report contains the whole list.
"""
STEP_SECONDS = 60.0
"""Seconds after which a scan, or reading one manifest, counts as stuck."""
RETRY_SECONDS = 0.2
"""Seconds until a failed read is tried again; the pause doubles each time."""
FIRST_READ_SECONDS = 10.0
"""Seconds for which an unreadable manifest delays the first list of pods."""


class _File(msgspec.Struct, gc=False):
    stamp: Stamp | None = None
    pods: list[Pod] = msgspec.field(default_factory=list)
    digest: bytes = b""
    """The digest of the content from which `pods` were parsed."""


class ManifestDirectory:
    """Read the static pods of one directory, or of one file.

    `uids` returns the uid that a running pod already has. `on_change(pods)` receives the whole desired list
    after every change. If a manifest was removed and put back unchanged, one list is reported without its
    pods. `on_fault(error)` receives errors of manifests. A read error is not a change: the read is retried,
    and no list is reported before everything was read once, unless a manifest stays unreadable. `scanned` is
    set after the first scan, whatever its result.
    """

    def __init__(
        self,
        path: Path,
        *,
        node_name: str,
        period: float,
        clock: Callable[[], float],
        uids: StaticUids,
        on_change: Callable[[list[Pod]], None],
        on_fault: Callable[[InvalidInput], None],
        tasks: Tasks | None = None,
    ) -> None:
        self._path = path
        self._node_name = node_name
        self._period = period
        self._clock = clock
        self._uids = uids
        self._on_change = on_change
        self._on_fault = on_fault
        self._files: dict[str, _File] = {}
        self._reported: set[str] = set()
        self._dirty = asyncio.Event()
        self._watch: InotifyWatch | None = None
        self._task = (tasks or Tasks()).task("manifests")
        self._known = self._changed = False
        self._unread: set[str] = set()
        self._removed_files: set[str] = set()
        self._restored: set[str] = set()
        self.scanned = asyncio.Event()

    async def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        await self._task.stop()
        if self._watch is not None:
            self._watch.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + FIRST_READ_SECONDS
        retries = RetryDelays(RETRY_SECONDS, self._period)
        failures = 0
        while True:
            began = loop.time()
            await self._read_changes()
            took = loop.time() - began
            patient = loop.time() < patient_until
            # A manifest that cannot be read yet may belong to a running pod. A list without it would end the
            # pod, so the first list waits for all files, within limits.
            if not (self._known or (self._unread if patient else str(self._path) in self._unread)):
                self._known = self._changed = True
            self._report_changes()
            self.scanned.set()
            failures = failures + 1 if self._unread else 0
            try:
                async with asyncio.timeout(retries.after(failures) if self._unread else self._period):
                    await self._dirty.wait()
                # Tools write several manifests in a row: wait for more, but never for longer than a read
                # takes.
                await asyncio.sleep(min(took, SETTLE_SECONDS))
            except TimeoutError:
                pass

    def _ensure_watch(self) -> None:
        directory = self._path if self._path.is_dir() else self._path.parent
        if self._watch is not None or not directory.is_dir():
            return
        try:
            self._watch = InotifyWatch(self._file_changed)
            self._watch.add(directory)
        except Refused as error:
            log.warning("%s; manifests are re-read every %g s only", error, self._period)

    def _file_changed(self, mask: int, directory: Path, name: str) -> None:
        path = str(directory / name)
        if mask & (IN_DELETE | IN_MOVED_FROM) and path in self._files:
            self._removed_files.add(path)
        self._dirty.set()

    def _report_changes(self) -> None:
        if not (self._known and self._changed):
            return
        pods = self._desired()
        # A manifest that was removed and put back unchanged restarts its pod, as with a kubelet: the list
        # without the pod ends it, and the next one starts it again.
        if self._restored:
            self._on_change([pod for pod in pods if pod.uid not in self._restored])
            self._restored.clear()
        self._on_change(pods)
        self._changed = False

    async def _read_changes(self) -> None:
        """Read changed files and report them in parts, so that the first of many pods start while others are
        read.

        Pods of unreadable files stay.
        """
        self._dirty.clear()
        with self._task.step(STEP_SECONDS):
            self._ensure_watch()
            unread = await self._find_unread()
        held = self._uids.held() if unread else {}
        reported = READ_AT_ONCE
        for count, path in enumerate(unread, 1):
            with self._task.step(STEP_SECONDS):
                self._changed |= self._read_file(path, held)
                # Yield to the event loop, so that pods that were read before can start.
                await asyncio.sleep(0)
                if count in (reported, len(unread)):
                    self._report_changes()
                    reported = 2 * count

    async def _find_unread(self) -> list[str]:
        """Forget files that were deleted, and return the paths of new and changed files."""
        self._unread.clear()
        try:
            found, faults = await asyncio.to_thread(_stamps, self._path)
        except OSError as error:
            path = str(self._path)
            self._not_read(path, InvalidInput(error.strerror or str(error), subject=path))
            return []
        for path, fault in faults.items():
            self._not_read(path, fault)
        for path in self._files.keys() - found.keys() - faults.keys():
            del self._files[path]
            self._removed_files.discard(path)
            self._changed = True
        return [path for path, stamp in found.items() if self._has_changed(path, stamp)]

    def _has_changed(self, path: str, stamp: Stamp) -> bool:
        known = self._files.get(path)
        return known is None or known.stamp != stamp or path in self._removed_files

    def _not_read(self, path: str, fault: InvalidInput) -> None:
        self._unread.add(path)
        self._report(fault)

    def _read_file(self, path: str, held: Mapping[str, PodRecord]) -> bool:
        file = self._files.setdefault(path, _File())
        file.stamp = None
        try:
            data, status = read_with_status(Path(path))
        except InvalidInput as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._unread.add(path)  # the file disappeared while others were read
            elif isinstance(error.__cause__, OSError):
                self._not_read(path, error)
            else:
                self._report(error)
            return False
        # Two writes within one tick of the kernel's clock leave the same mtime, so an unchanged stamp proves
        # unchanged content only if the file is older than a tick.
        if status.st_mtime < time.time() - TICK_SECONDS:
            file.stamp = _stamp(status)
        digest = blake2b(data, digest_size=16).digest()
        if digest == file.digest and path not in self._removed_files:
            return False
        try:
            manifests, warnings = parse_pods(data, path)
            pods = [self._pod(manifest, path, index, held) for index, manifest in enumerate(manifests)]
        except InvalidInput as error:
            self._report(error)
            return False
        except Unavailable as error:
            file.stamp = None
            self._not_read(path, InvalidInput(str(error), subject=path))
            return False
        except Exception as error:
            log.exception("manifest %s", path)
            self._report(InvalidInput(f"unexpected {type(error).__name__}: {error}", subject=path))
            return False
        for warning in warnings:
            log.warning("%s", warning)
        if path in self._removed_files:
            self._removed_files.discard(path)
            before = {pod.uid: pod.spec for pod in file.pods}
            self._restored.update(pod.uid for pod in pods if before.get(pod.uid) == pod.spec)
        file.pods, file.digest = pods, digest
        return True

    def _pod(self, manifest: Pod, path: str, index: int, held: Mapping[str, PodRecord]) -> Pod:
        origin = path if index == 0 else f"{path}[{index}]"
        return static_pod(
            manifest,
            node_name=self._node_name,
            origin=origin,
            seen_at=self._clock(),
            uid_of=lambda pod, digest, new: self._uids.choose(pod, digest, new, held),
        )

    def _desired(self) -> list[Pod]:
        """Return all pods. If two files use the same name or uid, the first file (by name) wins."""
        owners: dict[str, str] = {}
        pods: list[Pod] = []
        for path, file in sorted(self._files.items()):
            for pod in file.pods:
                name = pod.full_name
                owner = owners.get(name) or owners.get(pod.uid)
                if owner is None:
                    owners[name] = owners[pod.uid] = path
                    pods.append(pod)
                else:
                    text = f"metadata.name: pod {name} is already defined in {owner}"
                    self._report(InvalidInput(text, subject=path))
        self._uids.keep_only(pod.uid for pod in pods)
        return pods

    def _report(self, error: InvalidInput) -> None:
        if str(error) not in self._reported:
            self._reported = {*list(self._reported)[-999:], str(error)}
            self._on_fault(error)


def _stamps(path: Path) -> tuple[dict[str, Stamp], dict[str, InvalidInput]]:
    """Return size, mtime and inode of every manifest by path, in the order of names, and the errors by path.

    Call it in a thread, because thousands of stat calls would block the event loop. Paths are strings,
    because thousands of `Path` objects are large, and slow to create and compare.
    """
    if not path.exists():
        return {}, {}
    stamps: dict[str, Stamp] = {}
    faults = {}
    names = sorted(os.listdir(path)) if path.is_dir() else [path.name]  # noqa: PTH208
    parent = path if path.is_dir() else path.parent
    for name in names:
        if name.startswith("."):
            continue
        each = os.path.join(parent, name)  # noqa: PTH118
        try:
            info = os.stat(each)  # noqa: PTH116
        except FileNotFoundError:
            continue
        except OSError as error:
            faults[each] = InvalidInput(error.strerror or str(error), subject=each)
            continue
        if stat.S_ISREG(info.st_mode):
            stamps[each] = _stamp(info)
    return stamps, faults


def _stamp(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ino
