"""Publishes this node's CSI drivers in the CSINode, and in an annotation and labels of the Node.

Source: kubelet v1.36 (`pkg/volume/csi/nodeinfomanager`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from engine.api.duration import RetryDelays
from engine.api.errors import Refused, Unavailable
from engine.api.meta import ObjectMeta, OwnerReference
from engine.api.node import Node
from engine.api.objects.storage import CSINode, CSINodeAllocatable, CSINodeDriver
from engine.api.struct import to_builtins
from engine.cluster.client import MERGE, ApiClient, ApiError
from engine.cluster.csi_limits import CsiLimits, Refresh

NODE_IDS: Final = "csi.volume.kubernetes.io/nodeid"
MIGRATED: Final = "storage.alpha.kubernetes.io/migrated-plugins"
MIGRATED_PLUGINS: Final = ",".join(
    f"kubernetes.io/{name}"
    for name in (
        *("aws-ebs", "azure-disk", "azure-file", "cinder", "gce-pd", "portworx-volume", "vsphere-volume"),
    )
)
"""Shows controllers and schedulers that volumes of these in-tree plugins are translated on this node
(`engine.csi.migration`).
"""
MOST_VOLUMES: Final = 2**31 - 1
TRIES: Final = 4
RETRIES: Final = RetryDelays(0.01, 1.25, factor=5.0)

log = logging.getLogger("kubengine.cluster")


class CsiNodeManager:
    """Maintain the CSINode of the node `name`, whose Node has `node_uid()` once it is `registered`.

    Updates are serialized.
    """

    def __init__(
        self,
        client: ApiClient,
        name: str,
        *,
        node_uid: Callable[[], str],
        registered: asyncio.Event,
        limits: CsiLimits,
    ) -> None:
        self._limits = limits
        self._client = client
        self._name = name
        self._node_uid = node_uid
        self._registered = registered
        self._node = f"/api/v1/nodes/{name}"
        self._all = "/apis/storage.k8s.io/v1/csinodes"
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Create the CSINode without drivers, because without a CSINode the scheduler does not know the
        limits.
        """
        await self._registered.wait()
        async with self._turn:
            known = await self._known()
            if (known.metadata.annotations or {}).get(MIGRATED) != MIGRATED_PLUGINS:
                patch = {"metadata": {"annotations": {MIGRATED: MIGRATED_PLUGINS}}}
                await self._client.patch(f"{self._all}/{self._name}", patch, CSINode, form=MERGE)

    async def install(
        self, driver: str, node_id: str, most_volumes: int, topology: Mapping[str, str]
    ) -> None:
        """Publish a driver. Raises `Refused`."""
        if not node_id:
            raise Refused("error adding CSI driver node info: driverNodeID must not be empty")
        wanted = CSINodeDriver(name=driver, node_id=node_id, topology_keys=sorted(topology) or None)
        wanted.allocatable = _limit(most_volumes)
        text = "error updating {} object with CSI driver node info: {}"
        await self._retried(text, "Node", lambda: self._annotate(driver, node_id, topology))
        await self._retried(text, "CSINode", lambda: self._put(driver, wanted))

    async def uninstall(self, driver: str) -> None:
        """Remove a driver. Raises `Refused`."""
        self._limits.drop(driver)
        text = "error removing CSI driver node info from {} object: {}"
        await self._retried(text, "CSINode", lambda: self._put(driver, None))
        await self._retried(text, "Node", lambda: self._annotate(driver, None, {}))

    def start_limit_updates(self, driver: str, refresh: Refresh) -> None:
        """Call `refresh` with the period of the CSIDriver until the driver is uninstalled."""
        self._limits.keep(driver, refresh)

    async def exhausted(self, driver: str) -> bool:
        """Refresh the limit of a driver that cannot attach further volumes; return whether its limit may
        change.
        """
        return await self._limits.exhausted(driver)

    async def update_limit(self, driver: str, most_volumes: int) -> None:
        """Change the limit of an installed driver. Raises `Refused`."""
        text = "error updating {} object with CSI driver node info: {}"
        await self._retried(text, "CSINode", lambda: self._put_limit(driver, most_volumes))

    async def _put_limit(self, driver: str, most_volumes: int) -> None:
        """Change the limit of a driver, which is its only field that may change in place."""
        known = await self._known()
        limit = _limit(most_volumes)
        drivers = [
            msgspec.structs.replace(each, allocatable=limit) if each.name == driver else each
            for each in known.spec.drivers or []
        ]
        if drivers != (known.spec.drivers or []):
            await self._write_drivers(known, drivers)

    async def _retried(self, text: str, kind: str, change: Callable[[], Awaitable[None]]) -> None:
        for failures in range(1, TRIES + 1):
            try:
                if not self._registered.is_set():
                    raise Unavailable("the node is not registered yet")
                async with self._turn:
                    await change()
                return
            except Refused as error:
                if failures == TRIES:
                    raise Refused(text.format(kind, error)) from error
            await asyncio.sleep(RETRIES.after(failures))

    async def _annotate(self, driver: str, node_id: str | None, topology: Mapping[str, str]) -> None:
        """Write the driver's id of this node, and its topology, to the Node."""
        metadata = (await self._client.get(self._node, Node)).metadata
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        for key, value in topology.items():
            if labels.get(key, value) != value:
                text = f'driver reported "{key}":"{value}" but existing label is "{key}":"{labels[key]}"'
                raise Refused(f"detected topology value collision: {text}")
        ids = _ids(annotations.get(NODE_IDS, ""))
        changed = {name: id for name, id in ids.items() if name != driver}
        if node_id is not None:
            changed[driver] = node_id
        patch: dict[str, Any] = {}
        if changed != ids:
            written = json.dumps(changed, sort_keys=True, separators=(",", ":")) if changed else None
            patch["annotations"] = {NODE_IDS: written}
        new = {key: value for key, value in topology.items() if key not in labels}
        if new:
            patch["labels"] = new
        if patch:
            await self._client.patch(self._node, {"metadata": patch}, Node)

    async def _put(self, driver: str, wanted: CSINodeDriver | None) -> None:
        """Write a driver. A different entry of the driver is removed first, because entries are immutable."""
        known = await self._known()
        drivers = known.spec.drivers or []
        others = [each for each in drivers if each.name != driver]
        here = [each for each in drivers if each.name == driver]
        if here == [wanted] or (not here and wanted is None):
            return
        if here:
            known = await self._write_drivers(known, others)
        if wanted is not None:
            await self._write_drivers(known, [*others, wanted])

    async def _write_drivers(self, known: CSINode, drivers: list[CSINodeDriver]) -> CSINode:
        version = {"resourceVersion": known.metadata.resource_version}
        patch = {"metadata": version, "spec": {"drivers": to_builtins(drivers)}}
        return await self._client.patch(f"{self._all}/{self._name}", patch, CSINode, form=MERGE)

    async def _known(self) -> CSINode:
        """Return the server's CSINode, created if missing; one of another Node of this name is
        deleted first.
        """
        try:
            known = await self._client.get(f"{self._all}/{self._name}", CSINode)
        except ApiError as error:
            if error.code != 404:
                raise
        else:
            owners = known.metadata.owner_references or []
            if any(o.kind == "Node" and o.uid == self._node_uid() for o in owners):
                return known
            log.info("the CSINode %s belongs to another Node of this name; it is created again", self._name)
            await self._client.delete(f"{self._all}/{self._name}", {})
        owner = OwnerReference(api_version="v1", kind="Node", name=self._name, uid=self._node_uid())
        annotations = {MIGRATED: MIGRATED_PLUGINS}
        meta = ObjectMeta(name=self._name, owner_references=[owner], annotations=annotations)
        made = CSINode(metadata=meta)
        wanted = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "spec": {"drivers": []}}
        return await self._client.create(self._all, {**to_builtins(made), **wanted}, CSINode)


def _limit(most_volumes: int) -> CSINodeAllocatable | None:
    """Return the limit, or None for no limit."""
    return CSINodeAllocatable(count=min(most_volumes, MOST_VOLUMES)) if most_volumes > 0 else None


def _ids(text: str) -> dict[str, str]:
    """Parse the annotation. Raises `Refused` if another client wrote something else into it."""
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise Refused(f'failed to parse node\'s "{NODE_IDS}" annotation value ({text!r})') from error
    if not isinstance(parsed, dict):
        raise Refused(f'failed to parse node\'s "{NODE_IDS}" annotation value ({text!r})')
    return {str(name): str(id) for name, id in parsed.items()}
