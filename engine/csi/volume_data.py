"""Records the driver and handle of a volume in vol_data.json next to its mount, before the first driver call.

A later agent, or a kubelet, reads the file to unmount the volume. The format is the kubelet's.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from engine.api.encoding.json_text import encode_json_sorted
from engine.api.errors import Refused
from engine.csi import paths
from engine.csi.volume import EPHEMERAL
from engine.host.files import replace_file

MOST_BYTES: Final = 1 << 20

log = logging.getLogger("kubengine.csi")


class VolumeData(msgspec.Struct, frozen=True):
    """Identify a volume by its driver and handle. `ephemeral` volumes belong to one pod; `label` is the
    SELinux label of the mount, '' for none.
    """

    driver: str
    handle: str
    ephemeral: bool = False
    label: str = ""


def write_published(directory: Path, name: str, data: VolumeData, mode: str, node: str) -> None:
    """Write the file next to one pod's mount. Raises `Refused`."""
    _write(directory, {**_published(name, data, node), "volumeLifecycleMode": mode, **_label(data)})


def write_device(directory: Path, name: str, data: VolumeData, node: str) -> None:
    """Write the file of a block volume, for all pods. Raises `Refused`."""
    _write(directory, _published(name, data, node))


def write_staged(directory: Path, data: VolumeData) -> None:
    """Write the file next to the mount for all pods. Raises `Refused`."""
    _write(directory, {"driverName": data.driver, "volumeHandle": data.handle, **_label(data)})


def read(directory: Path) -> VolumeData | None:
    """Return the record of a volume, or None without one. Raise `Refused` if it cannot be read now."""
    path = directory / paths.DATA
    try:
        record = _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}", subject=str(path), errno=error.errno) from error
    except (ValueError, msgspec.DecodeError) as error:
        log.error("%s is ignored: %s", path, error)
        return None
    driver, handle = record.get("driverName", ""), record.get("volumeHandle", "")
    ephemeral = record.get("volumeLifecycleMode") == EPHEMERAL
    label = record.get("seLinuxMountContext", "")
    return VolumeData(driver, handle, ephemeral, label) if driver and handle else None


def _label(data: VolumeData) -> dict[str, str]:
    return {"seLinuxMountContext": data.label} if data.label else {}


def _published(name: str, data: VolumeData, node: str) -> dict[str, str]:
    return {
        "attachmentID": paths.attachment_name(data.handle, data.driver, node),
        "driverName": data.driver,
        "nodeName": node,
        "specVolID": name,
        "volumeHandle": data.handle,
    }


def _read(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    return msgspec.json.decode(data, type=dict[str, str])


def _write(directory: Path, record: dict[str, str]) -> None:
    replace_file(directory / paths.DATA, encode_json_sorted(record) + b"\n")
