"""Sets up NFS, iSCSI and Fibre Channel volumes, from claims or from a pod's spec. Imports each plugin on
first use.

Source: kubelet v1.36 (`pkg/volume/nfs`, `pkg/volume/iscsi`, `pkg/volume/fc`, events of `operationexecutor`).
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.api.errors import KubengineError, Refused
from engine.api.pod import Pod, Volume
from engine.api.references import FCVolume, ISCSIVolume, NFSVolume
from engine.host.tasks import Tasks
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.attachments import Attachments
from engine.node.volumes.claims import BoundVolume, in_tree_source, is_read_only, volume_name
from engine.node.volumes.mounted_volumes import MountedVolume
from engine.node.volumes.refusals import SET_UP, SET_UP_DEVICE, TAKEN, refusing

if TYPE_CHECKING:
    from engine.intree.disk_volumes import Access, Disk, DiskVolumes
    from engine.intree.fc import FcVolumes
    from engine.intree.iscsi import IscsiVolumes
    from engine.intree.nfs import NfsVolumes

ATTACH_SECONDS: Final = 123.0
MOUNT_DEVICE: Final = "MountVolume.MountDevice failed"
_NFS: Final = "volumes/kubernetes.io~nfs"
_ISCSI: Final = ("volumes/kubernetes.io~iscsi", "volumeDevices/kubernetes.io~iscsi")
_FC: Final = ("volumes/kubernetes.io~fc", "volumeDevices/kubernetes.io~fc")


class InTreeStorage:
    """Mount the NFS, iSCSI and Fibre Channel volumes of a node with the directory `root`.

    `attachments` is None on a node whose volumes no controller attaches.
    """

    def __init__(
        self, root: Path, objects: ClusterObjects, attachments: Attachments | None, tasks: Tasks
    ) -> None:
        self._root = root
        self._objects = objects
        self._attachments = attachments
        self._tasks = tasks
        self._attached: dict[str, set[str]] = {}

    @cached_property
    def _nfs(self) -> NfsVolumes:
        from engine.intree.nfs import NfsVolumes

        return NfsVolumes(self._root)

    @cached_property
    def _iscsi(self) -> IscsiVolumes:
        from engine.intree.iscsi import IscsiVolumes

        return IscsiVolumes(self._root, self._tasks)

    @cached_property
    def _fc(self) -> FcVolumes:
        from engine.intree.fc import FcVolumes

        return FcVolumes(self._root, self._tasks)

    async def start(self) -> None:
        """Detach disks that an earlier agent attached and no pod uses."""
        if (self._root / "plugins" / "kubernetes.io" / "iscsi").exists():
            await self._iscsi.start()
        if (self._root / "plugins" / "kubernetes.io" / "fc").exists():
            await self._fc.start()

    async def stop(self) -> None:
        """Stop, and leave volumes as they are."""
        if "_iscsi" in self.__dict__:
            await self._iscsi.stop()
        if "_fc" in self.__dict__:
            await self._fc.stop()

    async def set_up(
        self, pod: Pod, volume: Volume, bound: BoundVolume | None, removal: asyncio.Event
    ) -> MountedVolume:
        """Set up a volume; stop waiting for its attachment when `removal` is set. Raises `VolumeRefused`."""
        source, name = in_tree_source(volume, bound), volume_name(volume, bound)
        if isinstance(source, NFSVolume):
            options = [*_options(bound), *(["ro"] if _read_only(volume, bound) else ())]
            with refusing(name):
                return MountedVolume(await self._nfs.set_up(pod.uid, name, source, options), bound)
        if isinstance(source, FCVolume):
            from engine.intree import fc_disk

            with refusing(name, _waiting(bound)):
                fibre = fc_disk.disk_of(source)
            listed = fc_disk.unique_name(source)
            return await self._set_up_disk(pod, volume, bound, source, (self._fc, fibre, listed), removal)
        assert isinstance(source, ISCSIVolume)
        from engine.intree import iscsi_disk

        with refusing(name, _waiting(bound)):
            disk = iscsi_disk.disk_of(name, source)
        listed = iscsi_disk.unique_name(source)
        return await self._set_up_disk(pod, volume, bound, source, (self._iscsi, disk, listed), removal)

    async def _set_up_disk(
        self,
        pod: Pod,
        volume: Volume,
        bound: BoundVolume | None,
        source: ISCSIVolume | FCVolume,
        attaching: tuple[DiskVolumes[Disk], Disk, str],
        removal: asyncio.Event,
    ) -> MountedVolume:
        """Set up the volume of a disk; `attaching` is its plugin, the disk, and its name in the status."""
        name, (plugin, disk, listed) = volume_name(volume, bound), attaching
        block = bound is not None and bound.block
        with refusing(name, _waiting(bound)):
            if self._attachments is not None:
                await self._wait_until_attached(self._attachments, pod.uid, listed, removal)
            # Reserved before the disk is attached, so that a release by another pod does not detach it.
            await self._reserve(pod.uid, plugin, disk, bound)
            access = await self._access(pod, volume, bound, source)
            device = await plugin.attach(disk, access)
        if block:
            with refusing(name, SET_UP_DEVICE):
                return MountedVolume(await plugin.link_for_pod(pod.uid, name, device), bound)
        with refusing(name, MOUNT_DEVICE):
            directory = await plugin.mount_for_all(disk, device, access)
        with refusing(name, SET_UP):
            path = await plugin.mount_for_pod(pod.uid, name, directory, access)
        return MountedVolume(path, bound, relabel=not access.label and not access.read_only)

    async def tear_down(self, uid: str) -> None:
        """Remove all of a pod's volumes; unused disks are detached in the background. Raises `Refused`."""
        pod = self._root / "pods" / uid
        try:
            if (pod / _NFS).exists():
                await self._nfs.release(uid)
            if "_iscsi" in self.__dict__ or any((pod / each).exists() for each in _ISCSI):
                await self._iscsi.release(uid)
            if "_fc" in self.__dict__ or any((pod / each).exists() for each in _FC):
                await self._fc.release(uid)
        except OSError as error:
            raise Refused(str(error), errno=error.errno) from error
        if self._attachments is not None:
            for name in self._attached.pop(uid, ()):
                self._attachments.release(name, uid)

    async def _wait_until_attached(
        self, attachments: Attachments, uid: str, name: str, removal: asyncio.Event
    ) -> None:
        """Report the volume as in use, and wait until the Node's status lists it as attached.

        The controller only lists these volumes, and attaches nothing; the kubelet waits all the same. Raises
        `Refused`.
        """
        self._attached.setdefault(uid, set()).add(name)
        attachments.use(name, uid)
        removed = asyncio.ensure_future(removal.wait())
        attached = asyncio.ensure_future(attachments.wait_until_attached(name))
        both: set[asyncio.Future[Any]] = {removed, attached}
        try:
            await asyncio.wait(both, timeout=ATTACH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not attached.done():
                raise Refused("timed out waiting for the condition")
        finally:
            for each in both:
                each.cancel()

    async def _reserve(
        self, uid: str, plugin: DiskVolumes[Disk], disk: Disk, bound: BoundVolume | None
    ) -> None:
        block = bound is not None and bound.block
        if bound is not None and bound.for_one_pod:
            users = await asyncio.to_thread(plugin.users, disk, block=block)
            if users - {uid}:
                raise Refused(TAKEN)
        plugin.reserve(uid, disk, block=block)

    async def _access(
        self, pod: Pod, volume: Volume, bound: BoundVolume | None, source: ISCSIVolume | FCVolume
    ) -> Access:
        from engine.intree.disk_volumes import Access

        chap = source if isinstance(source, ISCSIVolume) else None
        context = pod.spec.security_context
        return Access(
            block=bound is not None and bound.block,
            fs_type=source.fs_type,
            read_only=_read_only(volume, bound),
            options=_options(bound),
            label=bound.label if bound is not None else "",
            group=context.fs_group if context is not None else None,
            group_policy=context.fs_group_change_policy if context is not None else None,
            secret=await self._secret(pod, bound, chap) if chap is not None else {},
            discovery_chap=chap is not None and chap.chap_auth_discovery,
            session_chap=chap is not None and chap.chap_auth_session,
        )

    async def _secret(self, pod: Pod, bound: BoundVolume | None, source: ISCSIVolume) -> dict[str, bytes]:
        """Return the CHAP credentials. The secret of a volume in the pod's spec is in the pod's namespace."""
        reference = source.secret_ref
        if reference is None or not (source.chap_auth_discovery or source.chap_auth_session):
            return {}
        namespace = (reference.namespace if bound is not None else "") or pod.metadata.namespace
        try:
            secret = await self._objects.read_secret(namespace, reference.name)
        except KubengineError as error:
            text = f"couldn't get secret {namespace}/{reference.name} error: {error.message}"
            raise Refused(text) from error
        return dict(secret.data or {})


def _waiting(bound: BoundVolume | None) -> str:
    """Return the kubelet's name for a failure while waiting for a disk."""
    return f"{'MapVolume' if bound is not None and bound.block else 'MountVolume'}.WaitForAttach failed"


def _read_only(volume: Volume, bound: BoundVolume | None) -> bool:
    """Return whether to mount read-only. As in the kubelet, the claim decides, not the PersistentVolume."""
    if bound is not None:
        return is_read_only(volume)
    own = volume.nfs or volume.iscsi or volume.fc
    return own is not None and own.read_only


def _options(bound: BoundVolume | None) -> list[str]:
    return list(bound.spec.mount_options or ()) if bound is not None else []
