"""Translates persistent volumes of the former in-tree cloud plugins to those of their CSI drivers. Pure.

Source: kubelet v1.36 (`k8s.io/csi-translation-lib`); migration is complete there, and the in-tree plugins are
gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from engine.api.errors import InvalidInput
from engine.api.objects.storage import (
    READ_ONLY_MANY,
    READ_WRITE_MANY,
    READ_WRITE_ONCE,
    CSIPersistentVolume,
    PersistentVolume,
    PersistentVolumeSpec,
    VolumeNodeAffinity,
)
from engine.api.pod import Volume
from engine.api.references import SecretReference
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

DRIVERS: Final = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}
"""The CSI driver that replaces each in-tree plugin."""
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
BETWEEN_ZONES: Final = "__"
UNSPECIFIED: Final = "UNSPECIFIED"
MANAGED: Final = "Managed"
AZURE_RESOURCE_GROUP: Final = "kubernetes.io/azure-file-resource-group"
PORTWORX_SECRET: Final = ("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace")
_EBS_VOLUME: Final = re.compile(r"vol-[^/]*")
_STORAGE_ACCOUNT: Final = re.compile(r"azure-storage-account-(.+)-secret")

Source = Callable[[Any, PersistentVolume], CSIPersistentVolume]


class _Plugin(msgspec.Struct, frozen=True):
    """Hold the spec field of an in-tree plugin, its translation, and the driver's topology keys of zones and
    regions.
    """

    field: str
    translate: Source
    zone: str = ""
    region: str = ""


def migrated(volume: PersistentVolume) -> PersistentVolume:
    """Return the CSI volume that replaces an in-tree one; return other volumes unchanged.

    Raises `InvalidInput` for a volume that cannot be translated.
    """
    for plugin in _PLUGINS:
        source = getattr(volume.spec, plugin.field)
        if source is None:
            continue
        found = deepcopy(volume)
        try:
            found.spec.csi = plugin.translate(source, volume)
        except InvalidInput as error:
            text = f"failed to translate in-tree volume to CSI: {error.message}"
            raise InvalidInput(text) from error
        setattr(found.spec, plugin.field, None)
        if plugin.zone:
            _translate_topology(found, plugin.zone, plugin.region)
        if plugin.field == "gce_persistent_disk":
            found.spec.access_modes = _gce_access_modes(found.spec.access_modes)
        return found
    return volume


def migrated_inline(volume: Volume, namespace: str) -> PersistentVolume | None:
    """Return the persistent volume of a CSI driver for a cloud volume in the spec of a pod of this namespace;
    None for other volumes.

    Every pod with that disk gets the same name, because the name is part of the staging path. Raises
    `InvalidInput`.
    """
    for plugin in _PLUGINS:
        given = getattr(volume, plugin.field)
        if given is not None:
            return _inline(plugin, given, volume.name, namespace)
    return None


def _inline(plugin: _Plugin, given: dict[str, Any], name: str, namespace: str) -> PersistentVolume:
    """Translate an inline volume. The secret of an azureFile volume is always in the pod's namespace."""
    fields = {key: value for key, value in given.items() if key != "secretNamespace"}
    reference = {"namespace": namespace or "default"}
    key = dict(_json_names())[plugin.field]
    try:
        wanted = {"metadata": {"name": name}, "spec": {key: fields, "claimRef": reference}}
        found = migrated(msgspec.convert(wanted, PersistentVolume))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"failed to translate in-tree volume to CSI: {error}") from error
    source, spec = found.spec.csi, found.spec
    assert source is not None
    spec.claim_ref = spec.node_affinity = None
    read_only = bool(given.get("readOnly")) and plugin.field in ("gce_persistent_disk", "portworx_volume")
    spec.access_modes = [READ_ONLY_MANY if read_only else READ_WRITE_ONCE]
    found.metadata.name = f"{source.driver}-{given.get('pdName', source.volume_handle)}"
    if plugin.field in ("azure_disk", "azure_file"):
        found.metadata.name = source.volume_handle
    if plugin.field == "azure_file":
        spec.access_modes = [READ_WRITE_MANY]
    return found


def _json_names() -> Iterator[tuple[str, str]]:
    return ((field.name, field.encode_name) for field in msgspec.structs.fields(PersistentVolumeSpec))


# Translations, one per plugin


def _aws_ebs(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/aws-ebs"],
        volume_handle=_ebs_volume(source.volume_id),
        read_only=source.read_only,
        fs_type=source.fs_type,
        volume_attributes={"partition": str(source.partition)},
    )


def _ebs_volume(name: str) -> str:
    """Return the volume's id, which the in-tree plugin also wrote as `aws://ZONE/vol-…`."""
    if not name.startswith("aws://"):
        return name
    volume = urlsplit(name).path.strip("/")
    if not _EBS_VOLUME.fullmatch(volume):
        text = f"failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({name})"
        raise InvalidInput(text)
    return volume


def _azure_disk(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    if source.kind is not None and source.kind.lower() != MANAGED.lower():
        raise InvalidInput(f"kind({source.kind}) is not supported in csi migration")
    attributes = {"kind": MANAGED}
    if source.caching_mode is not None:
        attributes["cachingmode"] = source.caching_mode
    if source.fs_type is not None:
        attributes["fstype"] = source.fs_type
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/azure-disk"],
        volume_handle=source.disk_uri,
        read_only=bool(source.read_only),
        fs_type=source.fs_type or "",
        volume_attributes=attributes,
    )


def _azure_file(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    named = _STORAGE_ACCOUNT.search(source.secret_name)
    account = named[1] if named else source.secret_name
    reference = volume.spec.claim_ref
    namespace = source.secret_namespace
    if namespace is None:
        namespace = reference.namespace if reference is not None else ""
    if not namespace:
        raise InvalidInput("could not find a secret namespace in PersistentVolumeSource or ClaimRef")
    group = (volume.metadata.annotations or {}).get(AZURE_RESOURCE_GROUP, "")
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/azure-file"],
        volume_handle="#".join((group, account, source.share_name, volume.metadata.name, namespace)),
        read_only=source.read_only,
        volume_attributes={"sharename": source.share_name},
        node_stage_secret_ref=SecretReference(name=source.secret_name, namespace=namespace),
    )


def _gce_pd(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    labels = volume.metadata.labels or {}
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE) or "").split(BETWEEN_ZONES)
    regional = len(zones) > 1
    place = f"regions/{_gce_region(zones)}" if regional else f"zones/{zones[0] or UNSPECIFIED}"
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/gce-pd"],
        volume_handle=f"projects/{UNSPECIFIED}/{place}/disks/{source.pd_name}",
        read_only=source.read_only,
        fs_type=source.fs_type,
        volume_attributes={"partition": str(source.partition) if source.partition else ""},
    )


def _gce_region(zones: Sequence[str]) -> str:
    """Return the region of zones, which are named `LOCALE-REGION-ZONE`."""
    parts = [zone.split("-") for zone in zones]
    for zone, split in zip(zones, parts, strict=True):
        if len(split) != 3:
            text = f"zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            raise InvalidInput(f"failed to get region from zones: {text}")
    regions = {"-".join(split[:2]) for split in parts}
    if len(regions) != 1:
        text = f"multiple or no regions gotten from zones, got: {', '.join(sorted(regions))}"
        raise InvalidInput(f"failed to get region from zones: {text}")
    return regions.pop()


def _gce_access_modes(modes: Sequence[str] | None) -> list[str] | None:
    """Translate access modes; the in-tree plugin treated ReadWriteMany as ReadWriteOnce."""
    if modes is None:
        return None
    wanted = {READ_WRITE_ONCE if mode == READ_WRITE_MANY else mode for mode in modes}
    return (
        [READ_ONLY_MANY] if READ_WRITE_ONCE not in wanted and READ_ONLY_MANY in wanted else [READ_WRITE_ONCE]
    )


def _cinder(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/cinder"],
        volume_handle=source.volume_id,
        read_only=source.read_only,
        fs_type=source.fs_type,
        volume_attributes={},
    )


def _vsphere(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    policy = source.storage_policy_name
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/vsphere-volume"],
        volume_handle=source.volume_path,
        fs_type=source.fs_type,
        volume_attributes={"storagepolicyname": policy} if policy else {},
    )


def _portworx(source: Any, volume: PersistentVolume) -> CSIPersistentVolume:
    annotations = volume.metadata.annotations or {}
    name, namespace = (annotations.get(key) for key in PORTWORX_SECRET)
    secret = None
    if name is not None and namespace is not None:
        secret = SecretReference(name=name, namespace=namespace)
    return CSIPersistentVolume(
        driver=DRIVERS["kubernetes.io/portworx-volume"],
        volume_handle=source.volume_id,
        fs_type=source.fs_type,
        volume_attributes={},
        node_stage_secret_ref=secret,
        node_publish_secret_ref=secret,
        node_expand_secret_ref=secret,
    )


_PLUGINS: Final = (
    _Plugin("aws_elastic_block_store", _aws_ebs, "topology.ebs.csi.aws.com/zone"),
    _Plugin("azure_disk", _azure_disk),
    _Plugin("azure_file", _azure_file),
    _Plugin("cinder", _cinder, "topology.cinder.csi.openstack.org/zone"),
    _Plugin("gce_persistent_disk", _gce_pd, "topology.gke.io/zone"),
    _Plugin("portworx_volume", _portworx),
    _Plugin(
        "vsphere_volume",
        _vsphere,
        "topology.csi.vmware.com/zone",
        "topology.csi.vmware.com/region",
    ),
)


# Topology


def _translate_topology(volume: PersistentVolume, zone: str, region: str) -> None:
    """Replace Kubernetes' topology keys in the node affinity by the driver's. Without a zone there, the zone
    is taken from the volume's labels.
    """
    labels = volume.metadata.labels or {}
    beta = not _has(volume, ZONE) and (
        _has(volume, BETA_ZONE) or (ZONE not in labels and BETA_ZONE in labels)
    )
    old_zone, old_region = (BETA_ZONE, BETA_REGION) if beta else (ZONE, REGION)
    _translate_key(volume, old_zone, zone, labels, several=not region)
    if region:
        _translate_key(volume, old_region, region, labels, several=False)
    elif beta:
        _rename(volume, old_region, REGION)


def _translate_key(
    volume: PersistentVolume, old: str, new: str, labels: Mapping[str, str], *, several: bool
) -> None:
    if _has(volume, old):
        _rename(volume, old, new)
        return
    label = labels.get(old, "")
    values = label.split(BETWEEN_ZONES) if several else [label]
    named = sorted({value.strip() for value in values} - {""})
    if named:
        _require(volume, new, named)


def _terms(volume: PersistentVolume) -> list[NodeSelectorTerm]:
    affinity = volume.spec.node_affinity
    required = affinity.required if affinity is not None else None
    return (required.node_selector_terms or []) if required is not None else []


def _has(volume: PersistentVolume, key: str) -> bool:
    return any(one.key == key for term in _terms(volume) for one in term.match_expressions or ())


def _rename(volume: PersistentVolume, old: str, new: str) -> None:
    for term in _terms(volume):
        for one in term.match_expressions or ():
            if one.key == old:
                one.key = new


def _require(volume: PersistentVolume, key: str, values: list[str]) -> None:
    """Add a requirement to every term."""
    terms = _terms(volume) or [NodeSelectorTerm()]
    for term in terms:
        wanted = NodeSelectorRequirement(key=key, operator="In", values=[*values])
        term.match_expressions = [*(term.match_expressions or ()), wanted]
    volume.spec.node_affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms))
