"""Names the directories and files of drivers' volumes, as a kubelet does. Pure.

<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount                   published for one pod
<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json           its record
<root>/plugins/kubernetes.io/csi/<driver>/<digest of handle>/globalmount     staged for all pods
<root>/plugins/kubernetes.io/csi/<driver>/<digest of handle>/vol_data.json

A block volume has its directories together, by the name of its persistent volume:

<root>/pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>                     a link to the published device
<root>/plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<uid>          the device for one pod
<root>/plugins/kubernetes.io/csi/volumeDevices/staging/<volume>                the driver's, for all pods
<root>/plugins/kubernetes.io/csi/volumeDevices/<volume>/data/vol_data.json     its record
<root>/plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<uid>              a kubelet's second mount
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.api.encoding.digest import sha256
from engine.api.errors import InvalidInput

VOLUMES: Final = "kubernetes.io~csi"
MOUNT: Final = "mount"
GLOBAL_MOUNT: Final = "globalmount"
DATA: Final = "vol_data.json"
DEVICES: Final = "volumeDevices"
_STAGING, _PUBLISH = "staging", "publish"
SHARED: Final = frozenset({_STAGING, _PUBLISH})
"""Names of common directories, which are next to the directories of the block volumes."""


def pods_volumes(root: Path, uid: str) -> Path:
    return root / "pods" / uid / "volumes" / VOLUMES


def published(root: Path, uid: str, name: str) -> Path:
    """Return the directory of one pod's volume; a slash in the volume's name becomes a tilde.

    Raises `InvalidInput` for a name that leads elsewhere.
    """
    return pods_volumes(root, uid) / _one_name(name.replace("/", "~"))


def all_staged(root: Path) -> Path:
    return root / "plugins" / "kubernetes.io" / "csi"


def staged(root: Path, driver: str, handle: str) -> Path:
    """Return the directory of a volume on this node. Raise `InvalidInput` for a name that escapes it."""
    return all_staged(root) / _one_name(driver) / _digest(handle)


def pods_devices(root: Path, uid: str) -> Path:
    return root / "pods" / uid / DEVICES / VOLUMES


def all_devices(root: Path) -> Path:
    return all_staged(root) / DEVICES


def published_devices(root: Path, name: str) -> Path:
    """Return the directory with one device per pod. Raise `InvalidInput` for a name that escapes it."""
    return all_devices(root) / _PUBLISH / _volume(name)


def staged_device(root: Path, name: str) -> Path:
    return all_devices(root) / _STAGING / _volume(name)


def device_data(root: Path, name: str) -> Path:
    """Return the directory with the record of a block volume."""
    return all_devices(root) / _volume(name) / "data"


def ephemeral_handle(uid: str, volume: str) -> str:
    """Return the handle of a volume that a driver creates for one pod."""
    return f"csi-{_digest(uid + volume)}"


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Return the name of the VolumeAttachment of a volume and a node."""
    return f"csi-{_digest(handle + driver + node)}"


def unique_name(driver: str, handle: str) -> str:
    """Return the name of a volume in a node's status."""
    return f"kubernetes.io/csi/{driver}^{handle}"


def _digest(text: str) -> str:
    return sha256(text.encode())


def _volume(name: str) -> str:
    """Return the name of a block volume's directory among those of all block volumes."""
    if name in SHARED:
        raise InvalidInput(f"a block volume cannot be called {name!r}")
    return _one_name(name)


def _one_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InvalidInput(f"expected the name of one directory, got {name!r}")
    return name
