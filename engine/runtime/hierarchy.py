"""Create the cgroups of containers and write the values that the CRI asks for.

Layouts are v1 (a directory per controller) and v2 (one tree), found below one mount directory. Values are
written as runc writes them; a zero leaves the value unchanged. A controller that the machine lacks is
skipped, as runc does if it has no limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.api.amounts.cpu_weight import WeightFormula, cpu_weight
from engine.api.errors import InvalidInput, Refused
from engine.host.cgroupfs.mounts import Mounts, find_mounts
from engine.runtime.shim import cgroup
from engine.wire import cri_v1_pb2 as cri

V1_ORDER = ("memory", "cpu", "cpuacct", "cpuset", "pids", "devices", "freezer", "blkio", "hugetlb", "net_cls",
            "net_prio", "perf_event", "rdma", "misc", "name=systemd")  # fmt: skip
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")
DEFAULT_DEVICES = (
    "c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm",
    "c 5:2 rwm", "c 136:* rwm",
)  # fmt: skip


CANNOT_ENABLE = (errno.EBUSY, errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES)
"""Why a v2 group does not pass a controller on: it has processes of its own (EBUSY), it is threaded, or it is
above the subtree that was delegated to this user (EACCES)."""


class RuntimeHierarchy:
    """Access the cgroup file systems below `mount`. Raise Unavailable if there are none."""

    def __init__(self, mount: Path = Path("/sys/fs/cgroup"), *, weights: WeightFormula = "linear") -> None:
        self._weights = weights
        mounts = find_mounts(str(mount))
        self.v2 = mounts.version == 2
        self.trees = {"": Path(mounts.hierarchies[0].path)} if self.v2 else _v1_trees(mounts)

    def directories(self, path: str) -> list[str]:
        """Return the directory of cgroup `path` in each tree, without symbolic duplicates."""
        return [f"{tree}/{path.strip('/')}" for tree in dict.fromkeys(self.trees.values())]

    def named(self, identifier: str) -> list[str]:
        """Return every cgroup with `identifier` in its name, for an object of which nothing else is known."""
        found = []
        for tree in dict.fromkeys(self.trees.values()):
            for above, names, _ in os.walk(tree):
                found += [f"{above}/{name}" for name in names if identifier in name]
        return found

    def make(self, path: str) -> list[str]:
        """Create cgroup `path` with its parents, ready to hold processes; return its directories."""
        if self.v2:
            self._make_v2(path)
        else:
            for name, tree in self.trees.items():
                _make_v1(tree, path, cpuset=name == "cpuset")
        return self.directories(path)

    def apply(self, path: str, wanted: cri.LinuxContainerResources) -> None:
        """Write the limits. Raise Refused with the file and the kernel's reason."""
        for directory, name, value in (
            self._v2_values(path, wanted) if self.v2 else self._v1_values(path, wanted)
        ):
            file = Path(directory, name)
            if not file.exists():
                if name.startswith(("hugetlb.", "memory.swap", "memory.memsw")):
                    continue
                raise Refused("this kernel or cgroup has no such file", subject=str(file))
            try:
                cgroup.write(str(file), value)
            except OSError as error:
                raise Refused(
                    f"writing {value!r}: {error.strerror}", subject=str(file), errno=error.errno
                ) from None

    def allow_devices(self, path: str, devices: Sequence[cri.Device] | None) -> None:
        """Write the device list of v1; None allows all. v2 has no file for it (it would need a
        BPF program).
        """
        tree = self.trees.get("devices")
        if tree is None:
            return
        directory = tree / path.strip("/")
        with contextlib.suppress(PermissionError):
            if devices is None:
                cgroup.write(f"{directory}/devices.allow", "a")
                return
            cgroup.write(f"{directory}/devices.deny", "a")
            for rule in (*DEFAULT_DEVICES, *_device_rules(devices)):
                cgroup.write(f"{directory}/devices.allow", rule)

    def views(self, path: str) -> list[tuple[str, str]]:
        """Return the name and directory of each v1 tree, to show to a container below /sys/fs/cgroup."""
        if self.v2:
            return []
        return [(tree.name, f"{tree}/{path.strip('/')}") for tree in dict.fromkeys(self.trees.values())]

    def _make_v2(self, path: str) -> None:
        directory = self.trees[""]
        for part in path.strip("/").split("/"):
            _enable(directory)
            directory = directory / part
            directory.mkdir(exist_ok=True)

    def _v1_values(self, path: str, wanted: cri.LinuxContainerResources) -> Iterable[tuple[str, str, str]]:
        def at(controller: str) -> str:
            tree = self.trees.get(controller)
            if tree is None:
                raise Refused("this machine lacks the controller", subject=f"cgroup controller {controller}")
            return f"{tree}/{path.strip('/')}"

        if wanted.cpu_shares:
            yield at("cpu"), "cpu.shares", str(wanted.cpu_shares)
        if wanted.cpu_period:
            yield at("cpu"), "cpu.cfs_period_us", str(wanted.cpu_period)
        if wanted.cpu_quota:
            yield at("cpu"), "cpu.cfs_quota_us", str(wanted.cpu_quota)
        if wanted.memory_limit_in_bytes or wanted.memory_swap_limit_in_bytes:
            directory = at("memory")
            limits = [
                ("memory.limit_in_bytes", wanted.memory_limit_in_bytes),
                ("memory.memsw.limit_in_bytes", wanted.memory_swap_limit_in_bytes),
            ]
            # The kernel keeps memory.limit <= memory.memsw.limit at every moment, so that the order depends
            # on the direction.
            if _grows(directory, wanted.memory_limit_in_bytes):
                limits.reverse()
            for name, value in limits:
                if value:
                    yield directory, name, str(value)
        if wanted.cpuset_cpus:
            yield at("cpuset"), "cpuset.cpus", wanted.cpuset_cpus
        if wanted.cpuset_mems:
            yield at("cpuset"), "cpuset.mems", wanted.cpuset_mems
        if "hugetlb" in self.trees:
            for huge in wanted.hugepage_limits:
                yield at("hugetlb"), f"hugetlb.{huge.page_size}.limit_in_bytes", str(huge.limit)

    def _v2_values(self, path: str, wanted: cri.LinuxContainerResources) -> Iterable[tuple[str, str, str]]:
        directory = f"{self.trees['']}/{path.strip('/')}"
        if wanted.cpu_shares:
            yield directory, "cpu.weight", str(cpu_weight(wanted.cpu_shares, self._weights))
        if wanted.cpu_quota or wanted.cpu_period:
            quota = "max" if wanted.cpu_quota <= 0 else str(wanted.cpu_quota)
            yield directory, "cpu.max", f"{quota} {wanted.cpu_period or 100_000}"
        if wanted.memory_limit_in_bytes:
            yield directory, "memory.max", _or_max(wanted.memory_limit_in_bytes)
        if wanted.memory_swap_limit_in_bytes:
            swap = wanted.memory_swap_limit_in_bytes
            if swap > 0 and wanted.memory_limit_in_bytes > 0:
                swap -= wanted.memory_limit_in_bytes  # v1 counts memory and swap together, v2 swap alone
            yield directory, "memory.swap.max", _or_max(swap)
        if wanted.cpuset_cpus:
            yield directory, "cpuset.cpus", wanted.cpuset_cpus
        if wanted.cpuset_mems:
            yield directory, "cpuset.mems", wanted.cpuset_mems
        for huge in wanted.hugepage_limits:
            yield directory, f"hugetlb.{huge.page_size}.max", str(huge.limit)
        for name, value in wanted.unified.items():
            if "/" in name or "." not in name:
                raise InvalidInput("expected the name of a cgroup file", subject=f"unified {name!r}")
            yield directory, name, value


def _grows(directory: str, limit: int) -> bool:
    """Tell whether the memory limit would exceed the current memory and swap limit, which must then be raised
    first.
    """
    try:
        together = int(Path(directory, "memory.memsw.limit_in_bytes").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return limit < 0 or limit > together


def container_path(parent: str, identifier: str, driver: str) -> str:
    """Return the cgroup path of a sandbox or container below `cgroup_parent`.

    cgroupfs: `<parent>/<id>`. systemd: the parent is a slice (`kubepods-burstable-podX.slice`), which lies
    below the slices that its name spells, and the child is a scope.
    """
    parent = parent or ("kubengine.slice" if driver == "systemd" else "/kubengine")
    if driver != "systemd":
        return f"/{parent.strip('/')}/{identifier}"
    name = parent.rsplit("/", 1)[-1]
    if not name.endswith(".slice"):
        raise InvalidInput("with the systemd driver it must be a slice", subject=f"cgroup_parent {parent!r}")
    words = name.removesuffix(".slice").split("-")
    slices = ["-".join(words[: count + 1]) + ".slice" for count in range(len(words))]
    return "/" + "/".join([*slices, f"kubengine-{identifier}.scope"])


def _or_max(value: int) -> str:
    return "max" if value < 0 else str(value)


def _v1_trees(mounts: Mounts) -> dict[str, Path]:
    found = {name: Path(each.path) for each in mounts.hierarchies for name in (*each.controllers, each.name)}
    return {name: found[name] for name in V1_ORDER if name in found}


def _make_v1(tree: Path, path: str, *, cpuset: bool) -> None:
    directory = tree
    for part in path.strip("/").split("/"):
        above, directory = directory, directory / part
        directory.mkdir(exist_ok=True)
        if cpuset:
            for name in ("cpuset.cpus", "cpuset.mems"):
                if not (directory / name).read_text().strip():
                    cgroup.write(f"{directory}/{name}", (above / name).read_text().strip())


def _enable(directory: Path) -> None:
    """Enable every controller of a v2 group for its children."""
    available = (directory / "cgroup.controllers").read_text().split()
    enabled = (directory / "cgroup.subtree_control").read_text().split()
    for name in V2_CONTROLLERS:
        if name in available and name not in enabled:
            try:
                cgroup.write(f"{directory}/cgroup.subtree_control", f"+{name}")
            except OSError as error:
                if error.errno not in CANNOT_ENABLE:
                    raise


def remove(directories: Sequence[str]) -> None:
    """Kill the processes of the groups and remove the groups."""
    existing = [directory for directory in directories if os.path.isdir(directory)]  # noqa: PTH112
    if existing:
        cgroup.kill_all(existing)
        cgroup.remove(existing)


def _device_rules(devices: Sequence[cri.Device]) -> list[str]:
    """Return rules for the wanted devices, including those in directories. Raise InvalidInput."""
    rules = []
    for device in devices:
        top = Path(device.host_path)
        nodes = [p for p in top.rglob("*") if not p.is_dir()] if top.is_dir() else [top]
        for node in nodes:
            try:
                status = node.stat()
            except OSError as error:
                raise InvalidInput(error.strerror or "unreadable", subject=f"device {node}") from None
            kind = "b" if node.is_block_device() else "c"
            numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            rules.append(f"{kind} {numbers} {device.permissions or 'rwm'}")
    return rules
