"""Name cloud disks in the specs of pods among the claims of `pods.claims`: `inline/PLUGIN/ID`.

A CSI driver has replaced the in-tree plugin of each, and a node attaches them as volumes of that driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from engine.api.errors import InvalidInput
from engine.api.pod import Volume
from engine.csi.migration import migrated_inline

INLINE_VOLUME: Final = "inline/"
IDS: Final = {
    "awsElasticBlockStore": "volumeID",
    "azureDisk": "diskURI",
    "cinder": "volumeID",
    "gcePersistentDisk": "pdName",
    "portworxVolume": "volumeID",
}
"""The plugins whose volumes the scheduler counts, and the field of each that names a disk."""


def inline_names(sources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of the disk in a volume of a pod, given the sources of the volume by their fields."""
    for plugin, field in IDS.items():
        disk = (sources.get(plugin) or {}).get(field)
        if isinstance(disk, str) and disk:
            yield f"{INLINE_VOLUME}{plugin}/{quote(disk, safe='')}"


def inline_source(name: str) -> dict[str, Any]:
    """Return the source of the volume that `inline_names` has named, by its field."""
    plugin, _, disk = name.removeprefix(INLINE_VOLUME).partition("/")
    if plugin not in IDS:
        raise InvalidInput(f"pods.claims: {name[:60]!r} names no volume")
    return {plugin: {IDS[plugin]: unquote(disk)}}


def attached_as(name: str) -> tuple[str, str] | None:
    """Return the driver and the handle of the disk; None for one that no driver takes."""
    try:
        found = migrated_inline(msgspec.convert({"name": "disk", **inline_source(name)}, Volume), "")
    except InvalidInput:
        return None
    source = found.spec.csi if found is not None else None
    return (source.driver, source.volume_handle) if source is not None else None
