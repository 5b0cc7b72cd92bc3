"""Expands volumes on the node after their PersistentVolumes have grown, at mount and while pods use them.

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
from engine.node.volumes.mounted_volumes import Expand, MountedVolume
from engine.node.volumes.refusals import ExpansionFailed, refusing

AT_MOUNT: Final = "MountVolume.Setup failed while expanding volume"
AT_MAP: Final = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
ONLINE: Final = "NodeExpandVolume.NodeExpandVolume failed"
SUCCEEDED, IMPOSSIBLE = "FileSystemResizeSuccessful", "FileSystemResizeFailed"

log = logging.getLogger("kubengine.volumes")


class _Mounted(msgspec.Struct, frozen=True):
    """Hold a volume as one pod uses it."""

    pod: Pod
    bound: BoundVolume
    expand: Expand
    online_expansion: bool
    read_only: bool


class _ExpansionState(msgspec.Struct):
    """Hold the state of a volume in use: its `size` on this node, and the result of the last attempt."""

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
        self._states: dict[str, _ExpansionState] = {}

    async def expand_at_mount(self, pod: Pod, volume: MountedVolume, *, read_only: bool) -> None:
        """Expand a volume before a pod uses it; the pod may use it `read_only`. Raises `VolumeRefused`."""
        bound, expand = volume.bound, volume.expand
        if bound is None or expand is None:
            return
        mounted = _Mounted(pod, bound, expand, volume.online_expansion, read_only)
        state = self._states.setdefault(bound.name, _ExpansionState(size_of(bound.claim.status.capacity)))
        state.pods[pod.uid] = mounted
        if size_of(bound.claim.status.capacity) < size_of(bound.spec.capacity):
            with refusing(bound.name, AT_MAP if bound.block else AT_MOUNT):
                await self._expand(mounted, state)

    def expandable_claims(self, uid: str) -> set[str]:
        """Return the claims of a pod whose volumes may be expanded while it runs."""
        return {
            mounted.bound.claim.metadata.name
            for state in self._states.values()
            if (mounted := state.pods.get(uid)) is not None
            and mounted.online_expansion
            and not mounted.read_only
            and not state.refused
        }

    async def expand_online(self, uid: str, bound: BoundVolume) -> None:
        """Expand a volume that is in use. Raises `VolumeRefused`."""
        state = self._states.get(bound.name)
        mounted = state.pods.get(uid) if state is not None else None
        if state is not None and mounted is not None and ZERO < state.size < size_of(bound.spec.capacity):
            with refusing(bound.name, ONLINE):
                await self._expand(replace(mounted, bound=bound), state)

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer has volumes."""
        for name in [name for name, state in self._states.items() if uid in state.pods]:
            del self._states[name].pods[uid]
            if not self._states[name].pods:
                del self._states[name]

    async def _expand(self, mounted: _Mounted, state: _ExpansionState) -> None:
        """Expand the file system. Raises `Refused`."""
        # Serialized, as drivers expect: the pods of one claim share the volume.
        async with state.lock:
            wanted = size_of(mounted.bound.spec.capacity)
            if state.size >= wanted:
                return
            claim = await self._claim(mounted)
            if mounted.read_only:
                text = "MountVolume.NodeExpandVolume failed for volume"
                message = f'{text} "{mounted.bound.name}" requested read-only file system'
                self._report(mounted, claim, WARNING, IMPOSSIBLE, message)
                state.size = wanted
                return
            step = growth(claim, wanted)
            if step is None:
                if is_recorded(claim, wanted):
                    state.size = wanted
                return
            if step.tracked and not step.recorded:
                claim = await self._patch(mounted, claim, begun(claim))
            if await self._call_driver(mounted, claim, step, state):
                await self._finish(mounted, claim, step)
            # A driver with FAILED_PRECONDITION expands the volume only while no pod uses it: a retry is
            # useless.
            if not state.refused:
                state.size = max(state.size, step.size)

    async def _claim(self, mounted: _Mounted) -> PersistentVolumeClaim:
        try:
            return await self._objects.claim(mounted.pod, mounted.bound.claim.metadata.name)
        except Refused as error:
            raise Refused(f"mountVolume.NodeExpandVolume get PVC failed : {error.message}") from error

    async def _call_driver(
        self, mounted: _Mounted, claim: PersistentVolumeClaim, step: Growth, state: _ExpansionState
    ) -> bool:
        """Call the driver; return False if the volume cannot be expanded at all. Raises `Refused`."""
        try:
            await mounted.expand(mounted.bound, step.size.value)
        except ExpansionFailed as error:
            if error.unsupported and (step.recorded or not step.tracked):
                return False
            state.refused = error.in_use
            if error.final and step.tracked:
                await self._fail(mounted, claim, step, state, error)
            if state.refused:
                log.error("volume %s was not expanded: %s", mounted.bound.name, error)
                return False
            raise
        return True

    async def _fail(
        self,
        mounted: _Mounted,
        claim: PersistentVolumeClaim,
        step: Growth,
        state: _ExpansionState,
        error: ExpansionFailed,
    ) -> None:
        """Record the failure in the claim. If expansion fails again and the claim requests another size by
        now, the volume is marked infeasible, so that the controller takes over.
        """
        infeasible = error.infeasible or (state.failed and is_other_than_wanted(claim, step.size))
        state.failed = True
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
