"""Names the kubelet's directories of in-tree volumes. Pure.

<root>/pods/<uid>/volumes/<plugin>/<volume>                                              mounted for one pod
<root>/pods/<uid>/volumeDevices/<plugin>/<volume>                                        a link to the device
<root>/plugins/kubernetes.io/iscsi/iface-<iface>/<portal>-<iqn>-lun-<n>                  for all pods
<root>/plugins/kubernetes.io/iscsi/volumeDevices/iface-<iface>/<portal>-<iqn>-lun-<n>    of a block volume
<root>/plugins/kubernetes.io/fc/<wwn>-lun-<n>, or <wwid>                                   for all pods
<root>/plugins/kubernetes.io/fc/volumeDevices/<wwn>-lun-<n>/<uid>                        of a block volume
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput

ISCSI: Final = "kubernetes.io~iscsi"
FC: Final = "kubernetes.io~fc"
DEVICES: Final = "volumeDevices"
INTERFACE: Final = "iface-"


def plugin_directory(root: Path, uid: str, plugin: str) -> Path:
    return root / "pods" / uid / "volumes" / plugin


def pod_volume(root: Path, uid: str, plugin: str, name: str) -> Path:
    """Return where a pod has a volume. Raises `InvalidInput` for a name that leads elsewhere."""
    return plugin_directory(root, uid, plugin) / one_name(name)


def pod_devices(root: Path, uid: str, plugin: str) -> Path:
    return root / "pods" / uid / DEVICES / plugin


def iscsi_mounts(root: Path) -> Path:
    return root / "plugins" / "kubernetes.io" / "iscsi"


def iscsi_devices(root: Path) -> Path:
    return iscsi_mounts(root) / DEVICES


def fc_mounts(root: Path) -> Path:
    return root / "plugins" / "kubernetes.io" / "fc"


def fc_devices(root: Path) -> Path:
    return fc_mounts(root) / DEVICES


def one_name(name: str) -> str:
    """Return the name of one directory. Raises `InvalidInput` for one that leads elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InvalidInput(f"expected the name of one directory, got {name!r}")
    return name
