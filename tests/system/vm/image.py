"""Make the machine's disk once: Debian 12 from its packages, kept in `build/vm`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import Unavailable

SUITE = "bookworm"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "linux-image-amd64", "initramfs-tools"),
    *("containerd", "runc", "crun", "containernetworking-plugins", "iproute2", "iptables", "nftables"),
    *("conntrack", "ethtool", "busybox-static", "ca-certificates", "openssl", "procps", "util-linux"),
    *("e2fsprogs", "xfsprogs", "quota", "make", "git", "jq", "curl", "python3", "python3-venv", "libgomp1"),
)
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "ext4", "9p", "9pnet_virtio", "overlay")
PROGRAMS = ("debootstrap", "mke2fs", "qemu-img", "qemu-system-x86_64")
HOST_PACKAGES = "debootstrap, e2fsprogs, qemu-utils, qemu-system-x86"
DISK = "16G"
SHARE = "/run/host"
COMMANDS = f"""[Unit]
Description=Commands from the machine's host
After=dbus.service
[Service]
ExecStartPre=/bin/mkdir -p {SHARE}
ExecStartPre=/bin/mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share {SHARE}
ExecStart=/usr/bin/python3 {SHARE}/guest.py /dev/virtio-ports/commands
Environment=HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
KillMode=process
TasksMax=infinity
LimitNOFILE=1048576
[Install]
WantedBy=multi-user.target
"""
FILES = {
    "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
    "etc/hostname": "vm\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 vm\n",
    "etc/systemd/network/10-all.network": "[Match]\nName=en*\n[Network]\nDHCP=yes\n",
    "etc/systemd/system/host-commands.service": COMMANDS,
    "etc/initramfs-tools/modules": "\n".join(MODULES) + "\n",
}
ENABLED = ("systemd-networkd", "host-commands")
DISABLED = ("containerd",)


@dataclass(frozen=True, slots=True)
class Image:
    """Hold the paths of a disk to start copies of, and of the kernel and initrd that boot it."""

    disk: Path
    kernel: Path
    initrd: Path


def missing() -> str:
    """Return what this machine lacks to make and start an image, in words; empty if it lacks nothing."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        return "root"
    return f"{', '.join(absent)} (Debian: {HOST_PACKAGES})" if absent else ""


def locate(directory: Path) -> Image:
    """Return where this recipe's image is kept, whether it has been made or not."""
    recipe = hashlib.sha256(repr((SUITE, PACKAGES, FILES, ENABLED, DISABLED, DISK)).encode()).hexdigest()[:12]
    place = directory / recipe
    return Image(place / "root.img", place / "vmlinuz", place / "initrd")


def make(directory: Path, report: Callable[[str], None]) -> Image:
    """Return the image in `directory`; make it if it is missing or its recipe changed (3 minutes, 1.5 GB).

    Raises `Unavailable` with the last lines of the program that failed.
    """
    if lack := missing():
        raise Unavailable(f"needs {lack}", subject="a virtual machine")
    image = locate(directory)
    place = image.disk.parent
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making the same image
        if not image.disk.exists():
            _make(image, report)
    return image


def _make(image: Image, report: Callable[[str], None]) -> None:
    place = image.disk.parent
    report(f"making a Debian {SUITE} machine in {place}")
    _fill(place / "root", report)
    shutil.copy(next((place / "root/boot").glob("vmlinuz-*")), image.kernel)
    shutil.copy(next((place / "root/boot").glob("initrd.img-*")), image.initrd)
    report("writing its disk")
    unfinished = image.disk.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-d", str(place / "root"), str(unfinished), DISK)
    unfinished.rename(image.disk)
    shutil.rmtree(place / "root")


def _fill(root: Path, report: Callable[[str], None]) -> None:
    """Write the root file system: Debian's packages and the files in `FILES`."""
    if root.exists():
        _unmount(root / "proc")
        shutil.rmtree(root)
    report(f"unpacking {len(PACKAGES)} packages and what they need")
    _run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), _mirror())
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _run("chroot", str(root), "passwd", "-q", "-d", "root")
    _run("chroot", str(root), "systemctl", "-q", "enable", *ENABLED)
    _run("chroot", str(root), "systemctl", "-q", "disable", *DISABLED)
    _run("mount", "--bind", "/proc", str(root / "proc"))
    try:
        _run("chroot", str(root), "update-initramfs", "-u", "-k", "all")
    finally:
        _unmount(root / "proc")


def _unmount(path: Path) -> None:
    """Unmount all that is mounted on a path: debootstrap leaves a /proc there that was in use at its end."""
    while path.is_mount():
        _run("umount", "--lazy", str(path))


def _mirror() -> str:
    """Return the Debian mirror that this machine uses, or the public one."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        text = path.read_text() if path.exists() else ""
        if found := re.search(r"^(?:URIs:|deb(?: \[[^]]*\])?) *(http\S+)", text, re.MULTILINE):
            return found[1]
    return DEFAULT_MIRROR


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise Unavailable(f"exit code {done.returncode}:\n{last}", subject=" ".join(command[:2]))
