"""Volumes of drivers that have become larger: their file systems are, too, at mount and while pods have them.

The claim says how far it is. Source: kubelet v1.36 (`pkg/volume/util/operationexecutor`, `pkg/volume/csi`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from engine.api.errors import Refused
from engine.api.events import NORMAL, WARNING, EventRecorder
from engine.api.grpc_codes import FAILED_PRECONDITION, INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE
from engine.api.pod import Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.storage import CSIPersistentVolume, PersistentVolumeClaim, SecretReference
from engine.csi.driver_calls import DriverFailed
from engine.csi.drivers import Drivers
from engine.csi.expansion import (
    Growth,
    begun,
    failed,
    grown,
    growth,
    is_other_than_wanted,
    is_said,
    size_of,
)
from engine.csi.volume import CsiVolume
from engine.node.cluster_objects import ClusterObjects
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.refusals import refusing

AT_MOUNT: Final = "MountVolume.Setup failed while expanding volume"
AT_MAP: Final = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
MEANWHILE: Final = "NodeExpandVolume.NodeExpandVolume failed"
SUCCEEDED, IMPOSSIBLE = "FileSystemResizeSuccessful", "FileSystemResizeFailed"
_DOING: Final = "Expander.NodeExpand failed to expand the volume"
_INFEASIBLE: Final = frozenset({INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE})

log = logging.getLogger("kubengine.volumes")

Secrets = Callable[[SecretReference | None, str], Awaitable[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Mounted:
    """One pod's volume, published by a driver at `target`, and its staging. `grows` where the driver makes
    volumes larger."""

    pod: Pod
    bound: BoundVolume
    volume: CsiVolume
    target: Path
    staging: Path
    grows: bool


@dataclass(slots=True)
class _Known:
    """What this node knows of a volume as long as pods have it: its `size` here, and how an attempt ended."""

    size: Quantity
    pods: dict[str, Mounted] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failed: bool = False
    refused: bool = False


class Growing:
    """Belongs to one node, which goes by `node` in events. `secrets` reads what a driver gets with a call."""

    def __init__(
        self,
        node: str,
        drivers: Drivers,
        objects: ClusterObjects,
        recorder: EventRecorder,
        secrets: Secrets,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._drivers = drivers
        self._objects = objects
        self._recorder = recorder
        self._secrets = secrets
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def at_mount(self, mounted: Mounted) -> None:
        """Before a pod has the volume. Raises `VolumeRefused`."""
        bound = mounted.bound
        known = self._known.setdefault(bound.name, _Known(size_of(bound.claim.status.capacity)))
        known.pods[mounted.pod.uid] = mounted
        if size_of(bound.claim.status.capacity) < size_of(bound.spec.capacity):
            with refusing(bound.name, AT_MAP if bound.block else AT_MOUNT):
                await self._grow(mounted, known)

    def may_grow(self, uid: str) -> set[str]:
        """The claims of a pod whose volumes' sizes are to be looked at now and then."""
        return {
            mounted.bound.claim.metadata.name
            for known in self._known.values()
            if (mounted := known.pods.get(uid)) is not None and mounted.grows and not known.refused
        }

    async def meanwhile(self, uid: str, bound: BoundVolume) -> None:
        """While a pod has what is `bound` so by now. Raises `VolumeRefused`."""
        known = self._known.get(bound.name)
        mounted = known.pods.get(uid) if known is not None else None
        if known is not None and mounted is not None and ZERO < known.size < size_of(bound.spec.capacity):
            with refusing(bound.name, MEANWHILE):
                await self._grow(replace(mounted, bound=bound), known)

    def leave(self, uid: str) -> None:
        """The pod has no volumes any more."""
        for name in [name for name, known in self._known.items() if uid in known.pods]:
            del self._known[name].pods[uid]
            if not self._known[name].pods:
                del self._known[name]

    async def _grow(self, mounted: Mounted, known: _Known) -> None:
        """Raises `Refused`."""
        async with known.lock:
            wanted = size_of(mounted.bound.spec.capacity)
            if known.size >= wanted:
                return
            claim = await self._claim(mounted)
            if mounted.volume.read_only:
                text = "MountVolume.NodeExpandVolume failed for volume"
                said = f'{text} "{mounted.bound.name}" requested read-only file system'
                self._say(mounted, claim, WARNING, IMPOSSIBLE, said)
                known.size = wanted
                return
            step = growth(claim, wanted)
            if step is None:
                if is_said(claim, wanted):
                    known.size = wanted
                return
            if step.tracked and not step.said:
                claim = await self._patch(mounted, claim, begun(claim))
            if await self._asked(mounted, claim, step, known):
                await self._finish(mounted, claim, step)
            if not known.refused:
                known.size = max(known.size, step.size)

    async def _claim(self, mounted: Mounted) -> PersistentVolumeClaim:
        try:
            return await self._objects.claim(mounted.pod, mounted.bound.claim.metadata.name)
        except Refused as error:
            raise Refused(f"mountVolume.NodeExpandVolume get PVC failed : {error.message}") from error

    async def _asked(
        self, mounted: Mounted, claim: PersistentVolumeClaim, step: Growth, known: _Known
    ) -> bool:
        """Whether the driver has made it larger; False where it cannot, which is for nobody to mend.

        Raises `Refused`.
        """
        driver = self._drivers.get(mounted.volume.driver)
        able = await driver.capabilities()
        if not able.expands:
            if step.said or not step.tracked:
                return False
            error = Refused(f"NodeExpand is not supported by the CSI driver {mounted.volume.driver}")
            await self._fail(mounted, claim, step, known, error)
            raise error
        source = mounted.bound.source
        assert isinstance(source, CSIPersistentVolume)
        secrets = await self._secrets(source.node_expand_secret_ref, "NodeExpandSecretRef")
        volume = replace(mounted.volume, secrets=secrets)
        try:
            await driver.expand(volume, able, mounted.target, mounted.staging, step.size.value)
        except DriverFailed as failure:
            colon = "" if failure.code in _INFEASIBLE else " :"
            error = Refused(f"{_DOING}{colon} {failure}")
            known.refused = failure.code == FAILED_PRECONDITION
            if failure.settled and step.tracked:
                await self._fail(mounted, claim, step, known, error, failure.code in _INFEASIBLE)
            if known.refused:
                log.error("volume %s stays as it is: %s", mounted.bound.name, error)
                return False
            raise error from failure
        return True

    async def _fail(
        self,
        mounted: Mounted,
        claim: PersistentVolumeClaim,
        step: Growth,
        known: _Known,
        error: Refused,
        infeasible: bool = False,
    ) -> None:
        """The claim says what is wrong. One that failed before and is to have another size by now is given
        back to its controller."""
        infeasible = infeasible or (known.failed and is_other_than_wanted(claim, step.size))
        known.failed = True
        try:
            patch = failed(claim, str(error), self._clock(), infeasible=infeasible)
            await self._patch(mounted, claim, patch)
        except Refused as refused:
            log.error("claim %s does not say that it cannot grow: %s", claim.metadata.name, refused)

    async def _finish(self, mounted: Mounted, claim: PersistentVolumeClaim, step: Growth) -> None:
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{mounted.bound.name}" {self._node}'
        self._say(mounted, claim, NORMAL, SUCCEEDED, text)
        if not step.said:
            try:
                await self._patch(mounted, claim, grown(claim, step.size))
            except Refused as error:
                text = f"mountVolume.NodeExpandVolume update pvc status failed: {error.message}"
                raise Refused(text) from error

    async def _patch(
        self, mounted: Mounted, claim: PersistentVolumeClaim, patch: object
    ) -> PersistentVolumeClaim:
        if patch is None:
            return claim
        return await self._objects.patch_claim(mounted.pod, claim.metadata.name, patch)

    def _say(
        self, mounted: Mounted, claim: PersistentVolumeClaim, kind: str, reason: str, message: str
    ) -> None:
        """To who looks at the pod, and to who looks at the claim."""
        self._recorder.pod(mounted.pod, kind, reason, message)
        self._recorder.claim(mounted.pod, claim.metadata, kind, reason, message)
