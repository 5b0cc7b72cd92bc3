"""Test the systemd driver against a real systemd, and against its D-Bus interface on a private bus.

The latter refuses, hangs and disconnects when a test wants it to.
"""

from __future__ import annotations

import errno
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import systemd_scenes
from jeepney import (  # type: ignore[import-untyped]
    HeaderFields,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import Proxy, open_dbus_connection  # type: ignore[import-untyped]

from engine.api.errors import Refused, Unavailable
from engine.cgroups.interface_files import FileRules
from engine.cgroups.systemd import MANAGER, SystemdSlices, unit_properties
from engine.cgroups.tree import CgroupTree
from engine.host.cgroupfs.mounts import CgroupHierarchy, Mounts, find_mounts
from engine.testing.uml import run_in_uml, systemd_available

needs_bus = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon (Debian: dbus)")

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={socket}</listen>
<policy context="default"><allow send_destination="*"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>"""


class Systemd(threading.Thread):
    """Answer as org.freedesktop.systemd1 does, and record each call.

    `result` ends a job; None ends no job.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.connection = open_dbus_connection(address)
        Proxy(message_bus, self.connection).RequestName(MANAGER.bus_name)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.units: set[str] = set()
        self.result: str | None = "done"
        self.before: Callable[[str], None] = lambda method: None
        self.start()

    def run(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                message = self.connection.receive()
                if message.header.message_type == MessageType.method_call:
                    self.answer(message)

    def answer(self, message: Any) -> None:
        method = message.header.fields[HeaderFields.member]
        self.calls.append((method, message.body))
        self.before(method)
        unit = message.body[0] if message.body else ""
        known = unit in self.units
        if method == "StartTransientUnit" and known:
            error = "org.freedesktop.systemd1.UnitExists"
            self.connection.send(new_error(message, error, "s", (f"Unit {unit} was already loaded",)))
        elif method in ("StartUnit", "StopUnit", "SetUnitProperties") and not known:
            error = "org.freedesktop.systemd1.NoSuchUnit"
            self.connection.send(new_error(message, error, "s", (f"Unit {unit} not loaded.",)))
        elif method in ("StartTransientUnit", "StartUnit", "StopUnit"):
            (self.units.discard if method == "StopUnit" else self.units.add)(unit)
            job = f"/org/freedesktop/systemd1/job/{len(self.calls)}"
            self.connection.send(new_method_return(message, "o", (job,)))
            if self.result is not None:
                ended = (len(self.calls), job, unit, self.result)
                self.connection.send(new_signal(MANAGER, "JobRemoved", "uoss", ended))
        else:
            self.connection.send(new_method_return(message))


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "bus.conf"
    config.write_text(CONFIG.format(socket=tmp_path / "bus"))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"], stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    yield daemon.stdout.readline().decode().strip().partition(",")[0]
    daemon.terminate()
    daemon.wait()
    daemon.stdout.close()


@pytest.fixture
def systemd(bus: str) -> Iterator[Systemd]:
    served = Systemd(bus)
    yield served
    served.connection.sock.shutdown(socket.SHUT_RDWR)
    served.join(5)
    served.connection.close()


@pytest.fixture
def slices(bus: str, systemd: Systemd, tmp_path: Path) -> Iterator[SystemdSlices]:
    slices = SystemdSlices.connect(bus, running=str(tmp_path))
    slices._timeout = 0.5
    yield slices
    slices.close()


POD = ("kubepods", "burstable", "pod12-ab")
UNIT = "kubepods-burstable-pod12_ab.slice"


@needs_bus
def test_a_slice_is_started_set_and_stopped(slices, systemd):
    slices.start(POD)
    slices.start(POD)
    slices.set(POD, {"cpu.weight": "39", "cpu.max": "50000 100000", "memory.max": "max", "pids.max": "64"})
    slices.stop(POD)
    slices.stop(POD)
    methods = [method for method, _ in systemd.calls]
    assert methods == [
        "Subscribe",
        *["StartTransientUnit"] * 2,
        "StartUnit",  # the second time it may be a unit of an administrator's, which has not been started
        "SetUnitProperties",
        *["StopUnit"] * 2,
    ]
    unit, mode, properties, auxiliary = systemd.calls[1][1]
    assert (unit, mode, auxiliary) == (UNIT, "replace", [])
    assert dict(properties)["Wants"] == ("as", ["kubepods-burstable.slice"])
    assert dict(properties)["MemoryAccounting"] == ("b", True)
    assert systemd.calls[3] == ("StartUnit", (UNIT, "replace"))
    unit, runtime, properties = systemd.calls[4][1]
    assert (unit, runtime) == (UNIT, True)
    assert dict(properties) == {
        "CPUWeight": ("t", 39),
        "MemoryMax": ("t", 2**64 - 1),
        "TasksMax": ("t", 64),
        "CPUQuotaPerSecUSec": ("t", 500_000),
        "CPUQuotaPeriodUSec": ("t", 100_000),
    }


@needs_bus
def test_refusals_and_silence_name_the_unit(slices, systemd):
    with pytest.raises(Refused, match=f"{UNIT}: systemd refuses SetUnitProperties: Unit {UNIT} not loaded"):
        slices.set(POD, {"pids.max": "64"})
    systemd.result = "failed"
    with pytest.raises(Refused, match=f"{UNIT}: systemd ended the job as 'failed'"):
        slices.start(POD)
    systemd.result = None
    with pytest.raises(Unavailable, match=f"{UNIT}: systemd did not finish StopUnit in 0.5 s"):
        slices.stop(POD)
    systemd.result = "done"
    slices.start(POD)


@needs_bus
@pytest.mark.parametrize("lost_at", ["between two calls", "SetUnitProperties", "StopUnit"])
def test_a_lost_connection_is_opened_again(slices, systemd, lost_at):
    slices.start(POD)

    def lose(method: str) -> None:
        if method == lost_at:
            systemd.before = lambda method: None
            slices._connection.sock.shutdown(socket.SHUT_RDWR)

    systemd.before = lose
    if lost_at == "between two calls":
        slices._connection.sock.shutdown(socket.SHUT_RDWR)
    slices.set(POD, {"pids.max": "64"})
    slices.stop(POD)
    methods = [method for method, _ in systemd.calls]
    assert methods.count("Subscribe") == 2
    assert methods[-1] == "StopUnit"
    assert systemd.units == set()


@needs_bus
def test_a_bus_that_stays_away_is_tried_by_each_call(slices, systemd, tmp_path):
    slices.start(POD)
    address, slices._address = slices._address, f"unix:path={tmp_path}/none"
    slices._private = str(tmp_path / "private")  # where systemd runs, its own socket answers
    slices._connection.sock.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the system bus does not answer"):
            slices.set(POD, {"pids.max": "64"})
    slices._address = address
    slices.set(POD, {"pids.max": "64"})


def tree_with_a_slice(slices: SystemdSlices, hierarchy: Path) -> tuple[CgroupTree, Path]:
    """Return a tree of cgroups v2 in a directory, and the directory of its slice `kubepods`."""
    hierarchy.mkdir()
    (hierarchy / "cgroup.controllers").write_text("memory")
    (hierarchy / "cgroup.subtree_control").write_text("memory")
    rules = FileRules(2, controllers=frozenset(["memory"]))
    mounts = Mounts(2, (CgroupHierarchy(str(hierarchy), frozenset(["memory"])),))
    tree = CgroupTree(mounts, rules, driver="systemd", slices=slices)
    tree.make(("kubepods",))
    return tree, hierarchy / "kubepods.slice"


@needs_bus
def test_what_is_left_in_a_pod_is_killed_before_systemd_waits_for_it(slices, systemd, tmp_path):
    tree, group = tree_with_a_slice(slices, tmp_path / "cgroup")
    with subprocess.Popen(["sleep", "600"]) as left:
        (group / "cgroup.procs").write_text(str(left.pid))
        ended: list[int | None] = []

        def stop(method: str) -> None:
            if method == "StopUnit":
                with suppress(subprocess.TimeoutExpired):
                    left.wait(0.2)
                ended.append(left.returncode)
                shutil.rmtree(group)

        systemd.before = stop
        tree.remove(("kubepods",), kill=True)
        left.kill()
    assert ended == [-signal.SIGKILL]
    tree.descriptors.close_all()


@needs_bus
def test_the_tree_sends_systemd_only_changes(slices, systemd, tmp_path):
    tree, group = tree_with_a_slice(slices, tmp_path / "cgroup")
    (group / "memory.max").write_text("max")
    tree.write_files(("kubepods",), {"memory.max": "8192"})
    tree.write_files(("kubepods",), {"memory.max": "8192"})
    assert (group / "memory.max").read_text() == "8192"
    assert [method for method, _ in systemd.calls] == ["Subscribe", "StartTransientUnit", "SetUnitProperties"]
    (group / "memory.max").unlink()
    tree.remove(("kubepods",))
    assert systemd.calls[-1] == ("StopUnit", ("kubepods.slice", "replace"))
    assert not group.exists()
    tree.descriptors.close_all()


def test_limits_of_swap_disks_and_odd_periods_as_properties():
    files = {"memory.swap.max": "0", "io.weight": "default 50", "cpu.max": "10000 30000"}
    properties = dict(unit_properties(files))
    assert properties["MemorySwapMax"] == ("t", 0)
    assert properties["IOWeight"] == ("t", 50)
    per_second = properties["CPUQuotaPerSecUSec"][1]
    assert per_second * 30_000 // 1_000_000 == 10_000, "as systemd turns it into a quota again"


def test_v1_values_as_properties():
    files = {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "4096"}
    assert dict(unit_properties(files)) == {
        "CPUShares": ("t", 1024),
        "MemoryLimit": ("t", 4096),
        "CPUQuotaPerSecUSec": ("t", 2**64 - 1),
        "CPUQuotaPeriodUSec": ("t", 100_000),
    }


def test_without_systemd_the_driver_is_refused(tmp_path):
    with pytest.raises(Refused, match="needs systemd as init, which does not run here; use cgroupDriver"):
        SystemdSlices.connect(running=str(tmp_path / "none"))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/run/systemd/system").is_dir() or find_mounts().version != 2,
    reason="needs systemd as process 1 and cgroup v2 (`make try-vm` runs it)",
)
def test_the_first_start_and_what_systemd_does_to_slices_later(private_root):
    seen = systemd_scenes.followed(private_root)
    assert seen["started"] == []
    assert seen["reloaded"] == []
    assert seen["level stopped"] == {"differing": [], "remade": True}
    assert seen["all stopped"] == []
    # The kernel of User-Mode Linux has no cpuset controller.
    cpus = "0" if "cpuset" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split() else None
    assert seen["AllowedCPUs"] == {"cpuset.cpus": cpus, "differing": [], "writes": 0}
    assert seen["restarted"] == []
    assert seen["left"] == ""


def test_a_bus_that_does_not_answer(tmp_path):
    with pytest.raises(Unavailable, match="the system bus does not answer") as refusal:
        SystemdSlices(f"unix:path={tmp_path}/none", private=str(tmp_path / "private"))
    assert refusal.value.errno in (None, errno.ENOENT)


@pytest.mark.parametrize("answer", [b"REJECTED EXTERNAL\r\n", b""])
def test_systemd_may_refuse_where_there_is_no_bus(tmp_path, answer):
    path = str(tmp_path / "private")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def refuse() -> None:
            with listening.accept()[0] as accepted:
                accepted.recv(100)
                accepted.sendall(answer)

        refusing = threading.Thread(target=refuse)
        refusing.start()
        with pytest.raises(Unavailable, match="the system bus does not answer"):
            SystemdSlices(f"unix:path={tmp_path}/none", private=path)
        refusing.join()


@pytest.mark.uml
@pytest.mark.slow
@pytest.mark.skipif(not systemd_available(), reason="needs systemd and its bus (Debian: systemd, dbus)")
def test_slices_of_a_real_systemd():
    seen = run_in_uml(
        f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import systemd_scenes
        seen = systemd_scenes.slices("")
        report(seen | {{"without bus": systemd_scenes.without_bus(("kubengine", "test"))}})
        """,
        systemd=True,
    )
    guaranteed, burstable, best_effort = seen["parents"]
    assert guaranteed == "kubepods-podg_1.slice"
    assert burstable == "kubepods-burstable-podb_1.slice"
    assert best_effort == "kubepods-besteffort-pode_1.slice"
    assert seen["differing"] == seen["differing_after_reload"] == []
    assert seen["quiet"] == 0
    assert seen["properties"] == {
        guaranteed: {
            "Slice": "kubepods.slice",
            "CPUWeight": "20",
            "CPUQuotaPerSecUSec": "500ms",
            "MemoryMin": str(32 << 20),
            "MemoryLow": "0",
            "MemoryMax": str(32 << 20),
            "TasksMax": "77",
            "ActiveState": "active",
        },
        burstable: {
            "Slice": "kubepods-burstable.slice",
            "CPUWeight": "8",
            "CPUQuotaPerSecUSec": "infinity",
            "MemoryMin": "0",
            "MemoryLow": str(16 << 20),
            "MemoryMax": "infinity",
            "TasksMax": "77",
            "ActiveState": "active",
        },
        "kubepods-burstable.slice": {
            "Slice": "kubepods.slice",
            "CPUWeight": "8",
            "CPUQuotaPerSecUSec": "infinity",
            "MemoryMin": "0",
            "MemoryLow": str(16 << 20),
            "MemoryMax": str(240 << 20),
            "TasksMax": "infinity",
            "ActiveState": "active",
        },
    }
    assert seen["removed"] == "inactive"
    assert seen["left"] == ""
    assert seen["directories"] == []
    alone = seen["without bus"]
    assert (alone["started"]["ActiveState"], alone["stopped"]) == ("active", "inactive")
    assert (alone["started"]["TasksMax"], alone["started"]["CPUWeight"]) == ("64", "39")
