"""Keeps the Node object: registers it, and says how it is when that changes or has not been said for long."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from engine.api.errors import KubengineError
from engine.api.meta import ObjectMeta
from engine.api.node import Node
from engine.api.struct import to_builtins
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.node_object import full_patch, reconciliation, registration, report_after, status_patch

FIRST_DELAY = 0.1
LAST_DELAY = 7.0
TRIES = 5
JITTER = 0.04

log = logging.getLogger("kubengine.cluster")


class _Known(msgspec.Struct):
    """The server's Node with its status as it stands there, fields that we do not know included."""

    metadata: ObjectMeta
    status: dict[str, Any] = {}


class NodeKeeper:
    """`describe()` is the Node as it is now, with images. `update_seconds` (10) is how often it is looked at,
    `report_seconds` (300) how often it is told unchanged; `soon` asks for a look at once.
    """

    def __init__(
        self,
        client: ApiClient,
        name: str,
        *,
        describe: Callable[[], Awaitable[Node]],
        register: bool,
        update_seconds: float,
        report_seconds: float,
        clock: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self.uid = ""
        self.registered = asyncio.Event()
        self._client = client
        self._path = f"/api/v1/nodes/{name}"
        self._describe = describe
        self._register = register
        self._update_seconds, self._report_seconds = update_seconds, report_seconds
        self._clock, self._chance = clock, chance
        self._known: _Known | None = None
        self._report_at = float("-inf")
        self._soon = asyncio.Event()

    async def run(self) -> None:
        if self._register:
            await self._register_until_it_works()
        while True:
            await self.tell()
            wait = self._update_seconds * (1 + JITTER * self._chance.random())
            try:
                async with asyncio.timeout(wait):
                    await self._soon.wait()
            except TimeoutError:
                continue

    def soon(self) -> None:
        """Something that the status shows has changed."""
        self._soon.set()

    async def tell(self) -> bool:
        """Say how the node is, where that is due; whether the server knows now."""
        self._soon.clear()
        wanted = to_builtins((await self._describe()).status)
        last: KubengineError | None = None
        for _ in range(TRIES):
            try:
                await self._tell(wanted)
            except KubengineError as error:
                last, self._known = error, None
            else:
                return True
        log.warning("the node's status could not be told: %s", last)
        return False

    async def _tell(self, wanted: Mapping[str, Any]) -> None:
        known = self._known
        if known is None:
            known = await self._client.get(self._path, _Known)
            self._learn(known)
        due = self._clock() >= self._report_at
        patch = (full_patch if due else status_patch)(known.status, wanted)
        if patch:
            self._learn(await self._client.patch(f"{self._path}/status", patch, _Known))
            self._report_at = self._clock() + report_after(self._report_seconds, self._chance)

    async def _register_until_it_works(self) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                await self._register_once()
            except KubengineError as error:
                log.warning("the node could not be registered: %s", error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LAST_DELAY)
            else:
                return

    async def _register_once(self) -> None:
        wanted = await self._describe()
        try:
            self._learn(await self._client.create("/api/v1/nodes", registration(wanted), _Known))
            return
        except ApiError as error:
            if error.reason not in ("AlreadyExists", "Forbidden"):
                raise
        patch = reconciliation(await self._client.get(self._path, Node), wanted)
        if patch:
            self._learn(await self._client.patch(self._path, patch, _Known))

    def _learn(self, known: _Known) -> None:
        self._known = known
        self.uid = known.metadata.uid
        self.registered.set()
