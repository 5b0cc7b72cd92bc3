"""Describes iSCSI disks: portals, interface, directories, and the record on disk. Pure.

Source: kubelet v1.36 (`pkg/volume/iscsi`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.references import ISCSIVolume
from engine.intree.paths import INTERFACE, iscsi_devices, iscsi_mounts, one_name

RECORD: Final = "iscsi.json"
PORT: Final = 3260
TCP: Final = "tcp"
MOST_LUN: Final = 255
DISCOVERY_KEYS: Final = tuple(
    f"discovery.sendtargets.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)
SESSION_KEYS: Final = tuple(
    f"node.session.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)
_LUN: Final = "-lun-"
_TARGET: Final = re.compile(r"(?P<portal>[^-]*)-.*?(?P<iqn>(?:iqn|eui|naa)\..*)-lun-(?P<lun>[0-9]{1,3})")
_TRANSPORT: Final = re.compile(r"^iface\.transport_name = (.*)$", re.MULTILINE)


class IscsiDisk(msgspec.Struct, frozen=True):
    """Describe a LUN of a target; `name` is the volume's.

    Sessions go through `interface`, which is a copy of `base_interface` under another name if the volume has
    an `initiator` name of its own.
    """

    name: str
    portals: tuple[str, ...]
    iqn: str
    lun: int
    interface: str
    base_interface: str
    initiator: str = ""

    @property
    def portal(self) -> str:
        """Return the first portal, which names the directories."""
        return self.portals[0]

    @property
    def target(self) -> str:
        """Return the prefix of the directory names of all LUNs of this target."""
        return f"{self.portal}-{self.iqn}"

    def directory(self, root: Path, *, block: bool) -> Path:
        """Return the mount point for all pods, or the directory of a block volume."""
        top = iscsi_devices(root) if block else iscsi_mounts(root)
        return top / f"{INTERFACE}{self.interface}" / f"{self.target}{_LUN}{self.lun}"


def unique_name(volume: ISCSIVolume) -> str:
    """Return the volume's name in a node's status."""
    return f"kubernetes.io/iscsi/{volume.target_portal}:{volume.iqn}:{volume.lun}"


def disk_of(name: str, volume: ISCSIVolume) -> IscsiDisk:
    """Return the disk of a volume. Raises `InvalidInput` naming the field.

    Portal, IQN and interface name directories, so none of them may lead elsewhere.
    """
    if not volume.target_portal:
        raise InvalidInput("expected an address, with a port or without", subject="iscsi.targetPortal")
    if not volume.iqn.startswith(("iqn.", "eui.", "naa.")):
        raise InvalidInput(
            f"expected a name that begins with iqn, eui or naa, got {volume.iqn!r}", subject="iscsi.iqn"
        )
    if not 0 <= volume.lun <= MOST_LUN:
        raise InvalidInput(f"expected 0 to {MOST_LUN}, got {volume.lun}", subject="iscsi.lun")
    portals = tuple(
        dict.fromkeys(_with_port(portal) for portal in (volume.target_portal, *(volume.portals or ())))
    )
    base = volume.iscsi_interface or "default"
    initiator = volume.initiator_name or ""
    interface = f"{portals[0]}:{name}" if initiator else base
    for field, word in (
        ("targetPortal", portals[0]),
        ("iqn", volume.iqn),
        ("iscsiInterface", base),
        ("name", interface),
    ):
        try:
            one_name(word)
        except InvalidInput as error:
            raise InvalidInput(error.message, subject=f"iscsi.{field}") from error
    return IscsiDisk(name, portals, volume.iqn, volume.lun, interface, base, initiator)


def _with_port(portal: str) -> str:
    return portal if ":" in portal else f"{portal}:{PORT}"


def record(disk: IscsiDisk) -> bytes:
    """Return the record that a kubelet keeps in a disk's directory."""
    document = {
        "VolName": disk.name,
        "Portals": disk.portals,
        "Iqn": disk.iqn,
        "Lun": str(disk.lun),
        "InitIface": disk.base_interface,
        "Iface": disk.interface,
        "InitiatorName": disk.initiator,
        "MetricsProvider": None,
    }
    return encode_json(document) + b"\n"


def recorded(data: bytes) -> IscsiDisk:
    """Return the disk of a record. Raises `InvalidInput`."""
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        portals = tuple(str(portal) for portal in document["Portals"])
        interface = str(document["Iface"])
        disk = IscsiDisk(
            str(document.get("VolName") or ""),
            tuple(dict.fromkeys(filter(None, portals))),
            str(document["Iqn"]),
            int(document["Lun"]),
            interface,
            str(document.get("InitIface") or interface),
            str(document.get("InitiatorName") or ""),
        )
    except (ValueError, TypeError, KeyError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"not the record of an iSCSI disk: {error}") from error
    if not disk.portals:
        raise InvalidInput("the record of an iSCSI disk has no portals")
    return disk


def named(directory: Path) -> IscsiDisk:
    """Return the disk of a directory without a record, parsed from its path. Raises `InvalidInput`."""
    found = _TARGET.fullmatch(directory.name)
    parent = directory.parent.name
    if found is None or not parent.startswith(INTERFACE):
        raise InvalidInput(f"not the directory of an iSCSI disk: {directory}")
    interface = parent.removeprefix(INTERFACE)
    return IscsiDisk("", (found["portal"],), found["iqn"], int(found["lun"]), interface, interface)


def device_links(disk: IscsiDisk, portal: str, transport: str) -> str:
    """Return the pattern of the link that udev creates in /dev/disk/by-path for the disk at a portal."""
    address = portal.replace("[", "").replace("]", "")
    adapter = "" if transport == TCP else "pci-*-"
    return f"{adapter}ip-{_literal(address)}-iscsi-{_literal(disk.iqn)}-lun-{disk.lun}"


def _literal(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def transport_of(shown: str) -> str:
    """Return the transport of an interface as `iscsiadm -m iface -o show` printed it; '' if it names none."""
    found = _TRANSPORT.search(shown)
    name = found[1].strip() if found is not None else ""
    return TCP if name == "<empty>" else name


def interface_settings(shown: str, initiator: str) -> dict[str, str]:
    """Return the settings of a copy of an interface, by name. Raises `InvalidInput` for unexpected output."""
    settings = {}
    for line in shown.splitlines():
        if not line.startswith("iface.") or "<empty>" in line:
            continue
        words = line.split()
        if len(words) != 3 or words[1] != "=":
            raise InvalidInput(f"invalid setting of an interface: {line.strip()!r}")
        if words[0] != "iface.iscsi_ifacename":
            settings[words[0]] = words[2]
    settings["iface.initiatorname"] = initiator
    return dict(sorted(settings.items()))


def credentials(secret: Mapping[str, bytes], keys: tuple[str, ...]) -> dict[str, str]:
    """Return the secret's values for iscsiadm settings, by setting name."""
    found = {key: secret.get(key, b"").decode(errors="surrogateescape") for key in keys}
    return {key: value for key, value in found.items() if value}
