"""Mounts NFS exports for pods, each pod with its own mount.

This module never accesses a mounted directory, since that blocks if the server does not answer. Source:
kubelet v1.36 (`pkg/volume/nfs`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.references import NFSVolume
from engine.host.mountinfo import is_mount_point
from engine.intree.commands import MOUNT_SECONDS, has_helper, missing, run, unmount, words
from engine.intree.paths import plugin_directory, pod_volume

NFS: Final = "kubernetes.io~nfs"


class NfsVolumes:
    """Mount the NFS volumes of the pods below the node's directory `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def set_up(self, uid: str, name: str, volume: NFSVolume, options: Sequence[str]) -> Path:
        """Mount the export for a pod, unless it is mounted already, and return the mount point.

        Raises `InvalidInput`, `Refused`, `Unavailable` or `OSError`.
        """
        target = pod_volume(self._root, uid, NFS, name)
        if await asyncio.to_thread(is_mount_point, target):
            return target
        source = _source(volume)
        await asyncio.to_thread(target.mkdir, 0o750, parents=True, exist_ok=True)
        given = sorted(set(options))
        command = [
            "mount",
            "-t",
            "nfs",
            *(["-o", ",".join(given)] if given else ()),
            # Without `--`, a server whose name begins with a dash would be an option.
            "--",
            source,
            str(target),
        ]
        try:
            done = await run(command, MOUNT_SECONDS)
            if done.code:
                raise Refused(_why(command, done.code, words(done)))
        except BaseException:
            with suppress(KubengineError, OSError):
                # Forced, since a server that does not answer would block an ordinary unmount.
                await unmount(target, force=True)
                await asyncio.to_thread(target.rmdir)
            raise
        return target

    async def release(self, uid: str) -> None:
        """Unmount all NFS volumes of a pod. Tries all of them, then raises the first failure."""
        failure: KubengineError | None = None
        directory = plugin_directory(self._root, uid, NFS)
        for name in await asyncio.to_thread(_names, directory):
            try:
                await unmount(directory / name, force=True)
                await asyncio.to_thread(_remove, directory / name)
            except KubengineError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _source(volume: NFSVolume) -> str:
    """Return the source argument of mount(8): `server:path`, with an IPv6 address in brackets."""
    if not volume.server or not volume.path.startswith("/") or "\0" in volume.server + volume.path:
        raise InvalidInput(
            f"expected a server and an absolute path, got server {volume.server!r} and path {volume.path!r}"
        )
    server = volume.server
    with suppress(ValueError):
        server = f"[{ipaddress.IPv6Address(server)}]" if ":" in server else server
    return f"{server}:{volume.path}"


def _why(command: Sequence[str], code: int, errors: str) -> str:
    arguments = " ".join(word for word in command[1:] if word != "--")
    asked = f"Mounting command: mount Mounting arguments: {arguments}"
    text = f"mount failed: exit status {code} {asked} Output: {errors}"
    return text if has_helper("nfs") else f"{text}; {missing('mount.nfs')}"


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208
    except FileNotFoundError:
        return []


def _remove(directory: Path) -> None:
    """Remove an empty mount point. It stays if files were written to it while nothing was mounted."""
    with suppress(OSError):
        directory.rmdir()
