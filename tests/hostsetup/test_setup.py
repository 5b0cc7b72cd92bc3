"""What a node agent sets up on its machine, and on which machines it does not start."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.events import EventRecorder
from engine.host.cgroupfs.mounts import find_mounts
from engine.host.tasks import Tasks
from engine.hostsetup import own_process, setup
from engine.hostsetup.host_places import HostPlaces
from engine.hostsetup.own_process import Cgroups
from engine.hostsetup.setup import HostSetup
from engine.hostsetup.tunables import TUNABLES
from tests.waiting import eventually

HEADING = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


@pytest.fixture
def places(tmp_path: Path) -> HostPlaces:
    for name in TUNABLES:
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text("0\n")
    (tmp_path / "swaps").write_text(HEADING)
    (tmp_path / "score").write_text("0")
    (tmp_path / "kmsg").touch()
    return HostPlaces(
        sysctls=tmp_path / "sys",
        swaps=tmp_path / "swaps",
        kmsg=tmp_path / "kmsg",
        oom_score=tmp_path / "score",
        iptables=("no-such-iptables",),
        ip6tables=("no-such-ip6tables",),
    )


def host_setup(places: HostPlaces, **fields: object) -> HostSetup:
    config = KubeletConfiguration(**fields)  # type: ignore[arg-type]
    return HostSetup(config, places, recorder=EventRecorder(lambda: 0.0), tasks=Tasks())


def test_a_node_does_not_start_with_swap_unless_it_may(places: HostPlaces):
    host_setup(places).check()
    places.swaps.write_text(f"{HEADING}/swap file 1 0 -2\n")
    with pytest.raises(Refused, match="running with swap on is not supported, please disable swap") as caught:
        host_setup(places).check()
    assert "failSwapOn" in str(caught.value)
    host_setup(places, fail_swap_on=False).check()
    places.swaps.unlink()
    host_setup(places).check()


def test_a_node_refuses_to_start_with_different_protected_tunables(places: HostPlaces):
    with pytest.raises(Refused, match="protectKernelDefaults: invalid kernel flag"):
        host_setup(places, protect_kernel_defaults=True).check()


def test_the_systems_cgroup_is_not_the_root(places: HostPlaces):
    with pytest.raises(InvalidInput, match="systemCgroups: system container cannot be root"):
        host_setup(places, system_cgroups="/", cgroup_root="/").check()


async def test_a_started_node_has_its_tunables_score_and_files(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch
):
    limits: list[int] = []
    monkeypatch.setattr(setup, "set_open_files", limits.append)
    host = host_setup(places, oom_score_adj=-998, max_open_files=4321)
    await host.start()
    await eventually(lambda: places.oom_score.read_text() == "-998")
    await host.stop()
    assert (places.sysctls / "vm/overcommit_memory").read_text().strip() == "1"
    assert limits == [4321]


async def test_protected_tunables_are_not_written(places: HostPlaces, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setup, "set_open_files", lambda _most: None)
    host = host_setup(places, protect_kernel_defaults=True)
    await host.start()
    await host.stop()
    assert (places.sysctls / "vm/overcommit_memory").read_text() == "0\n"


async def test_missing_tools_are_reported_once_and_the_node_starts(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def no_right(_most: int) -> None:
        raise Refused("maxOpenFiles 7 could not be set: not allowed", subject="RLIMIT_NOFILE")

    monkeypatch.setattr(setup, "set_open_files", no_right)
    monkeypatch.setattr(setup, "OWN_SECONDS", 0.01)
    places.oom_score.unlink()
    places.oom_score.mkdir()
    places.kmsg.unlink()
    for name in TUNABLES:
        (places.sysctls / name).unlink()
    caplog.set_level("INFO", "kubengine.hostsetup")
    host = host_setup(places, max_open_files=7)
    await host.start()
    await asyncio.sleep(0.2)
    await host.stop()
    messages = [record.message for record in caplog.records]
    for word in ("kernel tunables", "RLIMIT_NOFILE", "kmsg", "no-such-iptables", "oomScoreAdj"):
        assert sum(word in message for message in messages) == 1, word


def test_more_open_files_than_the_kernel_allows_are_refused():
    with pytest.raises(Refused, match="maxOpenFiles 9223372036854775806 could not be set"):
        own_process.set_open_files(2**63 - 2)


@pytest.fixture
def hierarchy(tmp_path: Path) -> Path:
    """Make a cgroup that stands in for a hierarchy's root. Skips without root or a cgroup hierarchy."""
    mounts = [Path(each.path) for each in find_mounts().hierarchies if "pids" in each.controllers]
    if os.geteuid() != 0 or not mounts:
        pytest.skip("needs root and a cgroup hierarchy")
    directory = mounts[0] / f"hostsetup-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        pytest.skip(f"no cgroup can be made here: {error}")
    return directory


@pytest.mark.root
def test_processes_of_the_root_go_to_the_systems_cgroup(hierarchy: Path):
    sleeper = subprocess.Popen(["sleep", "600"])
    groups = Cgroups([hierarchy])
    try:
        (hierarchy / "cgroup.procs").write_text(str(sleeper.pid))
        groups.put_system_processes("/system/all")
        assert (hierarchy / "cgroup.procs").read_text() == ""
        assert groups.holds("/system/all", sleeper.pid)
        groups.put("/agent", sleeper.pid)
        assert groups.holds("/agent", sleeper.pid)
        assert not groups.holds("/system/all", sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()
        for each in ("system/all", "system", "agent", ""):
            if (hierarchy / each).exists():
                (hierarchy / each).rmdir()


@pytest.mark.root
def test_a_cgroup_that_cannot_be_made_is_named(hierarchy: Path):
    try:
        with pytest.raises(Refused, match="could not be moved") as caught:
            Cgroups([hierarchy]).put("/agent", 2**22 + 1)
        assert str(hierarchy / "agent") in str(caught.value)
    finally:
        for each in ("agent", ""):
            if (hierarchy / each).exists():
                (hierarchy / each).rmdir()


@pytest.mark.parametrize(
    ("release", "swap", "warnings"), [("6.1.0-13-amd64", True, 1), ("6.1.0", False, 0), ("6.12.3", True, 0)]
)
async def test_volumes_of_memory_that_may_be_swapped_are_an_event(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch, release: str, swap: bool, warnings: int
):
    monkeypatch.setattr(setup, "set_open_files", lambda _most: None)
    kernel = os.uname_result(("Linux", "n", release, "v", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: kernel)
    if swap:
        places.swaps.write_text(f"{HEADING}/swap file 1 0 -2\n")
    recorder = EventRecorder(lambda: 0.0)
    host = HostSetup(KubeletConfiguration(fail_swap_on=False), places, recorder=recorder, tasks=Tasks())
    await host.start()
    await host.stop()
    assert sum(event.reason == "PossibleMemoryBackedVolumesOnDisk" for event in recorder) == warnings
