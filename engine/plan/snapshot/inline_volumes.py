"""Name cloud disks in the specs of pods among the claims of `pods.claims`: `inline/PLUGIN/ID`, followed by
`/read-only` if a pod does not write to the disk.

A CSI driver has replaced the in-tree plugin of each, and a node attaches them as volumes of that driver.
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
"""The plugins whose volumes the scheduler counts, and the field of each that names a disk."""


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
    for plugin, field in IDS.items():
        source = sources.get(plugin) or {}
        disk, suffix = source.get(field), READ_ONLY if source.get("readOnly") is True else ""
        if isinstance(disk, str) and disk:
            yield f"{INLINE_VOLUME}{plugin}/{quote(disk, safe='')}{suffix}"


def inline_source(name: str) -> dict[str, Any]:
    """Return the source of the volume that `inline_names` has named, by its field."""
    plugin, _, disk = name.removesuffix(READ_ONLY).removeprefix(INLINE_VOLUME).partition("/")
    if plugin not in IDS:
        raise InvalidInput(f"pods.claims: {name[:60]!r} names no volume")
    used = {"readOnly": True} if name.endswith(READ_ONLY) else {}
    return {plugin: {IDS[plugin]: unquote(disk), **used}}


def attached_as(name: str) -> tuple[str, str] | None:
    """Return the driver and the handle of the disk; None for one that no driver takes."""
    try:
        found = migrated_inline(msgspec.convert({"name": "disk", **inline_source(name)}, Volume), "")
    except InvalidInput:
        return None
    source = found.spec.csi if found is not None else None
    return (source.driver, source.volume_handle) if source is not None else None
