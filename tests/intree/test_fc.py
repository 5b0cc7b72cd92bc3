"""Fibre Channel disks on a machine with made-up /sys and /dev: found, mounted for pods, deleted."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput, Refused
from engine.api.references import FCVolume
from engine.host.mountinfo import mounted
from engine.host.tasks import Tasks
from engine.intree.disk_volumes import Access
from engine.intree.fc import FcVolumes
from engine.intree.fc_disk import FcDisk, disk_of, named, unique_name
from engine.intree.scsi import ScsiDisks
from tests.disks import disk
from tests.waiting import eventually

WWN, OTHER = "50060e801049cfd1", "50060e801049cfd2"
LUN = FcDisk((WWN,), 2)
ROOT = Path("/var/lib/kubelet")


class Fabric:
    """Lay out the kernel's files of disks, and programs `multipath` and `blockdev` that record their
    calls."""

    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sys, self.dev, self.log = here / "sys", here / "dev", here / "log"
        for each in ("sys/block", "sys/class/scsi_host/host3", "dev/disk/by-path", "dev/disk/by-id", "bin"):
            (here / each).mkdir(parents=True)
        flush = f'[ -e {here}/busy ] && exit 1; rm -rf {self.sys}/block/"$(basename "$2")"'
        for name, action in (("multipath", flush), ("blockdev", "")):
            program = here / "bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{action}\n')
            program.chmod(0o755)
        self.busy = here / "busy"
        monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")

    def link(self, name: str, device: Path, kind: str = "by-path") -> None:
        device.touch()
        (self.dev / "disk" / kind / name).symlink_to(device)
        (self.sys / "block" / device.name / "device").mkdir(parents=True, exist_ok=True)

    def map(self, *names: str) -> Path:
        for name in names:
            (self.sys / "block" / "dm-0" / "slaves" / name).mkdir(parents=True)
        return self.dev / "dm-0"

    def deleted(self, name: str) -> bool:
        return (self.sys / "block" / name / "device" / "delete").exists()

    def scanned(self) -> bool:
        return (self.sys / "class/scsi_host/host3/scan").exists()

    def commands(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fabric:
    return Fabric(tmp_path / "machine", monkeypatch)


@pytest.fixture
async def volumes(tmp_path: Path, fabric: Fabric) -> AsyncIterator[FcVolumes]:
    made = FcVolumes(tmp_path / "root", Tasks(), ScsiDisks(fabric.sys, fabric.dev))
    yield made
    for uid in ("u1", "u2"):
        await made.release(uid)
    await eventually(lambda: not [m for m in mounted() if m.point.startswith(f"{tmp_path}/")])
    await made.stop()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path / "disk") as made:
        yield made


def test_names_are_a_kubelets() -> None:
    targets = FCVolume(target_wwns=[WWN, OTHER], lun=0)
    found = disk_of(targets)
    top = "/var/lib/kubelet/plugins/kubernetes.io/fc"
    assert str(found.directory(ROOT, block=False)) == f"{top}/{WWN}-{OTHER}-lun-0"
    assert str(found.directory(ROOT, block=True)) == f"{top}/volumeDevices/{WWN}-{OTHER}-lun-0"
    assert unique_name(targets) == f"kubernetes.io/fc/[{WWN} {OTHER}]:0"
    assert named(found.directory(ROOT, block=True)) == found
    identified = FCVolume(wwids=["3600508b4 1"])
    assert disk_of(identified) == FcDisk(wwids=("3600508b4_1",))
    assert unique_name(identified) == "kubernetes.io/fc/[3600508b4 1]"
    assert named(Path("a-b")).wwids == ("a-b", "a", "b")


@pytest.mark.parametrize(
    ("volume", "field"),
    [
        (FCVolume(), "fc"),
        (FCVolume(target_wwns=[WWN]), "fc"),
        (FCVolume(target_wwns=[WWN], lun=256), "fc.lun"),
        (FCVolume(target_wwns=["../../x"], lun=0), "fc.targetWWNs"),
        (FCVolume(wwids=[".."]), "fc.wwids"),
        (FCVolume(wwids=["volumeDevices"]), "fc.wwids"),
    ],
)
def test_a_volume_without_a_disk_is_refused(volume: FCVolume, field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        disk_of(volume)
    assert refusal.value.subject == field


@pytest.mark.parametrize("prefix", ["fc", "pci-0000:05:00.0-fc"])
async def test_a_disk_of_a_target_is_found_by_its_path(
    volumes: FcVolumes, fabric: Fabric, prefix: str
) -> None:
    fabric.link(f"{prefix}-0x{WWN}-lun-2", fabric.dev / "sdb")
    fabric.link(f"{prefix}-0x{WWN}-lun-21", fabric.dev / "sdc")
    fabric.link(f"{prefix}-0x{WWN}-lun-2-part1", fabric.dev / "sdb1")
    assert await volumes.attach(LUN, Access()) == fabric.dev / "sdb"
    assert fabric.scanned()


async def test_a_disk_is_found_by_its_identifier(volumes: FcVolumes, fabric: Fabric) -> None:
    fabric.link("scsi-VENDOR_1", fabric.dev / "sdb", "by-id")
    fabric.link("scsi-VENDOR_12", fabric.dev / "sdc", "by-id")
    assert await volumes.attach(FcDisk(wwids=("VENDOR_1",)), Access()) == fabric.dev / "sdb"


async def test_a_multipath_device_needs_no_scan(volumes: FcVolumes, fabric: Fabric) -> None:
    fabric.link(f"fc-0x{WWN}-lun-2", fabric.dev / "sdb")
    fabric.link(f"fc-0x{OTHER}-lun-2", fabric.dev / "sdc")
    mapped = fabric.map("sdc")
    assert await volumes.attach(FcDisk((WWN, OTHER), 2), Access()) == mapped
    assert not fabric.scanned()


async def test_a_disk_that_no_scan_finds_is_refused(volumes: FcVolumes, fabric: Fabric) -> None:
    with pytest.raises(Refused, match="no fc disk found"):
        await volumes.attach(LUN, Access())
    assert fabric.scanned()


async def test_all_paths_of_a_multipath_device_are_deleted_once_it_is_free(
    volumes: FcVolumes, fabric: Fabric, tmp_path: Path
) -> None:
    fabric.link(f"fc-0x{WWN}-lun-2", fabric.dev / "sdb")
    fabric.link(f"fc-0x{OTHER}-lun-9", fabric.dev / "sdc")
    mapped = fabric.map("sdb", "sdc")
    fabric.busy.touch()
    volumes.reserve("u1", LUN, block=False)
    await volumes.attach(LUN, Access())
    await volumes.release("u1")
    await eventually(lambda: f"multipath -f {mapped}" in fabric.commands())
    assert not fabric.deleted("sdb")
    fabric.busy.unlink()
    await eventually(lambda: not LUN.directory(tmp_path / "root", block=False).exists())
    assert fabric.deleted("sdb")
    assert fabric.deleted("sdc")
    flushed = [line for line in fabric.commands() if line.startswith("blockdev")]
    assert flushed == [f"blockdev --flushbufs {fabric.dev / name}" for name in ("sdb", "sdc")]


@pytest.mark.root
async def test_two_pods_share_one_disk_and_the_last_deletes_it(
    volumes: FcVolumes, fabric: Fabric, device: Path, tmp_path: Path
) -> None:
    fabric.link(f"fc-0x{WWN}-lun-2", device)
    paths = []
    for uid in ("u1", "u2"):
        volumes.reserve(uid, LUN, block=False)
        found = await volumes.attach(LUN, Access())
        directory = await volumes.mount_for_all(LUN, found, Access())
        paths.append(await volumes.mount_for_pod(uid, "v", directory, Access()))
    assert paths[0] == tmp_path / "root/pods/u1/volumes/kubernetes.io~fc/v"
    (paths[0] / "file").write_text("kept")
    await volumes.release("u1")
    after = FcVolumes(tmp_path / "root", Tasks(), ScsiDisks(fabric.sys, fabric.dev))
    assert after.users(LUN, block=False) == {"u2"}
    assert (paths[1] / "file").read_text() == "kept"
    assert not fabric.deleted(device.name)
    await volumes.release("u2")
    await eventually(lambda: not directory.exists())
    assert fabric.deleted(device.name)


@pytest.mark.root
async def test_a_block_volume_stays_while_a_pod_has_its_link(
    volumes: FcVolumes, fabric: Fabric, device: Path, tmp_path: Path
) -> None:
    fabric.link(f"fc-0x{WWN}-lun-2", device)
    volumes.reserve("u1", LUN, block=True)
    found = await volumes.attach(LUN, Access(block=True))
    assert await volumes.link_for_pod("u1", "v", found) == device
    link = tmp_path / "root/pods/u1/volumeDevices/kubernetes.io~fc/v"
    directory = LUN.directory(tmp_path / "root", block=True)
    assert link.resolve() == (directory / "u1").resolve() == device
    after = FcVolumes(tmp_path / "root", Tasks(), ScsiDisks(fabric.sys, fabric.dev))
    assert after.users(LUN, block=True) == {"u1"}
    await volumes.release("u1")
    await eventually(lambda: not directory.exists())
    assert not link.is_symlink()
    assert fabric.deleted(device.name)
