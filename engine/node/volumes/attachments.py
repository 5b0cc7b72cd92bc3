"""Tracks volumes that a controller attaches to this node: which are in use, and what the Node's status lists.

A volume is listed in `volumesInUse` before it is mounted and until it is unmounted, so that nobody detaches
it meanwhile; `volumesAttached` comes from the attach-detach controller (kubelet v1.36,
`pkg/kubelet/volumemanager`). Volumes are identified by their unique names
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
        self._news = asyncio.Event()

    def use(self, volume: str, user: str) -> None:
        """Note that the pod with this uid will use the volume."""
        users = self._users.setdefault(volume, set())
        users.add(user)
        if len(users) == 1:
            self._changed()

    def release(self, volume: str, user: str) -> None:
        """Note that the pod no longer uses the volume: it is unmounted."""
        users = self._users.get(volume, set())
        users.discard(user)
        if volume in self._users and not users:
            del self._users[volume]
            self._changed()

    def complete(self) -> None:
        """Note that everything an earlier agent left mounted is listed."""
        self._complete = True
        self._changed()

    @property
    def in_use(self) -> list[str] | None:
        """Return `volumesInUse`; None, which keeps the server's list, until the list is complete."""
        return sorted(self._users) if self._complete else None

    def node_changed(self, status: Mapping[str, Any]) -> None:
        """Take the status of the server's Node."""
        self._in_use = frozenset(status.get("volumesInUse") or ())
        self._attached = frozenset(each["name"] for each in status.get("volumesAttached") or ())
        self._news.set()
        self._news = asyncio.Event()

    async def attached(self, volume: str) -> None:
        """Return when the volume is attached and the server knows that it is in use. The caller sets the
        deadline.
        """
        # Also until the server lists it as in use: before, the controller may detach it at any moment.
        while volume not in self._in_use or volume not in self._attached:
            await self._news.wait()
