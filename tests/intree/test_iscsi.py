"""iSCSI disks on a machine with stand-ins for its commands: attached once, mounted for pods, detached."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.api.errors import Refused, Unavailable
from engine.api.references import ISCSIVolume
from engine.host.mountinfo import is_mount_point, mounted
from engine.host.tasks import Tasks
from engine.intree.disk_volumes import Access
from engine.intree.iscsi import IscsiVolumes
from engine.intree.iscsi_disk import IscsiDisk, disk_of
from tests.disks import disk
from tests.intree_rig import IQN, HostTools
from tests.waiting import eventually

pytestmark = pytest.mark.root

PORTAL = "10.0.0.1:3260"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTools:
    return HostTools(tmp_path / "tools", monkeypatch)


@pytest.fixture
def device(tmp_path: Path, tools: HostTools) -> Iterator[Path]:
    with disk(tmp_path / "disk") as made:
        tools.lun(0, made)
        yield made


@pytest.fixture
async def volumes(tmp_path: Path, tools: HostTools) -> AsyncIterator[IscsiVolumes]:
    made = IscsiVolumes(tmp_path / "root", Tasks(), pause=0.0)
    yield made
    for uid in ("u1", "u2"):
        await made.release(uid)
    await eventually(lambda: not mounted_below(tmp_path / "root"))
    await made.stop()


def mounted_below(root: Path) -> list[str]:
    return [mount.point for mount in mounted() if mount.point.startswith(f"{root}/")]


def a_disk(name: str = "pv", **given: object) -> IscsiDisk:
    return disk_of(name, ISCSIVolume(**{"target_portal": "10.0.0.1", "iqn": IQN, **given}))  # type: ignore[arg-type]


async def use(volumes: IscsiVolumes, uid: str, disk: IscsiDisk, access: Access | None = None) -> Path:
    access = access or Access()
    volumes.reserve(uid, disk, block=False)
    device = await volumes.attach(disk, access)
    directory = await volumes.mount_for_all(disk, device, access)
    return await volumes.mount_for_pod(uid, "v", directory, access)


async def test_two_pods_share_one_disk_and_the_last_detaches_it(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    first = await use(volumes, "u1", a_disk())
    assert first == tmp_path / "root/pods/u1/volumes/kubernetes.io~iscsi/v"
    (first / "file").write_text("kept")
    second = await use(volumes, "u2", a_disk())
    assert (second / "file").read_text() == "kept"
    assert len([line for line in tools.commands("iscsiadm") if line.endswith("--login")]) == 1
    await volumes.release("u1")
    assert not first.exists()
    assert (second / "file").read_text() == "kept"
    assert not any("--logout" in line for line in tools.commands())
    await volumes.release("u2")
    directory = a_disk().directory(tmp_path / "root", block=False)
    await eventually(lambda: not directory.exists())
    node = f"iscsiadm -m node -p {PORTAL} -T {IQN}"
    assert tools.commands("iscsiadm")[-2:] == [
        f"{node} --logout -I default",
        f"{node} -o delete -I default",
    ]
    assert tools.deleted(device)


async def test_commands_of_a_login_are_a_kubelets(
    volumes: IscsiVolumes, tools: HostTools, device: Path
) -> None:
    chap = {
        "discovery.sendtargets.auth.username": b"finder",
        "discovery.sendtargets.auth.password": b"secret one",
        "node.session.auth.username": b"user",
        "node.session.auth.password": b"secret two",
        "other": b"unused",
    }
    await use(volumes, "u1", a_disk(), Access(secret=chap, discovery_chap=True, session_chap=True))
    discovery = f"-m discoverydb -t sendtargets -p {PORTAL} -I default"
    node = f"-m node -p {PORTAL} -T {IQN}"
    assert [line.removeprefix("iscsiadm ") for line in tools.commands("iscsiadm")] == [
        "-m iface -I default -o show",
        f"{discovery} -o new",
        f"{discovery} -o update -n discovery.sendtargets.auth.authmethod -v CHAP",
        f"{discovery} -o update -n discovery.sendtargets.auth.username -v finder",
        f"{discovery} -o update -n discovery.sendtargets.auth.password -v secret one",
        f"{discovery} --discover",
        f"{node} -I default -o update -n node.session.scan -v manual",
        f"{node} -I default -o update -n node.session.auth.authmethod -v CHAP",
        f"{node} -I default -o update -n node.session.auth.username -v user",
        f"{node} -I default -o update -n node.session.auth.password -v secret two",
        f"{node} -I default --login",
        f"{node} -o update -n node.startup -v manual",
    ]
    assert "secret" not in repr(Access(secret=chap))


async def test_another_lun_keeps_the_session(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    with disk(tmp_path / "other") as other:
        tools.lun(1, other)
        await use(volumes, "u1", a_disk())
        await use(volumes, "u2", a_disk("pv2", lun=1))
        await volumes.release("u1")
        await eventually(lambda: not a_disk().directory(tmp_path / "root", block=False).exists())
        assert tools.deleted(device)
        assert not any("--logout" in line for line in tools.commands())
        await volumes.release("u2")
        await eventually(lambda: any("--logout" in line for line in tools.commands()))


async def test_an_initiator_name_makes_an_interface_and_removes_it(
    volumes: IscsiVolumes, tools: HostTools, device: Path
) -> None:
    own = a_disk(initiator_name="iqn.2026-11.com.example:node")
    await use(volumes, "u1", own)
    made = f"iscsiadm -m iface -I {PORTAL}:pv"
    assert tools.commands(made) == [
        f"{made} -o new",
        f"{made} -o update -n iface.initiatorname -v iqn.2026-11.com.example:node",
        f"{made} -o update -n iface.mtu -v 0",
        f"{made} -o update -n iface.transport_name -v tcp",
    ]
    await volumes.release("u1")
    await eventually(lambda: f"{made} -o delete" in tools.commands())


async def test_one_of_two_portals_is_enough(volumes: IscsiVolumes, tools: HostTools, device: Path) -> None:
    mounted_at = await use(volumes, "u1", a_disk(portals=["unreachable:3260"]))
    assert is_mount_point(mounted_at)
    attempts = [line for line in tools.commands() if "unreachable" in line and "--login" in line]
    assert len(attempts) == 5


async def test_an_unreachable_target_is_reported(
    volumes: IscsiVolumes, tools: HostTools, device: Path
) -> None:
    with pytest.raises(
        Refused, match=r"failed to get any path for iscsi disk.*cannot connect \(exit status 8\)"
    ):
        await use(volumes, "u1", a_disk(target_portal="unreachable"))


async def test_a_missing_iscsiadm_is_named_with_its_package(
    volumes: IscsiVolumes, tools: HostTools, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.without("iscsiadm", monkeypatch)
    with pytest.raises(
        Unavailable, match="this machine has no iscsiadm, which the volume needs: install open-iscsi"
    ):
        await use(volumes, "u1", a_disk())


async def test_read_only_and_options_and_group(volumes: IscsiVolumes, tools: HostTools, device: Path) -> None:
    shared = await use(volumes, "u1", a_disk(), Access(group=1234, options=["noatime"], fs_type="ext3"))
    assert shared.stat().st_gid == 1234
    found = next(mount for mount in mounted() if mount.point == str(shared))
    assert found.kind == "ext3"
    assert "noatime" in found.options
    read_only = await use(volumes, "u2", a_disk(), Access(read_only=True, group=4321))
    assert read_only.stat().st_gid == 1234
    with pytest.raises(OSError, match="Read-only"):
        (read_only / "file").touch()
    (shared / "file").touch()


async def test_another_agent_continues(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    used = await use(volumes, "u1", a_disk())
    next_one = IscsiVolumes(tmp_path / "root", Tasks(), pause=0.0)
    await next_one.start()
    await next_one.release("u2")
    (used / "file").touch()
    assert not any("--logout" in line for line in tools.commands())
    await next_one.release("u1")
    await eventually(lambda: any("--logout" in line for line in tools.commands()))
    await next_one.stop()


async def test_a_disk_without_pods_is_detached_at_start(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    disk = a_disk()
    volumes.reserve("u1", disk, block=False)
    await volumes.mount_for_all(disk, await volumes.attach(disk, Access()), Access())
    next_one = IscsiVolumes(tmp_path / "root", Tasks(), pause=0.0)
    await next_one.start()
    await eventually(lambda: not disk.directory(tmp_path / "root", block=False).exists())
    await next_one.stop()


async def test_a_busy_disk_is_detached_later(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    disk = a_disk()
    volumes.reserve("u1", disk, block=False)
    directory = await volumes.mount_for_all(disk, await volumes.attach(disk, Access()), Access())
    (tools.here / "busy").touch()
    await volumes.release("u1")
    await eventually(lambda: tools.commands("umount"))
    await asyncio.sleep(0)
    assert is_mount_point(directory)
    (tools.here / "busy").unlink()
    await eventually(lambda: not directory.exists())


async def test_a_device_is_linked_and_released(
    volumes: IscsiVolumes, tools: HostTools, device: Path, tmp_path: Path
) -> None:
    disk = a_disk()
    volumes.reserve("u1", disk, block=True)
    found = await volumes.attach(disk, Access(block=True))
    given = await volumes.link_for_pod("u1", "pv", found)
    assert stat.S_ISBLK(given.stat().st_mode)
    link = tmp_path / "root/pods/u1/volumeDevices/kubernetes.io~iscsi/pv"
    assert link.is_symlink()
    assert volumes.users(disk, block=True) == {"u1"}
    next_one = IscsiVolumes(tmp_path / "root", Tasks(), pause=0.0)
    await next_one.start()
    assert next_one.users(disk, block=True) == {"u1"}
    await next_one.release("u1")
    await eventually(lambda: not disk.directory(tmp_path / "root", block=True).exists())
    assert any("--logout" in line for line in tools.commands())
    await next_one.stop()
