"""The picture of the runtime: old news never undoes what is known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine.cri.records import (
    CREATED,
    EXITED,
    RUNNING,
    UNKNOWN,
    ContainerRecord,
    PodRecord,
    SandboxRecord,
    container_record,
)
from engine.wire import cri_v1_pb2 as cri

CONTAINER = ContainerRecord("id", "c", "s", CREATED, 0, 1.0)


@pytest.mark.parametrize(
    ("known", "news", "kept"),
    [
        (CREATED, RUNNING, RUNNING),
        (RUNNING, EXITED, EXITED),
        (RUNNING, CREATED, RUNNING),
        (EXITED, RUNNING, EXITED),
        (EXITED, CREATED, EXITED),
        (RUNNING, UNKNOWN, UNKNOWN),
        (UNKNOWN, RUNNING, RUNNING),
        (UNKNOWN, CREATED, UNKNOWN),
    ],
)
def test_a_container_never_returns_to_an_earlier_state(known, news, kept):
    pod = PodRecord("u", "p", "d")
    assert pod.put_container(replace(CONTAINER, state=known))
    assert pod.put_container(replace(CONTAINER, state=news)) is (news == kept)
    assert pod.containers[0].state == kept


def test_a_stopped_sandbox_never_gets_ready_again():
    pod = PodRecord("u", "p", "d")
    assert pod.put_sandbox(SandboxRecord("s", False, 0, 1.0))
    assert not pod.put_sandbox(SandboxRecord("s", True, 0, 1.0))
    assert pod.put_sandbox(SandboxRecord("t", True, 1, 2.0))
    assert pod.sandbox.id == "t"
    assert pod.drop({"t"})
    assert not pod.drop({"t"})


def test_a_start_that_was_cut_short_stays_one_when_the_runtime_loses_track_of_it():
    """As containerd does with it across a restart."""
    pod = PodRecord("u", "p", "d")
    cut_short = replace(CONTAINER, finished_at=2.0)
    assert pod.put_container(replace(CONTAINER, state=UNKNOWN))
    assert pod.put_container(cut_short)
    assert not pod.put_container(replace(CONTAINER, state=UNKNOWN, created_at=0.0))
    assert pod.containers == [cut_short]


def test_a_start_that_an_earlier_agent_left_half_done_is_not_a_run():
    status = cri.ContainerStatus(id="x", state=cri.CONTAINER_EXITED, created_at=5_000_000_000, exit_code=128)
    assert container_record(status, "s", agent_began=10.0).state == CREATED
    status.message = "failed to create shim task: context canceled: unknown"
    assert container_record(status, "s", agent_began=10.0).state == CREATED
    assert container_record(status, "s", agent_began=4.0).state == EXITED
    status.message = 'exec: "absent": executable file not found in $PATH'
    assert container_record(status, "s", agent_began=10.0).state == EXITED
    status.message, status.started_at = "", 6_000_000_000
    assert container_record(status, "s", agent_began=10.0).state == EXITED
    lost = cri.ContainerStatus(id="x", state=cri.CONTAINER_EXITED, exit_code=255)
    assert container_record(lost, "s", agent_began=10.0).state == EXITED
