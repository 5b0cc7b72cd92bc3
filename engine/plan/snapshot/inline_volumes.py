"""Name disks in the specs of pods among the claims of `pods.claims`: `inline/PLUGIN/ID`, followed by
`/read-only` if a pod does not write to the disk.

A CSI driver has replaced the in-tree plugin of each cloud disk, and a node attaches them as volumes of that
driver. An iSCSI volume has the IQN of its target as its ID. An RBD image has a name for each of its monitors,
since the scheduler takes two images for one if they have a monitor, the pool and the name in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Volume
from engine.csi.migration import migrated_inline

INLINE_VOLUME: Final = "inline/"
READ_ONLY: Final = "/read-only"
IDS: Final = {
    "awsElasticBlockStore": "volumeID",
    "azureDisk": "diskURI",
    "cinder": "volumeID",
    "gcePersistentDisk": "pdName",
    "portworxVolume": "volumeID",
}
"""The plugins of cloud disks, and the field of each that names a disk."""
ISCSI: Final = "iscsi"
RBD: Final = "rbd"
_DEFAULT_POOL: Final = "rbd"


class InlineDisk(NamedTuple):
    """Hold the plugin of a disk, its name without regard to how it is used, and whether it is only read."""

    plugin: str
    name: str
    read_only: bool


def inline_disks(claims: str) -> Iterator[InlineDisk]:
    """Yield the disks among the volumes of a pod, which a value of `pods.claims` names."""
    for name in claims.split():
        if name.startswith(INLINE_VOLUME):
            disk = name.removesuffix(READ_ONLY)
            yield InlineDisk(name.split("/")[1], disk, disk != name)


def inline_names(sources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of the disk in a volume of a pod, given the sources of the volume by their fields."""
    for plugin in (*IDS, ISCSI, RBD):
        source = sources.get(plugin) or {}
        suffix = READ_ONLY if source.get("readOnly") is True else ""
        for disk in _disk_ids(plugin, source):
            yield f"{INLINE_VOLUME}{plugin}/{disk}{suffix}"


def _disk_ids(plugin: str, source: Mapping[str, Any]) -> Iterator[str]:
    """Yield the IDs of a disk, percent-encoded; none without the fields that identify it."""
    if plugin == RBD:
        monitors = source.get("monitors")
        pool, image = source.get("pool", _DEFAULT_POOL), source.get("image")
        for monitor in monitors if isinstance(monitors, list) else ():
            parts = [part for part in (monitor, pool, image) if isinstance(part, str) and part]
            if len(parts) == 3:
                yield ",".join(quote(part, safe="") for part in parts)
        return
    disk = source.get(IDS.get(plugin, "iqn"))
    if isinstance(disk, str) and disk:
        yield quote(disk, safe="")


def inline_source(name: str) -> dict[str, Any]:
    """Return the source of the volume that `inline_names` has named, by its field."""
    plugin, _, disk = name.removesuffix(READ_ONLY).removeprefix(INLINE_VOLUME).partition("/")
    used = {"readOnly": True} if name.endswith(READ_ONLY) else {}
    if plugin in IDS:
        return {plugin: {IDS[plugin]: unquote(disk), **used}}
    if plugin == ISCSI:
        return {ISCSI: {"targetPortal": "", "lun": 0, "iqn": unquote(disk), **used}}
    if plugin == RBD and disk.count(",") == 2:
        monitor, pool, image = map(unquote, disk.split(","))
        return {RBD: {"monitors": [monitor], "pool": pool, "image": image, **used}}
    raise InvalidInput(f"pods.claims: {name[:60]!r} names no volume")


def attached_as(name: str) -> tuple[str, str] | None:
    """Return the driver and the handle of the disk; None for one that no driver takes."""
    if name.split("/")[1] not in IDS:
        return None
    try:
        found = migrated_inline(msgspec.convert({"name": "disk", **inline_source(name)}, Volume), "")
    except InvalidInput:
        return None
    source = found.spec.csi if found is not None else None
    return (source.driver, source.volume_handle) if source is not None else None
