"""Volumes: their names, sources and files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.pod import DownwardAPIVolume, HostPathVolume, Pod, ProjectedVolume, Volume, VolumeProjection
from engine.api.quantity import ZERO
from engine.api.references import FCVolume, ISCSIVolume, NFSVolume
from engine.api.validation.containers import PULL_POLICIES
from engine.api.validation.environment import FILE_FIELDS, field_reference, resource_reference
from engine.api.validation.names import NO_API, dns_label, file_below, file_mode, no_backsteps, one_of

_NEEDS_API_SERVER = [
    "config_map",
    "secret",
    "persistent_volume_claim",
    "ephemeral",
    "csi",
    "flex_volume",
    "git_repo",
    "glusterfs",
    "rbd",
    "cephfs",
    "cinder",
    "portworx_volume",
    "aws_elastic_block_store",
    "gce_persistent_disk",
    "azure_disk",
    "azure_file",
    "vsphere_volume",
    "flocker",
    "photon_persistent_disk",
    "quobyte",
    "scale_io",
    "storageos",
]
_SUPPORTED_SOURCES = ("host_path", "empty_dir", "downward_api", "projected", "image", "nfs", "iscsi", "fc")
_NAMES = "(hostPath, emptyDir, downwardAPI, projected, image, nfs, iscsi, fc)"
# The dots after `eui` and `naa` stand for any character, as in the kubelet's expressions.
_ISCSI_NAMES = re.compile(
    r"iqn\.\d{4}-\d{2}\.[A-Za-z0-9.-]+(:[^,;*&$|\s]+)|eui.[A-Za-z0-9]{16}|naa.[A-Za-z0-9]{32}", re.ASCII
)
_MOST_LUN = 255
_PROJECTED_FROM_API = (
    "config_map",
    "secret",
    "service_account_token",
    "cluster_trust_bundle",
    "pod_certificate",
)
_HOST_PATH_TYPES = (
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)


def volume_problems(pod: Pod) -> Iterator[str]:
    seen: set[str] = set()
    for index, volume in enumerate(pod.spec.volumes or []):
        where = f"spec.volumes[{index}]"
        yield from dns_label(volume.name, f"{where}.name")
        if volume.name in seen:
            yield f"{where}.name: {volume.name!r} is already the name of another volume"
        seen.add(volume.name)
        yield from _volume(volume, where)


def _volume(volume: Volume, where: str) -> Iterator[str]:
    # First, because an unsupported source is the fault to name, whatever else is wrong with the volume.
    foreign = [name for name in _NEEDS_API_SERVER if getattr(volume, name) is not None]
    if foreign:
        yield f"{where}: a {foreign[0].replace('_', ' ')} volume {NO_API}"
        return
    given = [name for name in _SUPPORTED_SOURCES if getattr(volume, name) is not None]
    if len(given) != 1:
        yield f"{where}: expected exactly one source {_NAMES}"
    if volume.image is not None:
        yield from one_of(volume.image.pull_policy, PULL_POLICIES, f"{where}.image.pullPolicy")
    if volume.host_path is not None:
        yield from _host_path(volume.host_path, f"{where}.hostPath")
    if volume.empty_dir is not None:
        limit = volume.empty_dir.size_limit
        if limit is not None and limit < ZERO:
            yield f"{where}.emptyDir.sizeLimit: expected 0 or more, got {limit}"
    if volume.nfs is not None:
        yield from _nfs(volume.nfs, f"{where}.nfs")
    if volume.iscsi is not None:
        yield from _iscsi(volume.iscsi, f"{where}.iscsi")
    if volume.fc is not None:
        yield from _fc(volume.fc, f"{where}.fc")
    if volume.downward_api is not None:
        yield from _downward(volume.downward_api, f"{where}.downwardAPI")
    if volume.projected is not None:
        yield from _projected(volume.projected, f"{where}.projected")


def _host_path(source: HostPathVolume, where: str) -> Iterator[str]:
    if not source.path:
        yield f"{where}.path: expected a path"
    yield from no_backsteps(source.path, f"{where}.path")
    yield from one_of(source.type, _HOST_PATH_TYPES, f"{where}.type")


def _nfs(source: NFSVolume, where: str) -> Iterator[str]:
    if not source.server:
        yield f"{where}.server: expected the name or address of a server"
    if not source.path.startswith("/"):
        yield f"{where}.path: expected an absolute path, got {source.path!r}"


def _iscsi(source: ISCSIVolume, where: str) -> Iterator[str]:
    if not source.target_portal:
        yield f"{where}.targetPortal: expected an address, with a port or without"
    names = [("iqn", source.iqn)]
    if source.initiator_name is not None:
        names.append(("initiatorName", source.initiator_name))
    for name, value in names:
        if not _ISCSI_NAMES.fullmatch(value):
            yield f"{where}.{name}: expected a name of the form iqn, eui or naa, got {value!r}"
    if not 0 <= source.lun <= _MOST_LUN:
        yield f"{where}.lun: expected 0 to {_MOST_LUN}, got {source.lun}"
    if source.secret_ref is not None and source.secret_ref.name:
        yield f"{where}.secretRef: {NO_API}"
    elif source.secret_ref is None and (source.chap_auth_discovery or source.chap_auth_session):
        yield f"{where}.secretRef: expected the secret with the CHAP credentials"


def _fc(source: FCVolume, where: str) -> Iterator[str]:
    if bool(source.target_wwns) == bool(source.wwids):
        yield f"{where}: expected either targetWWNs and lun, or wwids"
    if source.target_wwns:
        if source.lun is None:
            yield f"{where}.lun: expected the number of a LUN of the targets"
        elif not 0 <= source.lun <= _MOST_LUN:
            yield f"{where}.lun: expected 0 to {_MOST_LUN}, got {source.lun}"


def _projected(volume: ProjectedVolume, where: str) -> Iterator[str]:
    yield from file_mode(volume.default_mode, f"{where}.defaultMode")
    paths: set[str] = set()
    for index, source in enumerate(volume.sources or []):
        field = f"{where}.sources[{index}]"
        if any(getattr(source, name) is not None for name in _PROJECTED_FROM_API):
            yield f"{field}: {NO_API}"
        elif source.downward_api is None:
            yield f"{field}: expected exactly one source, got none"
        yield from _paths(source, field, paths)


def _paths(source: VolumeProjection, field: str, taken: set[str]) -> Iterator[str]:
    if source.downward_api is None:
        return
    yield from _downward(source.downward_api, f"{field}.downwardAPI")
    for item in source.downward_api.items or []:
        # All sources of a projected volume write into one directory.
        if item.path in taken:
            yield f"{field}: {item.path[:64]!r} is the path of two files"
        taken.add(item.path)


def _downward(source: DownwardAPIVolume, where: str) -> Iterator[str]:
    yield from file_mode(source.default_mode, f"{where}.defaultMode")
    for index, item in enumerate(source.items or []):
        field = f"{where}.items[{index}]"
        yield from file_below(item.path, f"{field}.path")
        yield from file_mode(item.mode, f"{field}.mode")
        if (item.field_ref is None) == (item.resource_field_ref is None):
            yield f"{field}: expected exactly one of fieldRef and resourceFieldRef"
        if item.field_ref is not None:
            yield from field_reference(item.field_ref, FILE_FIELDS, f"{field}.fieldRef")
        if item.resource_field_ref is not None:
            yield from resource_reference(
                item.resource_field_ref, f"{field}.resourceFieldRef", of_volume=True
            )
