"""Creates, checks, mounts and grows file systems with the machine's programs: blkid, mkfs, fsck, mount,
resize2fs.

An empty device gets a file system; a device with any content is never overwritten. Source: kubelet v1.36
(`mount-utils`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.host.child import Printed, run_child

PROBE_SECONDS: Final = 60.0
MOUNT_SECONDS: Final = 120.0
WORK_SECONDS: Final = 3600.0
"""Seconds allowed for creating, checking or growing a file system."""

DEFAULT_KIND: Final = "ext4"
PARTITIONS: Final = "unknown data, probably partitions"
_KIND = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,31}")
_MOST_SAID: Final = 1 << 16
_NOTHING_FOUND: Final = 2
_MENDED, _NOT_MENDED = 1, 4
_OPTIONS = {"ext3": ("-F", "-m0"), "ext4": ("-F", "-m0"), "xfs": ("-f",)}

log = logging.getLogger("kubengine.volumes")


class FilesystemMismatch(Refused):
    """Raised if a device holds something other than the requested type of file system."""


async def format_and_mount(device: Path, target: Path, kind: str, options: Sequence[str]) -> None:
    """Mount a device with a file system of this type, which is created if the device is empty.

    Raises `InvalidInput` for an unknown type, `FilesystemMismatch` and `Refused`.
    """
    if not _KIND.fullmatch(kind):
        raise InvalidInput(f"{kind!r} is not a known file system type")
    read_only = "ro" in options
    mounting = [*options, "defaults"]
    found = await _found(device)
    if found:
        # fsck writes, which a device that is attached for reading only does not take.
        if not read_only:
            await _check(device)
    elif read_only:
        text = f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
        raise Refused(text)
    else:
        log.info("%s is empty: creating a %s file system", device, kind)
        made = await _run([f"mkfs.{kind}", *_OPTIONS.get(kind, ()), str(device)], WORK_SECONDS)
        if made.code:
            asked = f'type:("{kind}") target:("{target}") options:("{",".join(mounting)}")'
            why = f"errcode:(exit status {made.code}) output:({_words(made)})"
            raise Refused(f'format of disk "{device}" failed: {asked} {why}')
    command = ["mount", "-t", kind, "-o", ",".join(mounting), str(device), str(target)]
    mounted = await _run(command, MOUNT_SECONDS)
    if mounted.code:
        text = f"mount failed: exit status {mounted.code}: {_words(mounted)}"
        raise FilesystemMismatch(f"{text} (it holds {found})") if found not in ("", kind) else Refused(text)


async def grow_file_system(device: Path, mount: Path) -> None:
    """Grow the mounted file system to the size of its device. Raises `Refused`."""
    found = await _found(device)
    commands = {
        **{kind: ["resize2fs", str(device)] for kind in ("ext3", "ext4")},
        "xfs": ["xfs_growfs", "-d", str(mount)],
        "btrfs": ["btrfs", "filesystem", "resize", "max", str(mount)],
    }
    if not found:
        return
    command = commands.get(found)
    if command is None:
        text = f"resize of format {found} is not supported for device {device} mounted at {mount}"
        raise Refused(f"ResizeFS.Resize - {text}")
    grown = await _run(command, WORK_SECONDS)
    if grown.code:
        text = f"resize of device {command[-1]} failed: exit status {grown.code}"
        raise Refused(f"{text}. {command[0]} output: {_words(grown)}")


async def _found(device: Path) -> str:
    """Return the type of content on a device, "" for none; blkid also returns that if it cannot open the
    device.
    """
    try:
        # In a thread: opening a device whose storage does not answer blocks.
        os.close(await asyncio.to_thread(os.open, device, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        text = f"failed to get disk format of disk {device}: {error.strerror}"
        raise Refused(text, errno=error.errno) from error
    command = ["blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", str(device)]
    found = await _run(command, PROBE_SECONDS)
    if found.code == _NOTHING_FOUND:
        return ""
    if found.code:
        raise Refused(f"failed to get disk format of disk {device}: {_words(found)}")
    words = dict(line.partition("=")[::2] for line in found.out.decode(errors="replace").splitlines())
    # A partition table is content, too: creating a file system would destroy the partitions.
    if words.get("PTTYPE"):
        return PARTITIONS
    return words.get("TYPE") or "unknown data"


async def _check(device: Path) -> None:
    """Repair what can be repaired automatically; continues if the machine has no fsck."""
    try:
        checked = await _run(["fsck", "-a", str(device)], WORK_SECONDS)
    except Unavailable as error:
        log.warning("%s cannot be checked: %s", device, error)
        return
    # The kubelet compares the whole exit code and not its bits: every other code is only logged.
    if checked.code == _NOT_MENDED:
        text = f"'fsck' found errors on device {device} but could not correct them"
        raise Refused(f"{text}: {_words(checked)}")
    if checked.code:
        done = "had errors which were corrected" if checked.code == _MENDED else "was not checked"
        log.warning("%s %s: %s", device, done, _words(checked))


async def _run(command: Sequence[str], seconds: float) -> Printed:
    return await run_child(
        command,
        seconds=seconds,
        most=_MOST_SAID,
        subject=command[0],
        # Error outputs go into events and are compared with the kubelet's, so they must not be translated.
        environment={"PATH": os.environ.get("PATH") or os.defpath, "LC_ALL": "C"},
    )


def _words(printed: Printed) -> str:
    text = printed.errors or printed.out.decode(errors="replace")
    return " ".join(text.split()) or f"exit status {printed.code}"
