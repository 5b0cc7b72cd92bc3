"""System-wide OOM kills are told from those of a cgroup's limit, in the kernel's own words."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from engine.api.events import Event, EventRecorder
from engine.hostsetup.system_oom import OomKill, OomKills, SystemOom, message_of
from tests.waiting import eventually

SYSTEM = [
    "tail invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    "Tasks state (memory values in pages):",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice,task=stress (a),pid=4242,uid=0",
    "Out of memory: Killed process 4242 (stress (a)) total-vm:1048576kB, anon-rss:524288kB",
]
OF_A_POD = [
    "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/kubepods/pod1,"
    "task_memcg=/kubepods/pod1/c1,task=stress,pid=77,uid=0",
    "Memory cgroup out of memory: Killed process 77 (stress) total-vm:1kB",
]
OF_A_POD_4_19 = [
    "stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=984",
    "Task in /kubepods/pod1/c1 killed as a result of limit of /kubepods/pod1",
    "Memory cgroup out of memory: Killed process 77 (stress) total-vm:1kB",
]


@pytest.mark.parametrize(
    ("messages", "kill"),
    [
        (SYSTEM, OomKill("stress (a)", 4242, "/")),
        (OF_A_POD, OomKill("stress", 77, "/kubepods/pod1")),
        (OF_A_POD_4_19, OomKill("stress", 77, "/kubepods/pod1")),
        (SYSTEM[1:], None),
        ([SYSTEM[0], *OF_A_POD], OomKill("stress", 77, "/kubepods/pod1")),
    ],
)
def test_a_kill_is_read_from_several_messages(messages: list[str], kill: OomKill | None):
    kills = OomKills()
    found = [each for message in messages if (each := kills.read(message)) is not None]
    assert found == ([kill] if kill is not None else [])


def test_a_record_is_its_first_line():
    assert message_of(b"4,1023,5140900,-;tail invoked oom-killer: x;y\n SUBSYSTEM=memory\n") == (
        "tail invoked oom-killer: x;y"
    )
    assert message_of(b"garbage") == ""


async def test_the_node_gets_an_event_for_the_systems_kills_only(tmp_path: Path):
    events: list[Event] = []
    recorder = EventRecorder(lambda: 0.0)
    recorder.listen(events.append)
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    watch = SystemOom(recorder, tmp_path / "kmsg")
    ours.setblocking(False)
    watch.follow(os.dup(ours.fileno()))
    try:
        for number, message in enumerate([*OF_A_POD, *SYSTEM]):
            kernel.send(f"4,{number},1,-;{message}\n".encode())
        await eventually(lambda: bool(events))
    finally:
        await watch.stop()
        ours.close()
        kernel.close()
    (event,) = events
    assert (event.type, event.reason, event.pod) == ("Warning", "SystemOOM", "")
    assert event.message == "System OOM encountered, victim process: stress (a), pid: 4242"


async def test_a_machine_without_kernel_messages_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    watch = SystemOom(EventRecorder(lambda: 0.0), tmp_path / "kmsg")
    await watch.start()
    await watch.stop()
    (record,) = caplog.records
    assert record.message == f"{tmp_path}/kmsg: No such file or directory; system OOM kills are not reported"
