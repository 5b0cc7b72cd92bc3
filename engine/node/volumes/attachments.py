"""Tracks volumes that the attach-detach controller attaches to this node.

A volume is listed in the Node's `volumesInUse` before it is mounted and until it is unmounted, so that the
controller does not detach it while it is in use. The controller lists attached volumes in `volumesAttached`
(kubelet v1.36, `pkg/kubelet/volumemanager`). Volumes are identified by their unique names
(`kubernetes.io/csi/DRIVER^HANDLE`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


class Attachments:
    """Track attachments; `changed` is called when the Node's status must be updated. Belongs to
    one event loop.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._users: dict[str, set[str]] = {}
        self._complete = False
        self._in_use: frozenset[str] = frozenset()
        self._attached: frozenset[str] = frozenset()
        self._updated = asyncio.Event()

    def use(self, volume: str, user: str) -> None:
        """Record that the pod with the uid `user` will use the volume."""
        users = self._users.setdefault(volume, set())
        users.add(user)
        if len(users) == 1:
            self._changed()

    def release(self, volume: str, user: str) -> None:
        """Record that the pod no longer uses the volume, which is unmounted."""
        users = self._users.get(volume, set())
        users.discard(user)
        if volume in self._users and not users:
            del self._users[volume]
            self._changed()

    def complete(self) -> None:
        """Record that all volumes that an earlier agent left mounted have been added."""
        self._complete = True
        self._changed()

    @property
    def in_use(self) -> list[str] | None:
        """Return `volumesInUse`, or None while it is incomplete: the server's list then stays unchanged."""
        return sorted(self._users) if self._complete else None

    def node_changed(self, status: Mapping[str, Any]) -> None:
        """Read `volumesInUse` and `volumesAttached` from the server's Node status."""
        self._in_use = frozenset(status.get("volumesInUse") or ())
        self._attached = frozenset(each["name"] for each in status.get("volumesAttached") or ())
        self._updated.set()
        self._updated = asyncio.Event()

    async def wait_until_attached(self, volume: str) -> None:
        """Wait until the volume is attached and listed as in use. The caller sets the deadline."""
        # Until the server lists the volume as in use, the controller may detach it at any moment.
        while volume not in self._in_use or volume not in self._attached:
            await self._updated.wait()
