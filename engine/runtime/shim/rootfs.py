"""Build a container's file system in a private mount namespace.

Sources are first taken as detached copies of the host's mounts, so that propagation to and from the host
still works after all other mounts became private; then the root is assembled and entered. No mount appears
on the host, so none can be left there.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, NamedTuple

from engine.runtime.shim import linux

PRIVATE, HOST_TO_CONTAINER, BIDIRECTIONAL = 0, 1, 2
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
}  # fmt: skip
NOT_DEVICES = ("/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/console", "/dev/ptmx")
SAFE = linux.MS_NOSUID | linux.MS_NOEXEC | linux.MS_NODEV
OWN = frozenset({"dev", "mnt", "proc", "run", "sys", "tmp"})
"""Directories that a container of the host's image has for itself."""
TERMINALS = "newinstance,ptmxmode=0666,mode=0620"


class Device(NamedTuple):
    """Describe a node to create at `path` in the container, like `host` on the host."""

    host: str
    path: str
    mode: int
    number: int
    uid: int
    gid: int


def enter(request: dict[str, Any], shm: int) -> None:
    """Build the root that `request` describes and pivot into it. `shm` is a detached mount."""
    sources = []
    for mount in request["mounts"]:
        if not os.path.exists(mount["source"]):
            os.makedirs(mount["source"], mode=0o755, exist_ok=True)
        sources.append((mount, linux.open_tree(os.path.realpath(mount["source"]))))
    groups = [(name, linux.open_tree(path)) for name, path in request["cgroup_mounts"]]
    devices = _host_devices(request)

    linux.unshare(linux.CLONE_NEWNS)
    # After the sources were taken: their copies keep their propagation to the host, everything else loses it.
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    root = request["rootfs"]["path"]
    readonly = _mount_root(request["rootfs"]) or request["readonly_rootfs"]
    taken = {mount["target"] for mount, _ in sources}
    _mount_system(root, request, taken, shm, groups)
    for mount, fd in sources:
        _attach(root, mount, fd)
    _make_devices(root, devices)
    os.chdir(root)
    # With the same directory twice, the old root lies on top of the new one and needs no place of its own
    # (pivot_root(2)).
    linux.pivot_root(".", ".")
    linux.umount(".", linux.MNT_DETACH)
    os.chdir("/")
    for path in request["readonly_paths"]:
        _read_only(path)
    for path in request["masked_paths"]:
        _mask(path)
    # Last: the mounts above needed directories and files to be created in it.
    if readonly:
        linux.make_readonly("/")


def inside(root: str, path: str) -> str:
    """Resolve a `path` of the container, following symbolic links as if `root` were the root."""
    parts = [part for part in path.split("/") if part and part != "."][::-1]
    real: list[str] = []
    hops = 0
    while parts:
        part = parts.pop()
        if part == "..":
            real = real[:-1]
            continue
        candidate = "/".join([root, *real, part])
        if os.path.islink(candidate):
            hops += 1
            if hops > 40:
                raise OSError(40, "too many symbolic links", path)
            target = os.readlink(candidate)
            if target.startswith("/"):
                real = []
            parts.extend(p for p in target.split("/")[::-1] if p and p != ".")
            continue
        real.append(part)
    return "/".join([root, *real])


def _mount_root(rootfs: dict[str, Any]) -> bool:
    """Stack the layers; if overlayfs refuses, copy them, or show the host's root.

    Return whether the root must become read-only once all is mounted in it.
    """
    path = rootfs["path"]
    if rootfs["overlay"]:
        os.chdir(rootfs["layers_directory"])  # short names: options are limited to a page
        try:
            if _stack(path, ":".join(rootfs["layers"][::-1]), rootfs["upper"], rootfs["work"]):
                return False
        finally:
            os.chdir("/")
    if rootfs["layers"] == ["/"]:
        _show_host(path)
        return True
    if not os.listdir(path):
        from pathlib import Path

        from engine.runtime.shim.flatten import flatten

        base = rootfs["layers_directory"]
        flatten([Path(base, layer) for layer in rootfs["layers"]], Path(path))
    linux.mount(path, path, "", linux.MS_BIND | linux.MS_REC)
    return False


def _stack(path: str, lower: str, upper: str, work: str) -> bool:
    """Mount an overlay; return False if overlayfs refuses, for example an `upper` on another overlay."""
    # In a user namespace overlayfs cannot write its `trusted.` attributes.
    attributes = ",userxattr" if linux.IN_USER_NAMESPACE else ""
    options = f"lowerdir={lower},upperdir={upper},workdir={work}{attributes}"
    try:
        linux.mount("overlay", path, "overlay", 0, options)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM, errno.ENODEV):
            raise
        return False
    return True


def _show_host(path: str) -> None:
    """Show the host's root at `path`, under a small tmpfs that holds only the mount points of volumes.

    Without overlayfs, volumes can only be mounted where the host has a directory or file.
    """
    if linux.IN_USER_NAMESPACE:
        _show_host_directories(path)
        return
    linux.mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=755")
    os.mkdir(f"{path}/upper", 0o755)
    os.mkdir(f"{path}/work")
    if not _stack(path, "/", f"{path}/upper", f"{path}/work"):
        linux.move_mount(linux.open_tree("/", recursive=False), path)
        linux.make_readonly(path)


def _show_host_directories(path: str) -> None:
    """Show the directories of the host's root one by one under a small tmpfs, except those in `OWN`.

    A user namespace may not show the root alone, since the mounts of the host below it would uncover what
    they hide (mount_namespaces(7)).
    """
    linux.mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=755")
    for entry in os.scandir("/"):
        place = f"{path}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        elif entry.is_dir():
            os.mkdir(place)
            if entry.name not in OWN:
                linux.mount(entry.path, place, "", linux.MS_BIND | linux.MS_REC)
                linux.make_readonly(place, recursive=True)


def _mount_system(
    root: str, request: dict[str, Any], taken: set[str], shm: int, groups: list[tuple[str, int]]
) -> None:
    privileged = request["privileged"]
    readonly = 0 if privileged else linux.MS_RDONLY
    if "/proc" not in taken:
        linux.mount("proc", _directory(root, "/proc"), "proc", SAFE)
    if "/dev" not in taken:
        dev = _directory(root, "/dev")
        linux.mount("tmpfs", dev, "tmpfs", linux.MS_NOSUID | linux.MS_STRICTATIME, "mode=755,size=65536k")
        for name, (major, minor) in NODES.items():
            host = f"/dev/{name}"
            number = os.makedev(major, minor)
            _make_node(Device(host, host, stat.S_IFCHR | 0o666, number, uid=0, gid=0), f"{dev}/{name}")
        for name, target in LINKS.items():
            os.symlink(target, f"{dev}/{name}")
        _mount_terminals(_directory(root, "/dev/pts"))
        linux.mount("mqueue", _directory(root, "/dev/mqueue"), "mqueue", SAFE)
    if "/dev/shm" not in taken:
        linux.move_mount(shm, _directory(root, "/dev/shm"))
    if "/sys" not in taken:
        linux.mount("sysfs", _directory(root, "/sys"), "sysfs", SAFE | readonly)
        if request["cgroup2"]:
            # The container then sees its own cgroup as the root of the hierarchy.
            linux.unshare(linux.CLONE_NEWCGROUP)
            linux.mount("cgroup", f"{root}/sys/fs/cgroup", "cgroup2", SAFE | readonly)
        elif groups:
            tree = f"{root}/sys/fs/cgroup"
            linux.mount("tmpfs", tree, "tmpfs", SAFE, "mode=755")
            for name, fd in groups:
                os.mkdir(f"{tree}/{name}")
                linux.move_mount(fd, f"{tree}/{name}")
                if not privileged:
                    linux.make_readonly(f"{tree}/{name}")
            if not privileged:
                linux.make_readonly(tree)


def _mount_terminals(place: str) -> None:
    flags = linux.MS_NOSUID | linux.MS_NOEXEC
    try:
        linux.mount("devpts", place, "devpts", flags, f"{TERMINALS},gid=5")
    except OSError as error:
        # The user namespace has no group 5 (tty).
        if error.errno != errno.EINVAL or not linux.IN_USER_NAMESPACE:
            raise
        linux.mount("devpts", place, "devpts", flags, TERMINALS)


def _attach(root: str, mount: dict[str, Any], fd: int) -> None:
    is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
    target = _directory(root, mount["target"]) if is_directory else _file(root, mount["target"])
    linux.move_mount(fd, target)
    os.close(fd)
    kind = {PRIVATE: linux.MS_PRIVATE, HOST_TO_CONTAINER: linux.MS_SLAVE, BIDIRECTIONAL: linux.MS_SHARED}
    # After the move: a detached mount has no peers yet that a change would reach.
    linux.mount("", target, "", kind[mount["propagation"]] | linux.MS_REC)
    if mount["readonly"]:
        linux.make_readonly(target, recursive=mount["recursive_readonly"])


def _host_devices(request: dict[str, Any]) -> list[Device]:
    """Return every node to create beside `NODES`."""
    found: list[Device] = []
    for device in request["devices"]:
        host, path = device["host"], device["container"]
        if os.path.isdir(host):
            for directory, _, names in os.walk(host):
                below = directory[len(host.rstrip("/")) :]
                for name in names:
                    _add_device(found, f"{directory}/{name}", f"{path.rstrip('/')}{below}/{name}")
        elif not _add_device(found, os.path.realpath(host), path):
            raise OSError(2, "not a device", host)
    if request["privileged"]:
        for directory, directories, names in os.walk("/dev"):
            directories[:] = [d for d in directories if not f"{directory}/{d}".startswith(NOT_DEVICES)]
            for name in names:
                path = f"{directory}/{name}"
                if not path.startswith(NOT_DEVICES) and name not in NODES:
                    _add_device(found, path, path)
    return found


def _add_device(found: list[Device], host: str, path: str) -> bool:
    status = os.lstat(host)
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        return False
    found.append(Device(host, path, status.st_mode, status.st_rdev, status.st_uid, status.st_gid))
    return True


def _make_devices(root: str, devices: list[Device]) -> None:
    for device in devices:
        place = inside(root, device.path)
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        if os.path.lexists(place):
            os.unlink(place)
        _make_node(device, place)


def _make_node(device: Device, place: str) -> None:
    if linux.IN_USER_NAMESPACE:
        # mknod(2) needs CAP_MKNOD in the initial user namespace, so the host's own node is shown.
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        linux.mount(device.host, place, "", linux.MS_BIND)
        return
    os.mknod(place, device.mode, device.number)
    # mknod(2) reduces the mode by the umask.
    os.chmod(place, stat.S_IMODE(device.mode))
    os.chown(place, device.uid, device.gid)


def _directory(root: str, path: str) -> str:
    place = inside(root, path)
    os.makedirs(place, mode=0o755, exist_ok=True)
    return place


def _file(root: str, path: str) -> str:
    place = inside(root, path)
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    if not os.path.lexists(place):
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    return place


def _read_only(path: str) -> None:
    if os.path.lexists(path):
        linux.mount(path, path, "", linux.MS_BIND | linux.MS_REC)
        linux.make_readonly(path, recursive=True)


def _mask(path: str) -> None:
    if os.path.isdir(path):
        linux.mount("tmpfs", path, "tmpfs", linux.MS_RDONLY)
    elif os.path.lexists(path):
        linux.mount("/dev/null", path, "", linux.MS_BIND)
