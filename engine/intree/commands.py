"""Runs the machine's commands for volumes. If a command is missing, the error names its package."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.api.errors import Refused, Unavailable
from engine.host.child import Printed, run_child
from engine.host.mountinfo import is_mount_point

MOUNT_SECONDS: Final = 180.0
"""More than the two minutes for which mount.nfs tries to reach a server."""
UNMOUNT_SECONDS: Final = 60.0
MOST_OUTPUT: Final = 1 << 20
_PACKAGES: Final = {
    "blockdev": "util-linux",
    "iscsiadm": "open-iscsi (Debian, Ubuntu, SUSE) or iscsi-initiator-utils (Red Hat, Fedora)",
    "mount.nfs": "nfs-common (Debian, Ubuntu), nfs-utils (Red Hat, Fedora) or nfs-client (SUSE)",
    "multipath": "multipath-tools (Debian, Ubuntu) or device-mapper-multipath (Red Hat, Fedora)",
    "mount": "mount (Debian, Ubuntu) or util-linux",
    "umount": "mount (Debian, Ubuntu) or util-linux",
}
_HELPER_DIRECTORIES: Final = (Path("/sbin"), Path("/sbin/fs.d"), Path("/sbin/fs"))
"""The directories in which mount(8) searches for mount helpers; it does not search the PATH."""


async def run(command: Sequence[str], seconds: float) -> Printed:
    """Run a command to its end. Raises `Unavailable` if it is missing or late, `Refused` if it prints too
    much.
    """
    name = command[0]
    environment = {"PATH": os.environ.get("PATH") or os.defpath, "LC_ALL": "C"}
    try:
        return await run_child(
            command, seconds=seconds, most=MOST_OUTPUT, subject=name, environment=environment
        )
    except Unavailable as error:
        if error.errno != errno.ENOENT:
            raise
        raise Unavailable(missing(name), errno=error.errno) from error


def missing(command: str) -> str:
    """Return the error text for a command that the machine does not have."""
    return f"this machine has no {command}, which the volume needs: install {_PACKAGES[command]}"


def has_helper(kind: str, directories: Sequence[Path] = _HELPER_DIRECTORIES) -> bool:
    """Tell whether mount(8) finds a mount helper for a type of file system."""
    return any((directory / f"mount.{kind}").exists() for directory in directories)


def words(printed: Printed) -> str:
    """Return everything that a command printed, on one line."""
    text = " ".join((printed.out.decode(errors="replace") + " " + printed.errors).split())
    return text or f"exit status {printed.code}"


async def unmount(point: Path, *, force: bool = False) -> None:
    """Unmount until nothing is mounted at `point`, which is not accessed: its server may be gone.

    With `force`, open requests to a server that does not answer are aborted. Raises `Refused`.
    """
    while await asyncio.to_thread(is_mount_point, point):
        try:
            done = await run(["umount", "--", str(point)], UNMOUNT_SECONDS)
        except Unavailable:
            if not force:
                raise
            done = None
        if done is not None and done.code == 0:
            continue
        if force:
            done = await run(["umount", "-f", "--", str(point)], UNMOUNT_SECONDS)
        if done is not None and done.code and await asyncio.to_thread(is_mount_point, point):
            raise Refused(f"unmount failed: exit status {done.code}: {words(done)}", subject=str(point))
