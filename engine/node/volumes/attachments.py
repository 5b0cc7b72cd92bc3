"""Volumes that a controller attaches to this node: what is used of them, and what the Node's status says.

A volume is named in `volumesInUse` before it is mounted and until it is unmounted, so that nobody detaches
it meanwhile; `volumesAttached` is the attach-detach controller's word (kubelet v1.36,
`pkg/kubelet/volumemanager`). Volumes go by their unique names (`kubernetes.io/csi/DRIVER^HANDLE`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


class Attachments:
    """`changed` is called when the Node's status is to be told. Belongs to one event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._users: dict[str, set[str]] = {}
        self._complete = False
        self._told: frozenset[str] = frozenset()
        self._attached: frozenset[str] = frozenset()
        self._news = asyncio.Event()

    def use(self, volume: str, user: str) -> None:
        """A pod (by its uid) is to have the volume."""
        users = self._users.setdefault(volume, set())
        users.add(user)
        if len(users) == 1:
            self._changed()

    def release(self, volume: str, user: str) -> None:
        """The pod has it no more: it is unmounted."""
        users = self._users.get(volume, set())
        users.discard(user)
        if volume in self._users and not users:
            del self._users[volume]
            self._changed()

    def complete(self) -> None:
        """What an earlier agent left mounted has been named."""
        self._complete = True
        self._changed()

    @property
    def in_use(self) -> list[str] | None:
        """For the Node's status; None, which leaves what stands there, until all is known."""
        return sorted(self._users) if self._complete else None

    def heard(self, status: Mapping[str, Any]) -> None:
        """The status of the server's Node."""
        self._told = frozenset(status.get("volumesInUse") or ())
        self._attached = frozenset(each["name"] for each in status.get("volumesAttached") or ())
        self._news.set()
        self._news = asyncio.Event()

    async def attached(self, volume: str) -> None:
        """Returns when it is attached and the server knows of its use; the deadline is the caller's."""
        while volume not in self._told or volume not in self._attached:
            await self._news.wait()
