"""Resolves a pod's claims to persistent volumes that this node can mount.

Source: kubelet v1.36 (volume manager's populator, node affinity of persistent volumes).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.admission.selectors import selects
from engine.api.errors import InvalidInput, Refused
from engine.api.meta import ObjectMeta
from engine.api.node import Node
from engine.api.objects.storage import (
    BLOCK,
    FILESYSTEM,
    READ_WRITE_ONCE_POD,
    CSIPersistentVolume,
    LocalVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
)
from engine.api.pod import HostPathVolume, Pod, Volume
from engine.api.references import FCVolume, ISCSIVolume, NFSVolume
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.refusals import UnprocessedVolume, VolumeRefused

_BOUND = "Bound"
_PROTECTED = "kubernetes.io/pvc-protection"


class BoundVolume(msgspec.Struct, frozen=True):
    """Hold a persistent volume with its spec and its claim.

    A cloud volume in a pod's own spec has no claim. `directory` is mounted into pods if the volume is local
    and not a device. `label` is the SELinux label for its files, '' to leave them as they are.
    """

    metadata: ObjectMeta
    source: HostPathVolume | LocalVolume | CSIPersistentVolume | NFSVolume | ISCSIVolume | FCVolume
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    claim: PersistentVolumeClaim = msgspec.field(default_factory=PersistentVolumeClaim)
    directory: Path | None = None
    label: str = ""

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def block(self) -> bool:
        """Return whether the volume is a device rather than a file system."""
        return self.spec.volume_mode == BLOCK

    @property
    def for_one_pod(self) -> bool:
        """Return whether only one pod at a time may use the volume: `ReadWriteOncePod` is its only access
        mode.
        """
        return list(self.spec.access_modes or ()) == [READ_WRITE_ONCE_POD]


def is_csi_volume(volume: Volume, bound: object) -> bool:
    """Tell whether a CSI driver provides the volume; `bound` is the claim's volume, if there is a claim."""
    of_claim = isinstance(bound, BoundVolume) and isinstance(bound.source, CSIPersistentVolume)
    return volume.csi is not None or of_claim


def is_cloud_volume(volume: Volume) -> bool:
    """Tell whether the pod's spec names a volume of a former in-tree cloud plugin, now a CSI driver."""
    return any(
        source is not None
        for source in (
            volume.aws_elastic_block_store,
            volume.azure_disk,
            volume.azure_file,
            volume.cinder,
            volume.gce_persistent_disk,
            volume.portworx_volume,
            volume.vsphere_volume,
        )
    )


def cloud_volume(volume: Volume, namespace: str) -> BoundVolume:
    """Translate a cloud volume in a pod's spec to its CSI driver's volume. Raises `InvalidInput`."""
    from engine.csi.migration import migrated_inline

    found = migrated_inline(volume, namespace)
    assert found is not None
    assert found.spec.csi is not None
    return BoundVolume(found.metadata, found.spec.csi, found.spec)


def in_tree_source(volume: Volume, bound: object) -> NFSVolume | ISCSIVolume | FCVolume | None:
    """Return the source of an NFS, iSCSI or Fibre Channel volume; None for other volumes."""
    source = bound.source if isinstance(bound, BoundVolume) else volume.nfs or volume.iscsi or volume.fc
    return source if isinstance(source, NFSVolume | ISCSIVolume | FCVolume) else None


def volume_name(volume: Volume, bound: object) -> str:
    """Return the name for messages and paths: the PersistentVolume's, or without a claim the pod's own."""
    return bound.name if isinstance(bound, BoundVolume) else volume.name


def claim_name(pod: Pod, volume: Volume) -> str | None:
    """Return the name of the volume's claim, or None without one. An ephemeral volume's claim is named after
    the pod and the volume.
    """
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None


def is_read_only(volume: Volume) -> bool:
    """Tell whether the volume or its claim makes every mount read-only."""
    if volume.csi is not None:
        return bool(volume.csi.read_only)
    return volume.persistent_volume_claim is not None and volume.persistent_volume_claim.read_only


def mount_options(volume: Volume, bound: BoundVolume) -> list[str]:
    """Return the mount options of a local volume."""
    return [*(bound.spec.mount_options or ()), *(["ro"] if is_read_only(volume) else ())]


async def bound_volume(
    pod: Pod, volume: Volume, name: str, objects: ClusterObjects, node: Node
) -> BoundVolume:
    """Return the persistent volume that the claim `name` is bound to. Raises `VolumeRefused`."""
    from engine.csi.migration import migrated  # a node without claims has no use for it

    try:
        try:
            claim = await objects.claim(pod, name)
        except (InvalidInput, Refused) as error:
            raise InvalidInput(f"failed to fetch PVC from API server: {error.message}") from error
        _check_claim(claim)
        if volume.ephemeral is not None and not _is_controlled_by(pod, claim):
            raise InvalidInput(f"PVC {name} was not created for pod {pod.full_name} (pod is not owner)")
        wanted = claim.spec.volume_name
        try:
            bound = await objects.persistent_volume(wanted)
        except (InvalidInput, Refused) as error:
            text = f"failed to fetch PV {wanted} from API server: {error.message}"
            raise InvalidInput(text) from error
        if bound.metadata.name != wanted:
            raise InvalidInput(f"asked for PV {wanted}, got {bound.metadata.name}")
        _check_volume(bound, claim)
        _check_mode(bound, pod, volume)
        bound = migrated(bound)
    except InvalidInput as error:
        processed = f"error processing PVC {pod.metadata.namespace}/{name}: {error.message}"
        raise UnprocessedVolume(volume.name, processed) from error
    return _usable(bound, claim, node)


def _check_claim(claim: PersistentVolumeClaim) -> None:
    meta = claim.metadata
    # The finalizer keeps a claim in deletion while pods use it; without the finalizer it may vanish at once.
    if meta.deletion_timestamp is not None and _PROTECTED not in (meta.finalizers or []):
        raise InvalidInput("PVC is being deleted")
    if claim.status.phase != _BOUND:
        raise InvalidInput("PVC is not bound")
    if not claim.spec.volume_name:
        raise InvalidInput("PVC has empty pvc.Spec.VolumeName")


def _check_volume(bound: PersistentVolume, claim: PersistentVolumeClaim) -> None:
    reference, found = bound.spec.claim_ref, f"found PV object {bound.metadata.name} but"
    if reference is None:
        text = "it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        raise InvalidInput(f"{found} {text}")
    # A later claim may have the name of the claim that the volume was bound to.
    if reference.uid != claim.metadata.uid:
        text = f"its pv.Spec.ClaimRef.UID {reference.uid} does not point to claim.UID {claim.metadata.uid}"
        raise InvalidInput(f"{found} {text}")


def _check_mode(bound: PersistentVolume, pod: Pod, volume: Volume) -> None:
    mode = bound.spec.volume_mode
    mounts = (mount for container in pod.every_container for mount in container.volume_mounts or [])
    devices = (device for container in pod.every_container for device in container.volume_devices or [])
    for name, used, wanted in (("volumeMounts", mounts, FILESYSTEM), ("volumeDevices", devices, BLOCK)):
        if mode != wanted and any(one.name == volume.name for one in used):
            raise InvalidInput(f"volume {volume.name} has volumeMode {mode}, but is specified in {name}")


def _usable(bound: PersistentVolume, claim: PersistentVolumeClaim, node: Node) -> BoundVolume:
    spec, name = bound.spec, bound.metadata.name
    block = spec.volume_mode == BLOCK
    operation = "MapVolume" if block else "MountVolume"
    affinity = spec.node_affinity
    required = affinity.required if affinity is not None else None
    if required is not None and not selects(required, node.metadata.labels or {}, node.metadata.name):
        text = "no matching NodeSelectorTerms"
        raise VolumeRefused(f'{operation}.NodeAffinity check failed for volume "{name}" : {text}')
    files = None if block else spec.host_path or spec.nfs
    source = files or spec.local or spec.csi or spec.iscsi or spec.fc
    if source is not None:
        return BoundVolume(bound.metadata, source, spec, claim)
    step = "SetUpDevice" if block else "SetUp"
    raise VolumeRefused(f'{operation}.{step} failed for volume "{name}" : no volume plugin matched')


def _is_controlled_by(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    owners = claim.metadata.owner_references or []
    return any(owner.controller and owner.uid == pod.uid for owner in owners)
