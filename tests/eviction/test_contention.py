"""Node conditions by how long pods wait for the CPU and for disks: the rule alone, and tasks that wait."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.duration import Duration
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.kubengine_config import EvictionSection
from engine.eviction.contention import (
    CPU_PRESSURE,
    FILES,
    IO_PRESSURE,
    WHO,
    Contention,
    StallReader,
    contentions,
    most_waiting,
)
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.eviction.readings import NodeView
from engine.eviction.stall import stalled
from engine.host.cgroupfs.mounts import find_mounts
from engine.metrics import Registry
from tests.cgroups.cgroup_scenes import end, spin
from tests.contexts import node_context
from tests.eviction.private_node import make_pod
from tests.eviction.test_pressure_events import UNIFIED, group, needs_pressure  # noqa: F401
from tests.laid_out_cgroups import laid_out
from tests.waiting import eventually


def test_only_what_lasts_raises_or_clears_a_condition():
    one = Contention(CPU_PRESSURE, 50, period=60)
    readings = [
        (0, 9000, None), (30, 9000, None), (40, 5000, None), (50, 5001, None), (109, 9000, None),
        (110, 9000, True), (120, 100, None), (150, 6000, None), (160, 100, None), (219, 0, None),
        (220, 5000, False),
    ]  # fmt: skip
    for now, waited, becomes in readings:
        assert one.update(waited, now) == (becomes is not None), now
        if becomes is not None:
            assert one.holding is becomes


def test_an_unreadable_value_is_unknown_and_starts_a_new_interval():
    one = Contention(IO_PRESSURE, 10, period=10)
    assert not one.update(None, 0)
    assert one.condition(0, 0).status == "Unknown"
    for now, waited in ((10, 2000), (15, None), (20, 2000), (29, 2000)):
        assert not one.update(waited, now)
    assert one.condition(0, 29).status == "False"
    assert one.update(2000, 30)
    shown = one.condition(0, 30)
    assert (shown.status, shown.reason) == ("True", "PodsStall")
    assert shown.message == "all tasks of pods wait for disks more than 10% of the time"


def test_those_who_wait_most_are_named():
    names = {"a": "x/a", "b": "x/b", "c": "x/c"}
    assert most_waiting({"a": 1, "b": 9, "c": 0}, names) == [
        {"pod": "x/b", "waited": 9},
        {"pod": "x/a", "waited": 1},
    ]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (EvictionSection(cpu_stall=100), "eviction.cpuStall: expected 1 to 99"),
        (EvictionSection(io_stall=-1), "eviction.ioStall: expected 1 to 99"),
        (EvictionSection(stall_for=Duration(-1)), "eviction.stallFor: expected"),
    ],
)
def test_impossible_values_are_refused(section: EvictionSection, message: str):
    with pytest.raises(InvalidInput, match=message):
        contentions(section)


def test_nothing_is_read_unless_it_is_asked_for(tmp_path: Path):
    assert contentions(EvictionSection()) == []
    assert StallReader([], laid_out(tmp_path), "kubepods")._files == {}


def test_a_kernel_without_the_files_leaves_the_condition_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    reader = StallReader([CPU_PRESSURE], laid_out(tmp_path), "kubepods")
    assert [reader.read(CPU_PRESSURE) for _ in range(3)] == [None] * 3
    assert caplog.text.count("node condition CPUPressure cannot be determined") == 1
    (tmp_path / "kubepods").mkdir()
    (tmp_path / "kubepods" / "cpu.pressure").write_text("some avg10=7.25 avg60=0 avg300=0 total=1\n")
    assert reader.read(CPU_PRESSURE) == 725
    reader.close()


def process_in(directory: Path, work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            (directory / "cgroup.procs").write_text(str(os.getpid()))
            os.sched_setaffinity(0, {0})
            work()
        finally:
            os._exit(1)
    return pid


def write_through() -> None:
    """Write the same 64 KiB to a real disk over and over, so that the process mostly waits for it."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        while True:
            os.pwrite(file.fileno(), bytes(1 << 16), 0)
            os.fsync(file.fileno())


@needs_pressure
@pytest.mark.root
@pytest.mark.parametrize(
    ("condition", "section", "work"),
    [
        (CPU_PRESSURE, EvictionSection(cpu_stall=1, stall_for=Duration(60)), spin),
        (IO_PRESSURE, EvictionSection(io_stall=1, stall_for=Duration(60)), write_through),
    ],
)
async def test_pods_that_wait_raise_the_condition_and_are_named(
    group: Path,  # noqa: F811
    private_cgroup_root: str,
    tmp_path: Path,
    condition: str,
    section: EvictionSection,
    work: Callable[[], None],
):
    """Two that want one processor; two that write to one disk."""
    calm, busy = make_pod("calm"), make_pod("busy")
    for pod in (calm, busy):
        (group / pod.uid).mkdir()
    pids = [process_in(group / busy.uid, work) for _ in range(2)]
    now, notified, registry, decisions = [0.0], [0], Registry(), Decisions(time.time)

    def changed() -> None:
        notified[0] += 1

    manager = EvictionManager(
        node_context(
            KubeletConfiguration(eviction_hard={}),
            eviction=section,
            recorder=EventRecorder(time.time),
            decisions=decisions,
            registry=registry,
            root=tmp_path,
        ),
        EvictablePods(
            active=lambda: [calm, busy],
            kill=lambda *_: pytest.fail("nobody is ended for it"),
            cgroup=lambda uid: f"{private_cgroup_root}/{uid}",
        ),
        view=NodeView(private_cgroup_root, memory_capacity=1 << 30, mounts=find_mounts(str(UNIFIED))),
        conditions_changed=changed,
        monotonic=lambda: now[0],
    )
    directory = group / busy.uid

    def waited(cgroup: Path) -> int:
        return stalled((cgroup / FILES[condition]).read_bytes(), WHO[condition], b"avg10")

    def status() -> str:
        return {one.type: one.status for one in manager.conditions()}[condition]

    try:
        assert status() == "Unknown"
        await eventually(lambda: waited(directory) > 200 < waited(group))
        await manager.synchronize()
        assert (status(), notified) == ("False", [0])
        now[0] += 61
        await manager.synchronize()
        assert (status(), notified) == ("True", [1])
        assert manager.under_pressure == ()
    finally:
        end(*pids)
        for pod in (calm, busy):
            (group / pod.uid).rmdir()
    (raised,) = decisions.after(0)
    assert (raised.kind, raised.outcome) == ("pressure", "raised")
    assert raised.inputs["condition"] == condition
    assert [one["pod"] for one in raised.inputs["most"]] == ["default/busy"]
    ((labels, ratio),) = registry.metrics["kubengine_pods_stall_ratio"].collect()
    assert labels == (condition,)
    assert 0.01 < ratio <= 1
    await manager.stop()
