"""Containers that somebody removed behind the node's back."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from engine.cri.records import EXITED, RUNNING, ContainerRecord
from engine.node.pod.life import Waiting
from tests.node.spec.test_cri_config import pod_of
from tests.node.sync.test_pod_status import condition, container, copy, record, shown


def again(made: ContainerRecord) -> ContainerRecord:
    """Return the next attempt of a container."""
    return msgspec.structs.replace(made, id=f"{made.id}-again", attempt=made.attempt + 1)


def with_init(**fields: str):
    return pod_of({"initContainers": [container("init", **fields)], "containers": [container()]})


def test_an_unseen_init_container_is_done_where_a_later_container_exists():
    status = shown(with_init(), record(copy("c", RUNNING)))
    (init,) = status["initContainerStatuses"]
    assert init["ready"]
    assert init["restartCount"] == 0
    assert {**init["state"]["terminated"], "message": ""} == {
        "exitCode": 0,
        "reason": "Completed",
        "message": "",
        "startedAt": None,
        "finishedAt": None,
    }
    assert init["state"]["terminated"]["message"].startswith("Unable to get init container status")
    assert status["phase"] == "Running"
    assert condition(status, "Initialized")[0] == "True"


@pytest.mark.parametrize("fields", [{"restartPolicy": "Always"}, {}], ids=["sidecar", "not yet"])
def test_one_that_is_to_be_made_waits(fields: dict[str, str]):
    made = [copy("c", RUNNING)] if fields else []
    (init,) = shown(with_init(**fields), record(*made))["initContainerStatuses"]
    assert init["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert not init["ready"]


def test_its_exit_status_is_kept():
    pod = with_init()
    before = shown(pod, record(copy("init", EXITED), copy("c", EXITED, 3)))
    after = shown(pod, record())
    assert after["initContainerStatuses"] == before["initContainerStatuses"]
    assert after["containerStatuses"] == before["containerStatuses"]
    assert after["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_the_exit_status_of_the_previous_one_is_kept():
    pod = with_init()
    shown(pod, record(copy("init", EXITED, 1)))
    both = shown(pod, record(again(copy("init", EXITED)), copy("init", EXITED, 1)))["initContainerStatuses"]
    assert both[0]["lastState"]["terminated"]["exitCode"] == 1
    assert both[0]["state"]["terminated"]["exitCode"] == 0
    alone = record(again(copy("init", EXITED)), copy("c", RUNNING))
    assert shown(pod, alone)["initContainerStatuses"] == both
    assert shown(pod, alone)["initContainerStatuses"] == both
    restarted = shown(pod, record(again(copy("init", EXITED)), again(copy("c", RUNNING))))
    assert restarted["containerStatuses"][0]["lastState"] == {}, "of one that ran nobody knows the end"


def test_a_first_end_is_not_shown_twice():
    pod = pod_of({})
    ended = record(copy("c", EXITED, 3))
    shown(pod, ended, waiting={"c": Waiting("CrashLoopBackOff", "")})
    assert shown(pod, ended)["containerStatuses"][0]["lastState"] == {}


def test_one_that_ran_has_ended_and_its_pod_does_not_go_back_to_pending():
    pod = pod_of({})
    shown(pod, record(copy("c", RUNNING)))
    first = shown(pod, record())
    (lost,) = first["containerStatuses"]
    assert lost["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert lost["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert lost["lastState"]["terminated"]["exitCode"] == 137
    assert lost["restartCount"] == 1
    assert first["phase"] == "Running"
    assert shown(pod, record())["containerStatuses"] == [lost]


def test_one_of_a_pod_that_is_deleted_was_not_restarted():
    pod = pod_of({})
    shown(pod, record(copy("c", RUNNING)))
    pod.metadata.deletion_timestamp = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert shown(pod, record())["containerStatuses"][0]["restartCount"] == 0


def test_why_it_is_not_made_again_is_shown_before_how_it_ended():
    pod = pod_of({})
    ended = shown(pod, record(copy("c", EXITED, 3)))["containerStatuses"][0]["state"]
    (waits,) = shown(pod, record(), waiting={"c": Waiting("ErrImagePull", "no")})["containerStatuses"]
    assert waits["state"] == {"waiting": {"reason": "ErrImagePull", "message": "no"}}
    assert waits["lastState"] == ended
