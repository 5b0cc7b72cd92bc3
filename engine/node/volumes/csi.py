"""Sets up CSI volumes: reads their API objects (CSIDriver, VolumeAttachment, secrets), then calls the driver.

Source: kubelet v1.36 (`pkg/volume/csi`, events of `operationexecutor`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from engine.api.errors import NotFound, Refused, Unavailable
from engine.api.grpc_codes import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OUT_OF_RANGE,
    RESOURCE_EXHAUSTED,
)
from engine.api.objects.storage import CSIDriver, CSIDriverSpec, CSIPersistentVolume
from engine.api.pod import Pod, Volume
from engine.api.references import SecretReference
from engine.api.timestamps import rfc3339
from engine.csi import paths
from engine.csi.driver_calls import CsiDriver, CsiDriverFailed
from engine.csi.drivers import CsiDrivers
from engine.csi.mounting import Mounting
from engine.csi.volume import (
    EPHEMERAL,
    PERSISTENT,
    SAYS,
    TOKENS,
    CsiVolume,
    check_mode,
    group_policy,
    needs_attachment,
    pod_info,
    spec_of,
)
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.attachments import Attachments
from engine.node.volumes.claims import BoundVolume
from engine.node.volumes.mounted_volumes import MountedVolume
from engine.node.volumes.refusals import (
    SET_UP,
    SET_UP_DEVICE,
    TAKEN,
    AttachLimitExceeded,
    ExpansionFailed,
    refusing,
)

ATTACH_SECONDS: Final = 123.0
DEFAULT_TOKEN_SECONDS: Final = 3600

MOUNT_DEVICE: Final = "MountVolume.MountDevice failed"
MAP_POD_DEVICE: Final = "MapVolume.MapPodDevice failed"
_EXPANDING: Final = "Expander.NodeExpand failed to expand the volume"
_INFEASIBLE: Final = frozenset({INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE})

T = TypeVar("T")


class CsiVolumes:
    """Mount and unmount CSI volumes of the node named `node`."""

    def __init__(
        self,
        node: str,
        drivers: CsiDrivers,
        mounting: Mounting,
        objects: ClusterObjects,
        attachments: Attachments,
    ) -> None:
        self._node = node
        self._drivers = drivers
        self._mounting = mounting
        self._objects = objects
        self._attachments = attachments
        self._used: dict[str, set[str]] = {}
        self._again: dict[str, set[str]] = {}

    async def set_up(
        self, pod: Pod, volume: Volume, bound: BoundVolume | None, removal: asyncio.Event
    ) -> MountedVolume:
        """Set up a volume; stop waiting for its attachment when `removal` is set. Raises `VolumeRefused`."""
        csi_volume = _csi_volume(pod, volume, bound)
        making, publishing = _doing(csi_volume)
        with refusing(csi_volume.name, making):
            csi_driver = await self._csi_driver(csi_volume.driver)
            attached = csi_volume.persistent and needs_attachment(csi_driver)
            if bound is not None and spec_of(csi_driver).se_linux_mount:
                csi_volume = replace(csi_volume, label=bound.label)
            if attached:
                self._use(pod.uid, csi_volume)
            driver = await self._driver(csi_volume)
            capabilities = await driver.capabilities()
        if attached:
            waiting = f"{'MapVolume' if csi_volume.block else 'MountVolume'}.WaitForAttach failed"
            with refusing(csi_volume.name, waiting):
                try:
                    attachment = await self._until(removal, self._attached(csi_volume))
                except Refused as error:
                    if await self._limit_exceeded(csi_volume):
                        raise AttachLimitExceeded(volume.name, error.message) from error
                    raise
                csi_volume = replace(csi_volume, attachment=attachment)
        source = bound.source if bound is not None else None
        if bound is not None and isinstance(source, CSIPersistentVolume):
            with refusing(csi_volume.name, SET_UP_DEVICE if csi_volume.block else SET_UP):
                if not await self._mounting.reserve(pod.uid, csi_volume, exclusive=bound.for_one_pod):
                    raise Refused(TAKEN)
            with refusing(csi_volume.name, making):
                secret = source.node_stage_secret_ref if capabilities.stages else None
                staged = replace(csi_volume, secrets=await self._secret(secret, "NodeStageSecretRef"))
                await self._mounting.stage(pod.uid, staged, driver, capabilities, attached=attached)
        with refusing(csi_volume.name, publishing):
            # Read secrets and tokens before each call: a republishing driver needs current ones.
            published = await self._for_publishing(pod, volume, source, csi_volume, csi_driver)
            again = bool(spec_of(csi_driver).requires_republish)
            path = await self._mounting.publish(pod.uid, published, driver, capabilities, again=again)
        if again:
            self._again.setdefault(pod.uid, set()).add(volume.name)
        relabel = not csi_volume.label and not csi_volume.read_only and not csi_volume.block
        if bound is None or not bound.claim.metadata.name:
            return MountedVolume(path, bound, relabel)
        expand = partial(self._expand, csi_volume, path)
        return MountedVolume(path, bound, relabel, expand, online_expansion=capabilities.expands)

    def key(self, pod: Pod, volume: Volume, bound: BoundVolume | None) -> tuple[str, str]:
        """Return driver and handle of a volume."""
        csi_volume = _csi_volume(pod, volume, bound)
        return csi_volume.driver, csi_volume.handle

    def volumes_to_republish(self, uid: str) -> set[str]:
        """Return the names of a pod's volumes whose drivers want periodic NodePublishVolume calls."""
        return self._again.get(uid, set())

    async def tear_down(self, uid: str) -> None:
        """Remove all CSI volumes of a pod. Raises `Refused`."""
        self._again.pop(uid, None)
        await self._mounting.tear_down(uid)
        for name in self._used.pop(uid, ()):
            self._attachments.release(name, uid)

    async def _expand(self, csi_volume: CsiVolume, path: Path, bound: BoundVolume, size: int) -> None:
        """Expand a volume. Raises `ExpansionFailed`, or `Refused` if the driver cannot be called."""
        driver = self._drivers.get(csi_volume.driver)
        capabilities = await driver.capabilities()
        if not capabilities.expands:
            text = f"NodeExpand is not supported by the CSI driver {csi_volume.driver}"
            raise ExpansionFailed(text, unsupported=True)
        assert isinstance(bound.source, CSIPersistentVolume)
        secrets = await self._secret(bound.source.node_expand_secret_ref, "NodeExpandSecretRef")
        volume, staging = replace(csi_volume, secrets=secrets), self._mounting.staging(csi_volume)
        try:
            await driver.expand(volume, capabilities, path, staging, size)
        except CsiDriverFailed as failure:
            infeasible = failure.code in _INFEASIBLE
            raise ExpansionFailed(
                f"{_EXPANDING}{'' if infeasible else ' :'} {failure}",
                final=failure.final,
                infeasible=infeasible,
                in_use=failure.code == FAILED_PRECONDITION,
            ) from failure

    def _use(self, uid: str, csi_volume: CsiVolume) -> None:
        """Report the volume as in use before it is used, so that the controller does not detach it."""
        name = paths.unique_name(csi_volume.driver, csi_volume.handle)
        self._used.setdefault(uid, set()).add(name)
        self._attachments.use(name, uid)

    async def _csi_driver(self, driver: str) -> CSIDriver | None:
        try:
            return await self._objects.csi_driver(driver)
        except NotFound:
            return None

    async def _driver(self, csi_volume: CsiVolume) -> CsiDriver:
        try:
            return await self._drivers.wait_for(csi_volume.driver)
        except Unavailable as error:
            doing = "mounter.SetUpAt failed to get CSI client"
            if csi_volume.block:
                doing = "blockMapper.SetUpDevice failed to get CSI client"
            elif csi_volume.persistent:
                doing = "attacher.MountDevice failed to create newCsiDriverClient"
            raise Unavailable(f"{SAYS}{doing}: {error.message}") from error

    async def _until(self, removal: asyncio.Event, waiting: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, at most ATTACH_SECONDS and only until the removal of the pod's volumes."""
        removed = asyncio.ensure_future(removal.wait())
        waiter = asyncio.ensure_future(waiting)
        both: set[asyncio.Future[Any]] = {removed, waiter}
        try:
            await asyncio.wait(both, timeout=ATTACH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            # Checked first: both may have completed in the same turn of the event loop.
            if waiter.done():
                return waiter.result()
            raise Refused("timed out waiting for the condition")
        finally:
            for each in both:
                each.cancel()

    async def _attached(self, csi_volume: CsiVolume) -> Mapping[str, str]:
        """Return the publish context of the attachment to this node."""
        await self._attachments.wait_until_attached(paths.unique_name(csi_volume.driver, csi_volume.handle))
        name = paths.attachment_name(csi_volume.handle, csi_volume.driver, self._node)
        try:
            found = await self._objects.volume_attachment(name)
        except Refused as error:
            text = f"volume {csi_volume.handle} has GET error for volume attachment {name}: {error.message}"
            raise Refused(text) from error
        if found.metadata.deletion_timestamp is not None:
            raise Refused("volume attachment is being deleted")
        if found.status.attached:
            return found.status.attachment_metadata or {}
        if found.status.attach_error is not None:
            raise Refused(found.status.attach_error.message)
        raise Refused(f"volume {csi_volume.handle} is not attached for volume attachment {name}")

    async def _limit_exceeded(self, csi_volume: CsiVolume) -> bool:
        """Tell whether the controller refused the attachment because the node's volume limit is exceeded. If
        so, refresh the driver's limit.
        """
        name = paths.attachment_name(csi_volume.handle, csi_volume.driver, self._node)
        try:
            error = (await self._objects.volume_attachment(name)).status.attach_error
        except Refused:
            return False
        if error is None or error.error_code != RESOURCE_EXHAUSTED:
            return False
        return await self._drivers.exhausted(csi_volume.driver)

    async def _for_publishing(
        self,
        pod: Pod,
        volume: Volume,
        source: object,
        csi_volume: CsiVolume,
        csi_driver: CSIDriver | None,
    ) -> CsiVolume:
        """Return the volume with the secrets, pod info and tokens that its CSIDriver requests. Block volumes
        get no tokens.
        """
        if not csi_volume.block:
            check_mode(csi_volume.driver, csi_driver, csi_volume.mode)
        reference = None
        if isinstance(source, CSIPersistentVolume):
            reference = source.node_publish_secret_ref
        elif volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
            name = volume.csi.node_publish_secret_ref.name
            reference = SecretReference(name=name, namespace=pod.metadata.namespace)
        secrets = await self._secret(reference, "NodePublishSecretRef")
        attributes = dict(csi_volume.attributes)
        spec = spec_of(csi_driver)
        if spec.pod_info_on_mount:
            attributes |= pod_info(pod, csi_volume.mode)
        if csi_volume.block:
            return replace(csi_volume, secrets=secrets, attributes=attributes)
        tokens = await self._tokens(pod, spec)
        # KEP-5538: many drivers log the volume context, but not the secrets.
        if spec.service_account_token_in_secrets:
            secrets |= tokens
        else:
            attributes |= tokens
        return replace(
            csi_volume, secrets=secrets, attributes=attributes, group_policy=group_policy(csi_driver)
        )

    async def _secret(self, reference: SecretReference | None, field: str) -> dict[str, str]:
        if reference is None:
            return {}
        namespace, name = reference.namespace, reference.name
        try:
            secret = await self._objects.read_secret(namespace, name)
        except Refused as error:
            text = (
                f"failed to find the secret {name} in the namespace {namespace} with error: {error.message}"
            )
            raise Refused(f"fetching {field} {namespace}/{name} failed: {SAYS}{text}") from error
        return {key: value.decode(errors="surrogateescape") for key, value in (secret.data or {}).items()}

    async def _tokens(self, pod: Pod, spec: CSIDriverSpec) -> dict[str, str]:
        tokens = {}
        for request in spec.token_requests or []:
            seconds = request.expiration_seconds or DEFAULT_TOKEN_SECONDS
            token = await self._objects.token(pod, request.audience, seconds)
            tokens[request.audience] = {
                "token": token.text,
                "expirationTimestamp": rfc3339(token.expires_at),
            }
        return {TOKENS: json.dumps(tokens, sort_keys=True, separators=(",", ":"))} if tokens else {}


def _doing(volume: CsiVolume) -> tuple[str, str]:
    """Return the kubelet's names for failures before and after staging."""
    if volume.block:
        return SET_UP_DEVICE, MAP_POD_DEVICE
    return MOUNT_DEVICE if volume.persistent else SET_UP, SET_UP


def _csi_volume(pod: Pod, volume: Volume, bound: BoundVolume | None) -> CsiVolume:
    context = pod.spec.security_context
    group = context.fs_group if context is not None else None
    change = context.fs_group_change_policy if context is not None else None
    if bound is not None and isinstance(bound.source, CSIPersistentVolume):
        claim, source = volume.persistent_volume_claim, bound.source
        return CsiVolume(
            driver=source.driver,
            handle=source.volume_handle,
            name=bound.name,
            mode=PERSISTENT,
            block=bound.block,
            read_only=claim is not None and claim.read_only,
            fs_type=source.fs_type,
            access_modes=bound.spec.access_modes or (),
            mount_options=bound.spec.mount_options or (),
            attributes=source.volume_attributes or {},
            group=group,
            group_change_policy=change,
        )
    assert volume.csi is not None
    return CsiVolume(
        driver=volume.csi.driver,
        handle=paths.ephemeral_handle(pod.uid, volume.name),
        name=volume.name,
        mode=EPHEMERAL,
        read_only=bool(volume.csi.read_only),
        fs_type=volume.csi.fs_type or "",
        attributes=volume.csi.volume_attributes or {},
        group=group,
        group_change_policy=change,
    )
