"""Volumes: their names, sources and files."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import DownwardAPIVolume, HostPathVolume, Pod, Volume
from engine.api.quantity import ZERO
from engine.api.resources import is_hugepage
from engine.api.validation.containers import PULL_POLICIES
from engine.api.validation.environment import FILE_FIELDS, field_reference, resource_reference
from engine.api.validation.names import NO_API, below, dns_label, in_range, one_of

_NEEDS_API_SERVER = [
    "config_map",
    "secret",
    "persistent_volume_claim",
    "ephemeral",
    "csi",
    "nfs",
    "iscsi",
    "fc",
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
_SUPPORTED_SOURCES = ("host_path", "empty_dir", "downward_api", "projected", "image")
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
    foreign = [name for name in _NEEDS_API_SERVER if getattr(volume, name) is not None]
    if foreign:
        yield f"{where}: a {foreign[0].replace('_', ' ')} volume {NO_API}"
        return
    given = [name for name in _SUPPORTED_SOURCES if getattr(volume, name) is not None]
    if len(given) != 1:
        yield f"{where}: expected exactly one source (hostPath, emptyDir, downwardAPI, projected, image)"
    if volume.image is not None:
        if not volume.image.reference.strip():
            yield f"{where}.image.reference: expected an image reference"
        yield from one_of(volume.image.pull_policy, PULL_POLICIES, f"{where}.image.pullPolicy")
    if volume.host_path is not None:
        yield from _host_path(volume.host_path, f"{where}.hostPath")
    if volume.empty_dir is not None:
        if volume.empty_dir.medium not in ("", "Memory") and not is_hugepage(volume.empty_dir.medium.lower()):
            yield f"{where}.emptyDir.medium: expected Memory or nothing, got {volume.empty_dir.medium!r}"
        if volume.empty_dir.size_limit is not None and volume.empty_dir.size_limit < ZERO:
            yield f"{where}.emptyDir.sizeLimit: expected 0 or more"
    if volume.downward_api is not None:
        yield from _downward(volume.downward_api, f"{where}.downwardAPI")
    if volume.projected is not None:
        yield from in_range(volume.projected.default_mode, 0, 0o777, f"{where}.projected.defaultMode")
    paths: set[str] = set()
    for number, source in enumerate((volume.projected and volume.projected.sources) or []):
        field = f"{where}.projected.sources[{number}]"
        if source.downward_api is None:
            yield f"{field}: {NO_API}"
            continue
        yield from _downward(source.downward_api, f"{field}.downwardAPI")
        for item in source.downward_api.items or []:
            if item.path in paths:
                yield f"{field}: {item.path[:64]!r} is the path of two files"
            paths.add(item.path)


def _host_path(source: HostPathVolume, where: str) -> Iterator[str]:
    if not source.path.startswith("/") or ".." in source.path.split("/"):
        yield f"{where}.path: expected an absolute path without .., got {source.path[:64]!r}"
    yield from one_of(source.type, _HOST_PATH_TYPES, f"{where}.type")


def _downward(source: DownwardAPIVolume, where: str) -> Iterator[str]:
    yield from in_range(source.default_mode, 0, 0o777, f"{where}.defaultMode")
    for index, item in enumerate(source.items or []):
        field = f"{where}.items[{index}]"
        if not item.path or item.path.startswith(".."):
            yield f"{field}.path: expected a path that does not begin with .., got {item.path[:64]!r}"
        yield from below(item.path, f"{field}.path")
        yield from in_range(item.mode, 0, 0o777, f"{field}.mode")
        if (item.field_ref is None) == (item.resource_field_ref is None):
            yield f"{field}: expected exactly one of fieldRef and resourceFieldRef"
        if item.field_ref is not None:
            yield from field_reference(item.field_ref, FILE_FIELDS, f"{field}.fieldRef")
        if item.resource_field_ref is not None:
            yield from resource_reference(
                item.resource_field_ref, f"{field}.resourceFieldRef", of_volume=True
            )
