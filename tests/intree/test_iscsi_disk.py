"""iSCSI disks as values: names, directories, records and settings are a kubelet's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.api.references import ISCSIVolume
from engine.intree.iscsi_disk import (
    device_links,
    disk_of,
    interface_settings,
    named,
    record,
    recorded,
    transport_of,
    unique_name,
)

ROOT = Path("/var/lib/kubelet")
IQN = "iqn.2026-11.com.example:disks"


def volume(**given: object) -> ISCSIVolume:
    return ISCSIVolume(**{"target_portal": "10.0.0.1", "iqn": IQN, "lun": 2, **given})  # type: ignore[arg-type]


def test_directories_are_a_kubelets() -> None:
    disk = disk_of("pv", volume())
    top = "/var/lib/kubelet/plugins/kubernetes.io/iscsi"
    name = f"10.0.0.1:3260-{IQN}-lun-2"
    assert str(disk.directory(ROOT, block=False)) == f"{top}/iface-default/{name}"
    assert str(disk.directory(ROOT, block=True)) == f"{top}/volumeDevices/iface-default/{name}"
    assert unique_name(volume()) == f"kubernetes.io/iscsi/10.0.0.1:{IQN}:2"


def test_portals_get_the_port_once_and_in_order() -> None:
    disk = disk_of("pv", volume(portals=["10.0.0.2:3261", "10.0.0.1", "10.0.0.1:3260"]))
    assert disk.portals == ("10.0.0.1:3260", "10.0.0.2:3261")


def test_an_initiator_name_gets_an_interface_of_the_volumes_own() -> None:
    disk = disk_of("pv", volume(initiator_name="iqn.2026-11.com.example:node", iscsi_interface="fast"))
    assert (disk.interface, disk.base_interface) == ("10.0.0.1:3260:pv", "fast")
    assert "iface-10.0.0.1:3260:pv" in str(disk.directory(ROOT, block=False))


def test_the_record_is_a_kubelets() -> None:
    disk = disk_of("pv", volume(portals=["10.0.0.2"]))
    assert json.loads(record(disk)) == {
        "VolName": "pv",
        "Portals": ["10.0.0.1:3260", "10.0.0.2:3260"],
        "Iqn": IQN,
        "Lun": "2",
        "InitIface": "default",
        "Iface": "default",
        "InitiatorName": "",
        "MetricsProvider": None,
    }
    assert recorded(record(disk)) == disk


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"Portals": [], "Iqn": "i", "Lun": "0", "Iface": "d"}',
                                  b'{"Portals": ["p"], "Iqn": "i", "Lun": "x", "Iface": "d"}'])  # fmt: skip
def test_a_bad_record_is_one_error(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="iSCSI disk"):
        recorded(text)


def test_without_a_record_the_path_identifies_the_target() -> None:
    disk = disk_of("pv", volume())
    found = named(disk.directory(ROOT, block=False))
    assert (found.portals, found.iqn, found.lun) == (("10.0.0.1:3260",), IQN, 2)
    with pytest.raises(InvalidInput, match="not the directory"):
        named(ROOT / "iface-default" / "something")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"target_portal": ""}, "iscsi.targetPortal"),
        ({"target_portal": "../../x:1"}, "iscsi.targetPortal"),
        ({"iqn": "disk"}, "iscsi.iqn"),
        ({"iqn": "iqn.2026-11.com.example:../../../../etc"}, "iscsi.iqn"),
        ({"lun": 256}, "iscsi.lun"),
        ({"lun": -1}, "iscsi.lun"),
        ({"iscsi_interface": "../.."}, "iscsi.iscsiInterface"),
    ],
)
def test_records_that_would_escape_are_refused(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        disk_of("pv", volume(**given))
    assert refusal.value.subject == field


def test_links_of_devices() -> None:
    disk = disk_of("pv", volume())
    assert device_links(disk, "10.0.0.1:3260", "tcp") == f"ip-10.0.0.1:3260-iscsi-{IQN}-lun-2"
    assert device_links(disk, "[fd00::1]:3260", "iser") == f"pci-*-ip-fd00::1:3260-iscsi-{IQN}-lun-2"


def test_settings_of_an_interface() -> None:
    shown = (
        "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.transport_name = <empty>\n"
        "iface.initiatorname = <empty>\niface.mtu = 0\n"
    )
    assert transport_of(shown) == "tcp"
    assert transport_of("iface.mtu = 0\n") == ""
    assert interface_settings(shown, "iqn.a") == {"iface.initiatorname": "iqn.a", "iface.mtu": "0"}
    with pytest.raises(InvalidInput, match="invalid setting"):
        interface_settings("iface.mtu = a b\n", "iqn.a")
