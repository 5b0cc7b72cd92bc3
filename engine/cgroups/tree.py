"""Manages the tree of cgroups in every hierarchy: creates, writes differing values, reads, removes.

`write` survives cgroups that others deleted or created again: they are created and get all their values.
Files of missing controllers are left out.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from engine.api.errors import Refused
from engine.cgroups.formulas.names import CgroupName, Driver, to_path
from engine.cgroups.group import Descriptors, Directory, GroupGone
from engine.cgroups.interface_files import WRITTEN_CONTROLLERS, FileRules, kernel_form
from engine.cgroups.slices import Slices
from engine.host.cgroupfs.mounts import CgroupHierarchy, Mounts
from engine.host.cgroupfs.refusals import (
    enable_refused,
    make_refused,
    read_refused,
    remove_refused,
    write_refused,
)

DELEGATED = ("memory", "io", "hugetlb", "cpuset", "cpu", "pids")
"""The order of enabling: controllers that threaded cgroups cannot have come first, because their errors say
more.
"""
NEEDED = frozenset(["cpu", "memory", "pids", "hugetlb"])
"""The controllers whose files the agent writes for every cgroup. It passes the others on where they are
offered; a container that is pinned or whose disk use is limited needs them, and its own error says so.
"""
_TOGETHER = frozenset(["cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max"])
"""Files that the kernel may refuse while others have their old values; they are tried again after those."""
_RETRY_DELAY = 0.005


class CgroupNode(msgspec.Struct, gc=False):
    """Hold one cgroup in all hierarchies, and its desired content (file → text).

    `known` is the last text of each file as the kernel returns it. A cgroup that `delegates` passes its
    controllers on to cgroups that others create in it; under v2 it can then hold no processes.
    """

    name: CgroupName
    path: str
    directories: dict[str, Directory]
    known: dict[str, str]
    wanted: dict[str, str] = msgspec.field(default_factory=dict)
    made: bool = False
    delegates: bool = False

    def directory(self, file: str) -> Directory:
        """Return the directory of a file: v2 has one, v1 one per controller."""
        found = self.directories.get("") or self.directories.get(file.partition(".")[0])
        if found is None:
            raise Refused("no mounted hierarchy has this controller", subject=f"{self.path}/{file}")
        return found


class CgroupTree:
    """Keep all cgroups that were created or adopted, by name; `writes` counts written files."""

    def __init__(
        self,
        mounts: Mounts,
        rules: FileRules,
        *,
        driver: Driver = "cgroupfs",
        slices: Slices | None = None,
        max_descriptors: int | None = None,
    ) -> None:
        self.mounts = mounts
        self.rules = rules
        self.driver: Driver = driver
        self.slices = slices
        self.descriptors = Descriptors(max_descriptors)
        self.groups: dict[CgroupName, CgroupNode] = {}
        self.writes = 0
        self.remade = 0
        self._children: dict[CgroupName, set[CgroupName]] = {}
        self._enabled: set[str] = set()
        self._cpuset: dict[str, tuple[str, str]] = {}

    def group(self, name: CgroupName) -> CgroupNode:
        """Return the record of a cgroup, whether or not it exists."""
        group = self.groups.get(name)
        if group is None:
            path = to_path(name, self.driver)
            directories: dict[str, Directory] = {}
            known: dict[str, str] = {}
            for hierarchy in self.mounts.hierarchies:
                # v1 may mount several controllers in one hierarchy (cpu,cpuacct): they share one directory.
                keys = hierarchy.controllers & WRITTEN_CONTROLLERS if self.mounts.version == 1 else {""}
                if keys:
                    directories |= dict.fromkeys(keys, Directory(hierarchy.path, path.rstrip("/"), known))
            group = self.groups[name] = CgroupNode(name, path, directories, known)
            self._children.setdefault(name[:-1], set()).add(name)
        return group

    def exists(self, name: CgroupName) -> bool:
        """Tell whether the cgroup exists in every hierarchy."""
        path = to_path(name, self.driver)
        return all(os.path.isdir(_below(h, path)) for h in self.mounts.hierarchies)  # noqa: PTH112

    def exists_anywhere(self, name: CgroupName) -> bool:
        """Tell whether the cgroup exists in any hierarchy, including those without controllers."""
        path = to_path(name, self.driver)
        return any(os.path.isdir(root + path) for root in self._roots())  # noqa: PTH112

    def make(self, name: CgroupName) -> CgroupNode:
        """Create a cgroup and its missing ancestors, or adopt what exists. Raises `Refused` with the path."""
        group = self.group(name)
        if group.made:
            return group
        try:
            self._make_all(name)
        except Refused as error:
            # ENOENT: somebody, systemd for example, has removed a parent that this tree takes for created.
            # One more try: a parent that vanishes again is being removed on purpose.
            if error.errno != errno.ENOENT:
                raise
            self._distrust(name)
            self._make_all(name)
        return group

    def _make_all(self, name: CgroupName) -> None:
        for depth in range(1, len(name) + 1):
            group = self.group(name[:depth])
            if not group.made:
                self._make(group)
                # An ancestor that was made again has the kernel's defaults, and its limits must hold before a
                # child is used.
                if depth < len(name) and group.wanted:
                    self._write(group, group.wanted)

    def check_identity(self, name: CgroupName) -> None:
        """Check that a cgroup is still the one that was made; otherwise the next `make` or `write` makes it
        again with its values. Stopping a slice removes its cgroup, and a runtime may make another."""
        group = self.groups.get(name)
        if group is not None and group.made:
            for directory in group.directories.values():
                if not directory.is_alive():
                    self._distrust(name)
                    self.remade += 1
                    break

    def _make(self, group: CgroupNode) -> None:
        if self.slices is not None:
            # systemd makes the cgroup of a slice that it starts; only what it leaves out is made below.
            self.slices.start(group.name)
        for directory in group.directories.values():
            directory.forget(self.descriptors)
        for hierarchy in self.mounts.hierarchies:
            path = _below(hierarchy, group.path)
            fresh = _mkdir(path)
            # A cgroup that was just made has the kernel's defaults, so that values equal to them need no
            # write. Nothing is known of one that is adopted.
            if fresh:
                group.known.update(self.rules.fresh(hierarchy.controllers))
            if "cpuset" in hierarchy.controllers and self.mounts.version == 1:
                self._inherit_cpuset(hierarchy, path, fresh)
        # From the root down: a cgroup can pass on only controllers that its parent passes to it (cgroup-v2,
        # "Top-down Constraint").
        if self.mounts.version == 2:
            for depth in range(len(group.name) + group.delegates):
                self._enable(group.name[:depth])
        group.made = True

    def write_files(self, name: CgroupName, wanted: Mapping[str, str]) -> int:
        """Write a cgroup's values, but only those that differ from the last known.

        It first remakes and refills a cgroup that is gone or that lost a controller. Returns the number of
        files written. Raises `Refused` with the path after it has tried the other files; the next call
        tries again.
        """
        group = self.make(name)
        group.wanted.update(wanted)
        try:
            return self._write(group, wanted)
        except GroupGone:
            self.remade += 1
            return self._write_again(group)
        except Refused as error:
            if error.errno != errno.ENOENT:
                raise
            try:
                return self._write_again(group)
            except Refused:
                raise error from None  # the first refusal names the file, the second only a parent

    def _write_again(self, group: CgroupNode) -> int:
        self._distrust(group.name)
        self.make(group.name)
        return self._write(group, group.wanted)

    def _write(self, group: CgroupNode, wanted: Mapping[str, str]) -> int:
        before = self.writes
        refusal: Refused | None = None
        queue = list(wanted.items())
        if self.slices is not None:
            # Before the files: systemd writes its own rounded values when it gets the properties.
            self._set_slice_properties(group, wanted)
        for position, (file, text) in enumerate(queue):
            directory = group.directory(file)
            if directory.current(file, self.descriptors) == text:
                continue
            try:
                directory.write(file, text, self.descriptors)
                self.writes += 1
            except Refused as error:
                # The kernel checks quota, period and burst against each other, and against the parent's: the
                # first of several writes may be refused until the others are done. So each gets a second try.
                tried = (file, text) in queue[:position]
                if file in _TOGETHER and error.errno == errno.EINVAL and not tried:
                    queue.append((file, text))
                else:
                    refusal = refusal or error
        if refusal is not None:
            raise refusal
        return self.writes - before

    def _set_slice_properties(self, group: CgroupNode, wanted: Mapping[str, str]) -> None:
        differs = any(
            group.directory(file).current(file, self.descriptors) != text for file, text in wanted.items()
        )
        if differs and self.slices is not None:
            self.slices.set(group.name, wanted)

    def read(self, name: CgroupName, file: str) -> str | None:
        """Return the text of a file now; None if the cgroup or the file does not exist."""
        group = self.group(name)
        try:
            return group.directory(file).read(file, self.descriptors)
        except GroupGone:
            return None

    def read_path(self, path: str, file: str) -> str | None:
        """Read by path from a cgroup that others created; nothing is cached."""
        hierarchy = self._holding(file)
        if hierarchy is None:
            return None
        try:
            return kernel_form(file, _text(f"{hierarchy.path}{path}/{file}"))
        except Refused as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return None
            raise

    def write_path(self, path: str, file: str, text: str) -> None:
        """Write a file of a cgroup that others created; a missing one is fine. Raises `Refused` otherwise."""
        hierarchy = self._holding(file)
        if hierarchy is None or self.read_path(path, file) in (None, text):
            return
        full = f"{hierarchy.path}{path}/{file}"
        try:
            _put(full, text)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise write_refused(error, full, text) from error
        self.writes += 1

    def _holding(self, file: str) -> CgroupHierarchy | None:
        """Return the hierarchy of a file."""
        if self.mounts.version == 2:
            return self.mounts.hierarchies[0]
        return self.mounts.holding(file.partition(".")[0])

    def verify(self, name: CgroupName) -> dict[str, tuple[str, str | None]]:
        """Return wrong files: file → (expected, actual). The next write repairs them.

        A missing cgroup differs in every file.
        """
        group = self.groups.get(name)
        if group is None:
            return {}
        differing: dict[str, tuple[str, str | None]] = {}
        for file, text in group.wanted.items():
            directory = group.directory(file)
            try:
                actual = directory.read(file, self.descriptors)
            except GroupGone:
                group.made = False
                return {file: (text, None) for file, text in group.wanted.items()}
            if actual is None:
                group.known.pop(file, None)
            else:
                group.known[file] = actual
            if actual != text:
                differing[file] = (text, actual)
        return differing

    def children(self, name: CgroupName) -> dict[str, list[str]]:
        """Return the children of a cgroup: name → paths in all hierarchies."""
        path = to_path(name, self.driver)
        found: dict[str, list[str]] = {}
        for root in self._roots():
            for child in _subdirectories(root + path):
                found.setdefault(child, []).append(f"{(root + path).rstrip('/')}/{child}")
        return found

    def processes(self, name: CgroupName) -> set[int]:
        """Return the pids in a cgroup and everything below it."""
        path = to_path(name, self.driver)
        return _pids_below(root + path for root in self._roots())

    def kill(self, name: CgroupName) -> int:
        """Send SIGKILL to every process in the cgroup and below; return how many got it."""
        return _kill(self.processes(name))

    def kill_children(self, name: CgroupName, part: str) -> int:
        """Kill in the same way what runs in the children of a cgroup whose names contain `part`."""
        found = self.children(name).items()
        return _kill(_pids_below(path for child, paths in found if part in child for path in paths))

    def remove(self, name: CgroupName, *, kill: bool = False, wait: float = 0.0) -> None:
        """Remove a cgroup and everything below it from every hierarchy; a missing one is fine.

        With `kill`, remaining processes are killed first. A busy cgroup is tried again for `wait` seconds.
        Raises `Refused` (EBUSY) with the path if processes are left.
        """
        deadline = time.monotonic() + wait
        path = to_path(name, self.driver)
        for below in self._descendants(name):
            for directory in self.groups[below].directories.values():
                directory.forget(self.descriptors)
                self._enabled.discard(directory.path)
                self._cpuset.pop(directory.path, None)
        if self.slices is not None:
            if kill:
                # systemd waits for a minute and a half for a process that ignores SIGTERM.
                self.kill(name)
            # Stopping a slice removes its cgroup; what is left of it is removed below.
            self.slices.stop(name)
        while True:
            busy: Refused | None = None
            for root in self._roots():
                try:
                    _rmdir(root + path)
                except OSError as error:
                    busy = remove_refused(error, error.filename or root + path)
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise busy from error
            if busy is None:
                break
            # With `kill`, a cgroup without `wait` still gets one round of signals and one more try.
            if time.monotonic() >= deadline and not kill:
                raise busy
            if kill:
                # In each round, since a process that was forking may have left a child behind.
                self.kill(name)
            if time.monotonic() >= deadline:
                kill = False
            time.sleep(_RETRY_DELAY)
        self.forget(name)

    def forget(self, name: CgroupName) -> None:
        """Drop the record of a cgroup that is no longer ours; the cgroup stays."""
        for below in self._descendants(name):
            for directory in self.groups.pop(below).directories.values():
                directory.forget(self.descriptors)
            self._children.pop(below, None)
        self._children.get(name[:-1], set()).discard(name)

    def close(self) -> None:
        """Close open directories; the cgroups stay."""
        self.descriptors.close_all()
        if self.slices is not None:
            self.slices.close()

    def _roots(self) -> list[str]:
        # A hybrid's v2 mount has no controllers for pods, but runtimes and systemd create their cgroups
        # there, too.
        roots = [h.path for h in self.mounts.hierarchies]
        return [*roots, self.mounts.bare] if self.mounts.bare else roots

    def _descendants(self, name: CgroupName) -> list[CgroupName]:
        """Return a known cgroup and all known cgroups below it."""
        found = [name] if name in self.groups else []
        for child in self._children.get(name, ()):
            found += self._descendants(child)
        return found

    def _distrust(self, name: CgroupName) -> None:
        """Distrust what is known about a cgroup, its ancestors and its descendants: the next write verifies
        them.
        """
        ancestors = [name[:depth] for depth in range(1, len(name))]
        for doubtful in [*ancestors, *self._descendants(name)]:
            group = self.groups.get(doubtful)
            if group is None:
                continue
            group.made = False
            for directory in group.directories.values():
                directory.forget(self.descriptors)
                self._enabled.discard(directory.path)
                self._cpuset.pop(directory.path, None)
        self._enabled.discard(self.mounts.hierarchies[0].path)

    def _enable(self, name: CgroupName) -> None:
        """Enable all controllers of one cgroup for its children.

        systemd rewrites a slice's `cgroup.subtree_control` whenever a unit below it starts or stops and
        keeps only what its units asked for, so under systemd every call reads the file again.
        """
        path = _below(self.mounts.hierarchies[0], to_path(name, self.driver))
        if path in self._enabled:
            return
        control = f"{path}/cgroup.subtree_control"
        offered = _text(f"{path}/cgroup.controllers").split()
        lost = [c for c in self.rules.controllers if c in NEEDED and c not in offered]
        if lost:
            raise Refused(
                f"the {', '.join(sorted(lost))} controller is not offered here; "
                "it is disabled in a parent's cgroup.subtree_control, or the subtree is threaded",
                subject=path,
                errno=errno.ENOENT,
            )
        enabled = _text(control).split()
        # One by one: if one of several is refused, the kernel enables none of them.
        for controller in (c for c in DELEGATED if c in offered and c not in enabled):
            try:
                _put(control, f"+{controller}")
            except OSError as error:
                if error.errno == errno.EACCES and controller not in NEEDED:
                    continue  # a cgroup above the subtree that was delegated to this user, without it
                raise enable_refused(error, control, controller) from error
        if self.slices is None:
            self._enabled.add(path)

    def _inherit_cpuset(self, hierarchy: CgroupHierarchy, path: str, fresh: bool) -> None:
        """Give a `fresh` v1 cpuset its parent's CPUs and nodes: an empty one accepts no process."""
        parent = path.rpartition("/")[0] or hierarchy.path
        inherited = self._cpuset.get(parent)
        if inherited is None:
            inherited = self._cpuset[parent] = (
                _text(f"{parent}/cpuset.cpus"),
                _text(f"{parent}/cpuset.mems"),
            )
        for file, text in zip(("cpuset.cpus", "cpuset.mems"), inherited, strict=True):
            if text and (fresh or not _text(f"{path}/{file}")):
                try:
                    _put(f"{path}/{file}", text)
                except OSError as error:
                    raise make_refused(error, f"{path}/{file}") from error


def _below(hierarchy: CgroupHierarchy, path: str) -> str:
    return hierarchy.path + path.rstrip("/")


def _mkdir(path: str) -> bool:
    try:
        os.mkdir(path, 0o755)  # noqa: PTH102
    except FileExistsError:
        return False
    except OSError as error:
        raise make_refused(error, path) from error
    return True


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return (file.read() or b"").decode().strip()
    except OSError as error:
        raise read_refused(error, path) from error


def _put(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # One write call: the kernel takes each call as a whole new value.
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _subdirectories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise read_refused(error, path) from error


def _walk(path: str) -> Iterator[str]:
    """Yield a cgroup and everything below it, deepest first."""
    for child in _subdirectories(path):
        yield from _walk(f"{path}/{child}")
    yield path


def _pids(path: str) -> list[int]:
    try:
        return [int(pid) for pid in _text(f"{path}/cgroup.procs").split()]
    except Refused as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return []
        raise


def _pids_below(tops: Iterable[str]) -> set[int]:
    return {pid for top in tops for path in _walk(top) for pid in _pids(path)}


def _kill(pids: set[int]) -> int:
    killed = 0
    # An agent that was started below its own pods' cgroup, as in a test, must survive.
    for pid in pids - {os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            continue
    return killed


def _rmdir(path: str) -> None:
    try:
        os.rmdir(path)  # noqa: PTH106
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        children = _subdirectories(path)
        # EBUSY without children means processes.
        if not children:
            raise
        for child in children:
            _rmdir(f"{path}/{child}")
        os.rmdir(path)  # noqa: PTH106
