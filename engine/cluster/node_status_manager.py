"""Maintains the Node object: registers it, and reports its status on changes and periodically."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import KubengineError
from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeSpec, NodeStatus
from engine.api.resources import is_extended
from engine.api.struct import to_builtins
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.node_object import (
    former_resources,
    full_patch,
    metadata_patch,
    reconciliation,
    registration,
    report_after,
    status_patch,
    without_heartbeats,
)
from engine.cluster.resource_version import is_newer
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler
from engine.host.node_context import NodeContext

RETRIES = RetryDelays(0.1, 7.0)
TRIES = 5
JITTER = 0.04
DELETION_SECONDS = 1.0

log = logging.getLogger("kubengine.cluster")


class ApiNode(msgspec.Struct):
    """Hold the server's Node with its raw status, including fields that this version does not know."""

    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: dict[str, Any] = {}


class NodeStatusManager:
    """Maintain the Node.

    `describe()` returns the actual Node with images. It is examined every `update_seconds` (10) and reported
    every `report_seconds` (300) if unchanged; `soon` requests an examination now. `follow` calls `changed`
    with the metadata, spec and status that the server has. With `external_cloud`, existing addresses of the
    Node are left to the cloud controller.
    """

    def __init__(
        self,
        context: NodeContext,
        client: ApiClient,
        *,
        describe: Callable[[], Awaitable[Node]],
        changed: Callable[[ObjectMeta, NodeSpec, Mapping[str, Any]], None],
        chance: random.Random,
        external_cloud: bool = False,
    ) -> None:
        name, config = context.name, context.config
        self.uid = ""
        self.registered = asyncio.Event()
        self._client = client
        self._path = f"/api/v1/nodes/{name}"
        self._describe = describe
        self._changed = changed
        self._register = config.register_node
        self._controller_attaches = config.enable_controller_attach_detach
        self._update_seconds = config.node_status_update_frequency
        self._report_seconds = config.node_status_report_frequency
        self._clock, self._chance = context.steady, chance
        self._external_cloud = external_cloud
        self._known: ApiNode | None = None
        self._deleted_uid = ""
        self._lost = False
        self._reported: tuple[ApiNode, NodeStatus] | None = None
        self._ours: set[str] = set()
        self._gone: set[str] = set()
        self._report_at = float("-inf")
        self._soon = asyncio.Event()
        self._trouble = ""
        self._watch = ResourceWatch(
            client,
            WatchedResource("/api/v1/nodes", ApiNode, f"metadata.name={name}"),
            WatchHandler(self._on_replaced, self.on_changed, self.on_deleted),
        )

    @property
    def seen(self) -> asyncio.Event:
        """Set once the server's Node has been read, or found missing."""
        return self._watch.synced

    async def follow(self) -> None:
        """Follow changes of the Node until cancelled."""
        await self.registered.wait()
        await self._watch.run()

    async def run(self) -> None:
        if self._register:
            await self._register_until_it_works()
        while True:
            if self._lost:
                await self._register_again()
            await self.report()
            # With jitter: nodes that started together would otherwise always report together.
            wait = self._update_seconds * (1 + JITTER * self._chance.random())
            try:
                async with asyncio.timeout(wait):
                    await self._soon.wait()
            except TimeoutError:
                continue

    def lost(self) -> None:
        """Register the Node again after the server lost it, unless another client deleted it."""
        self._lost = True
        self._soon.set()

    def soon(self) -> None:
        """Report soon, because something in the status has changed."""
        self._soon.set()

    async def report(self) -> bool:
        """Report the status if due; return whether the server has it."""
        # Cleared before `describe`, so that a change during the call leads to another report.
        self._soon.clear()
        node = await self._describe()
        significant = without_heartbeats(node.status)
        # The server's version is compared too, because another client may have changed the status.
        if self._reported == (self._known, significant) and self._clock() < self._report_at:
            return True
        last: KubengineError | None = None
        for _ in range(TRIES):
            try:
                self._reported = await self._send(node), significant
            except KubengineError as error:
                # The next attempt reads the Node again, as after a conflict.
                last, self._known = error, None
            else:
                self._trouble = ""
                return True
        if str(last) != self._trouble:
            self._trouble = str(last)
            log.warning("cannot update the node's status: %s", last)
        return False

    async def _send(self, node: Node) -> ApiNode:
        """Report the status; return the server's Node afterwards."""
        wanted = to_builtins(node.status)
        known = self._known
        if known is None:
            known = await self._client.get(self._path, ApiNode)
            self._accept(known)
        if self._external_cloud and known.status.get("addresses"):
            wanted.pop("addresses", None)
        due = self._clock() >= self._report_at
        # A resource whose plugin is gone is reported with amount 0 once, so that the scheduler does not use
        # an old amount. An amount that another client sets afterwards stays.
        extended = {name for name in wanted.get("capacity", ()) if is_extended(name)}
        self._gone = (self._gone | self._ours) - extended
        patch = (full_patch if due else status_patch)(known.status, wanted, self._gone)
        metadata = metadata_patch(known.metadata, node.metadata)
        if metadata:
            patch["metadata"] = metadata
        if patch:
            known = await self._client.patch(f"{self._path}/status", patch, ApiNode)
            self._accept(known)
            self._report_at = self._clock() + report_after(self._report_seconds, self._chance)
        self._ours, self._gone = extended, set()
        return known

    async def _register_again(self) -> None:
        """Register the Node, then restart all watches. The server accepts the node's other objects only after
        the Node.
        """
        # Deleting a Node also deletes its lease, and the missing lease may be noticed before the watch
        # reports the deletion. A Node that another client deleted must not be registered again.
        await asyncio.sleep(DELETION_SECONDS)
        self._lost = False
        self._known = None
        if self._register and not self._deleted_uid:
            await self._register_until_it_works()
        # The server's store was replaced by an older one: all watches have to list again.
        self._client.set_back()

    async def _register_until_it_works(self) -> None:
        delays = iter(RETRIES)
        while True:
            try:
                await self._register_once()
            except KubengineError as error:
                log.warning("cannot register the node: %s", error)
                await asyncio.sleep(next(delays))
            else:
                return

    async def _register_once(self) -> None:
        wanted = await self._describe()
        made = registration(wanted, controller_attaches=self._controller_attaches)
        try:
            self._accept(await self._client.create("/api/v1/nodes", made, ApiNode))
            return
        except ApiError as error:
            # A node without the right to create its Node may still find it and update its status.
            if error.reason not in ("AlreadyExists", "Forbidden"):
                raise
        known = await self._client.get(self._path, Node)
        self._gone = former_resources(known, wanted)
        patch = reconciliation(known, wanted, controller_attaches=self._controller_attaches)
        if patch:
            self._accept(await self._client.patch(self._path, patch, ApiNode))

    def _accept(self, known: ApiNode) -> None:
        """Store a version of the Node, unless it is older than the known one: responses and the watch
        race.
        """
        if self._known is not None and not is_newer(known.metadata, self._known.metadata):
            return
        if known.metadata.uid == self._deleted_uid:
            return  # the response to a request that the server answered before the deletion
        self._known = known
        self._deleted_uid = ""
        self.uid = known.metadata.uid
        self.registered.set()
        self._changed(known.metadata, known.spec, known.status)

    def _on_replaced(self, nodes: Sequence[ApiNode]) -> None:
        self._known = None
        for node in nodes:
            self._deleted_uid = ""  # a store that was set back has the Node again
            self._accept(node)
        if not nodes:
            self.uid = ""

    def on_changed(self, node: ApiNode) -> None:
        """Handle a version of the Node from the watch."""
        self._accept(node)

    def on_deleted(self, node: ApiNode) -> None:
        """Handle a deletion, which is intended: the Node is not registered again before a restart."""
        if node.metadata.uid == self.uid:
            self._known, self._deleted_uid, self.uid = None, self.uid, ""
