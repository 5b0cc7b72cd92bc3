"""Expands the file systems of volumes that have become larger, at mount and while pods use them.

The claim's status records the progress. Source: kubelet v1.36 (`pkg/volume/util/operationexecutor`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.objects.storage import PersistentVolumeClaim
from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.csi.expansion import (
    Growth,
    begun,
    failed,
    grown,
    growth,
    is_other_than_wanted,
    is_recorded,
    size_of,
)
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.mounted_volumes import Expand, MadeVolume
from engine.node.volumes.refusals import ExpansionFailed, refusing

AT_MOUNT: Final = "MountVolume.Setup failed while expanding volume"
AT_MAP: Final = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
MEANWHILE: Final = "NodeExpandVolume.NodeExpandVolume failed"
SUCCEEDED, IMPOSSIBLE = "FileSystemResizeSuccessful", "FileSystemResizeFailed"

log = logging.getLogger("kubengine.volumes")


class _Mounted(msgspec.Struct, frozen=True):
    """Hold the volume of one pod."""

    pod: Pod
    bound: BoundVolume
    expand: Expand
    grows: bool
    read_only: bool


class _Known(msgspec.Struct):
    """Hold what the node knows about a volume while pods use it: its `size` here, and the result of an
    attempt.
    """

    size: Quantity
    pods: dict[str, _Mounted] = msgspec.field(default_factory=dict)
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    failed: bool = False
    refused: bool = False


class VolumeExpander:
    """Expand the volumes of one node, which appears as `node` in events."""

    def __init__(
        self,
        node: str,
        objects: ClusterObjects,
        recorder: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._objects = objects
        self._recorder = recorder
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def at_mount(self, pod: Pod, made: MadeVolume, *, read_only: bool) -> None:
        """Expand a volume before a pod uses it; the pod may use it `read_only`. Raises `VolumeRefused`."""
        bound, expand = made.bound, made.expand
        if bound is None or expand is None:
            return
        mounted = _Mounted(pod, bound, expand, made.grows, read_only)
        known = self._known.setdefault(bound.name, _Known(size_of(bound.claim.status.capacity)))
        known.pods[pod.uid] = mounted
        if size_of(bound.claim.status.capacity) < size_of(bound.spec.capacity):
            with refusing(bound.name, AT_MAP if bound.block else AT_MOUNT):
                await self._grow(mounted, known)

    def may_grow(self, uid: str) -> set[str]:
        """Return the claims of a pod whose volumes may be expanded while it runs."""
        return {
            mounted.bound.claim.metadata.name
            for known in self._known.values()
            if (mounted := known.pods.get(uid)) is not None
            and mounted.grows
            and not mounted.read_only
            and not known.refused
        }

    async def meanwhile(self, uid: str, bound: BoundVolume) -> None:
        """Expand a volume that is in use. Raises `VolumeRefused`."""
        known = self._known.get(bound.name)
        mounted = known.pods.get(uid) if known is not None else None
        if known is not None and mounted is not None and ZERO < known.size < size_of(bound.spec.capacity):
            with refusing(bound.name, MEANWHILE):
                await self._grow(replace(mounted, bound=bound), known)

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer has volumes."""
        for name in [name for name, known in self._known.items() if uid in known.pods]:
            del self._known[name].pods[uid]
            if not self._known[name].pods:
                del self._known[name]

    async def _grow(self, mounted: _Mounted, known: _Known) -> None:
        """Expand the file system. Raises `Refused`."""
        # One at a time on a node, as drivers expect: the pods of one claim share the volume.
        async with known.lock:
            wanted = size_of(mounted.bound.spec.capacity)
            if known.size >= wanted:
                return
            claim = await self._claim(mounted)
            if mounted.read_only:
                text = "MountVolume.NodeExpandVolume failed for volume"
                message = f'{text} "{mounted.bound.name}" requested read-only file system'
                self._report(mounted, claim, WARNING, IMPOSSIBLE, message)
                known.size = wanted
                return
            step = growth(claim, wanted)
            if step is None:
                if is_recorded(claim, wanted):
                    known.size = wanted
                return
            if step.tracked and not step.recorded:
                claim = await self._patch(mounted, claim, begun(claim))
            if await self._expanded(mounted, claim, step, known):
                await self._finish(mounted, claim, step)
            # FAILED_PRECONDITION: the driver expands it only while no pod uses it, so asking again is
            # useless.
            if not known.refused:
                known.size = max(known.size, step.size)

    async def _claim(self, mounted: _Mounted) -> PersistentVolumeClaim:
        try:
            return await self._objects.claim(mounted.pod, mounted.bound.claim.metadata.name)
        except Refused as error:
            raise Refused(f"mountVolume.NodeExpandVolume get PVC failed : {error.message}") from error

    async def _expanded(
        self, mounted: _Mounted, claim: PersistentVolumeClaim, step: Growth, known: _Known
    ) -> bool:
        """Tell whether the volume is larger now; false if that is impossible for good. Raises
        `Refused`.
        """
        try:
            await mounted.expand(mounted.bound, step.size.value)
        except ExpansionFailed as error:
            if error.unsupported and (step.recorded or not step.tracked):
                return False
            known.refused = error.in_use
            if error.final and step.tracked:
                await self._fail(mounted, claim, step, known, error)
            if known.refused:
                log.error("volume %s was not expanded: %s", mounted.bound.name, error)
                return False
            raise
        return True

    async def _fail(
        self,
        mounted: _Mounted,
        claim: PersistentVolumeClaim,
        step: Growth,
        known: _Known,
        error: ExpansionFailed,
    ) -> None:
        """Report the failure in the claim; a repeated failure with another size goes back to the
        controller.
        """
        infeasible = error.infeasible or (known.failed and is_other_than_wanted(claim, step.size))
        known.failed = True
        try:
            patch = failed(claim, str(error), self._clock(), infeasible=infeasible)
            await self._patch(mounted, claim, patch)
        except Refused as refused:
            log.error("cannot record in claim %s that its expansion failed: %s", claim.metadata.name, refused)

    async def _finish(self, mounted: _Mounted, claim: PersistentVolumeClaim, step: Growth) -> None:
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{mounted.bound.name}" {self._node}'
        self._report(mounted, claim, NORMAL, SUCCEEDED, text)
        if not step.recorded:
            try:
                await self._patch(mounted, claim, grown(claim, step.size))
            except Refused as error:
                text = f"mountVolume.NodeExpandVolume update pvc status failed: {error.message}"
                raise Refused(text) from error

    async def _patch(
        self, mounted: _Mounted, claim: PersistentVolumeClaim, patch: object
    ) -> PersistentVolumeClaim:
        if patch is None:
            return claim
        return await self._objects.patch_claim(mounted.pod, claim.metadata.name, patch)

    def _report(
        self, mounted: _Mounted, claim: PersistentVolumeClaim, kind: str, reason: str, message: str
    ) -> None:
        """Emit the event on the pod and on the claim."""
        self._recorder.pod(mounted.pod, kind, reason, message)
        self._recorder.claim(mounted.pod, claim.metadata, kind, reason, message)
