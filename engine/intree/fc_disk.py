"""Describes Fibre Channel disks: their identifiers and directories. Pure.

Source: kubelet v1.36 (`pkg/volume/fc`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.references import FCVolume
from engine.intree.paths import DEVICES, fc_devices, fc_mounts, one_name

MOST_LUN: Final = 255
_TARGETS: Final = re.compile(r"(?P<wwns>.+)-lun-(?P<lun>[0-9]{1,3})")


class FcDisk(msgspec.Struct, frozen=True):
    """Identify a disk by a LUN of targets (`wwns` and `lun`) or by `wwids`. In `wwids`, underscores replace
    spaces, as in /dev/disk/by-id.
    """

    wwns: tuple[str, ...] = ()
    lun: int = 0
    wwids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the disk's directories."""
        return f"{'-'.join(self.wwns)}-lun-{self.lun}" if self.wwns else "-".join(self.wwids)

    def directory(self, root: Path, *, block: bool) -> Path:
        """Return the mount point for all pods, or the directory of a block volume."""
        return (fc_devices(root) if block else fc_mounts(root)) / self.name


def unique_name(volume: FCVolume) -> str:
    """Return the volume's name in a node's status."""
    if volume.target_wwns and volume.lun is not None:
        return f"kubernetes.io/fc/[{' '.join(volume.target_wwns)}]:{volume.lun}"
    return f"kubernetes.io/fc/[{' '.join(volume.wwids or ())}]"


def disk_of(volume: FCVolume) -> FcDisk:
    """Return the disk of a volume. Raises `InvalidInput` naming the field."""
    if volume.target_wwns and volume.lun is not None:
        if not 0 <= volume.lun <= MOST_LUN:
            raise InvalidInput(f"expected 0 to {MOST_LUN}, got {volume.lun}", subject="fc.lun")
        field, disk = "targetWWNs", FcDisk(tuple(volume.target_wwns), volume.lun)
    elif volume.wwids:
        field, disk = "wwids", FcDisk(wwids=tuple(each.replace(" ", "_") for each in volume.wwids))
    else:
        raise InvalidInput("expected targetWWNs and lun, or wwids", subject="fc")
    try:
        for word in (*disk.wwns, *disk.wwids):
            one_name(word)
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=f"fc.{field}") from error
    if disk.name == DEVICES:
        raise InvalidInput(f"{DEVICES} names the directory of block volumes", subject="fc.wwids")
    return disk


def named(directory: Path) -> FcDisk:
    """Return the disk of a directory. Identifiers are joined by dashes, and may contain dashes themselves:
    the whole name and its parts are candidates.
    """
    name = directory.name
    if targets := _TARGETS.fullmatch(name):
        return FcDisk(tuple(targets["wwns"].split("-")), int(targets["lun"]))
    return FcDisk(wwids=tuple(dict.fromkeys((name, *name.split("-")))))
