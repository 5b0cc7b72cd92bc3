"""The pod status that the node sends to the API server, from its own status and that of the server. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from engine.api.meta import ObjectMeta
from engine.api.status import PodStatus
from engine.api.struct import decode_hook, to_builtins
from engine.cluster.pod_status import status_patch, status_to_send

NOW = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
BEFORE = "2026-01-01T00:00:00Z"
META = ObjectMeta(name="p", namespace="default", uid="u", generation=7)

Object = dict[str, Any]


def status(phase: str = "Running", *, conditions: Object | None = None, **fields: Any) -> PodStatus:
    """Return a status with `conditions`, each with its status by type and all with the same transition
    time."""
    given = [{"type": k, "status": v, "lastTransitionTime": BEFORE} for k, v in (conditions or {}).items()]
    value = {"phase": phase, "conditions": given, **fields}
    return msgspec.convert(value, PodStatus, dec_hook=decode_hook)


def container(name: str = "c", state: Object | None = None, last: Object | None = None) -> Object:
    return {
        "name": name, "ready": False, "restartCount": 0, "image": "i", "imageID": "",
        "state": state or {}, "lastState": last or {},
    }  # fmt: skip


def status_sent(ours: PodStatus, server: PodStatus, *, may_run: bool = False) -> Object:
    sent: Object = to_builtins(status_to_send(ours, server, META, may_run=may_run, now=NOW))
    return sent


def types(sent: Object) -> list[str]:
    return [condition["type"] for condition in sent["conditions"]]


def test_each_of_the_node_s_conditions_speaks_of_the_generation_and_others_come_first():
    server = status(conditions={"Ready": "False", "example.com/gate": "True"})
    ours = status(conditions={"Ready": "True", "PodScheduled": "True"}, observedGeneration=6)
    sent = status_sent(ours, server, may_run=True)
    assert types(sent) == ["example.com/gate", "Ready", "PodScheduled"]
    assert sent["observedGeneration"] == 6, "of which the node speaks, though the API has a newer one"
    assert [c.get("observedGeneration") for c in sent["conditions"]] == [None, 6, 6]
    assert status_sent(ours, server, may_run=False)["observedGeneration"] == 7, (
        "a pod that has ended acts on no generation"
    )


def test_a_static_pod_has_no_generation_though_its_mirror_has():
    mirror = msgspec.structs.replace(META, annotations={"kubernetes.io/config.mirror": "digest"})
    ours = status(conditions={"Ready": "True"})
    sent = to_builtins(status_to_send(ours, status(), mirror, may_run=True, now=NOW))
    assert "observedGeneration" not in sent
    assert "observedGeneration" not in sent["conditions"][0]


def test_an_expired_condition_of_the_node_is_removed():
    server = status(conditions={"PodResizePending": "True", "Ready": "True"})
    sent = status_to_send(status(conditions={"Ready": "True"}), server, META, may_run=True, now=NOW)
    (gone,) = (c for c in status_patch(server, sent)["conditions"] if c["type"] == "PodResizePending")
    assert gone["$patch"] == "delete"


def test_a_terminal_phase_and_the_disruption_wait_until_nothing_runs():
    ours = status("Failed", conditions={"DisruptionTarget": "True"}, reason="Evicted", message="m")
    sent = status_sent(ours, status("Running"), may_run=True)
    assert (sent["phase"], sent.get("reason"), sent.get("conditions")) == ("Running", None, None)
    sent = status_sent(ours, status("Running"))
    assert (sent["phase"], sent["reason"], sent["message"]) == ("Failed", "Evicted", "m")
    (disruption,) = sent["conditions"]
    assert disruption["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    again = status_sent(ours, status("Failed", conditions={"DisruptionTarget": "True"}))
    assert again["conditions"][0]["lastTransitionTime"] == BEFORE


@pytest.mark.parametrize("ours", ["Running", "Pending", "Succeeded"])
def test_a_terminal_phase_that_the_server_knows_is_final(ours: str):
    sent = status_sent(status(ours), status("Failed", reason="Evicted"))
    assert (sent["phase"], sent["reason"]) == ("Failed", "Evicted")


def test_the_start_time_that_the_server_knows_stays():
    sent = status_sent(status(startTime="2026-01-02T00:00:00Z"), status(startTime=BEFORE), may_run=True)
    assert sent["startTime"] == BEFORE


RUNNING = {"running": {"startedAt": BEFORE}}
WAITING = {"waiting": {"reason": "PodInitializing"}}
EXITED = {"terminated": {"exitCode": 3, "reason": "Error"}}
LOST = "ContainerStatusUnknown"
INITIALIZED, UNINITIALIZED = {"Initialized": "True"}, {"Initialized": "False"}


def reasons(statuses: list[Object]) -> list[str]:
    return [(s["state"].get("terminated") or s["state"].get("waiting"))["reason"] for s in statuses]


def test_a_container_with_an_unseen_end_is_lost_once_the_pod_was_initialized():
    ours = status(
        "Failed",
        conditions=INITIALIZED,
        containerStatuses=[
            container("a", RUNNING), container("b", EXITED), container("c", WAITING),
            container("d", WAITING, EXITED), container("e", WAITING),
        ],
    )  # fmt: skip
    server = status(containerStatuses=[container("e", EXITED)])
    sent = status_sent(ours, server)["containerStatuses"]
    assert reasons(sent) == [LOST, "Error", LOST, "Error", "Error"]
    assert sent[0]["state"]["terminated"]["exitCode"] == 137


def test_containers_that_never_started_stay_waiting():
    ours = status(
        "Failed",
        conditions=UNINITIALIZED,
        initContainerStatuses=[container("i", EXITED), container("j", WAITING), container("k", WAITING)],
        containerStatuses=[container("c", WAITING)],
    )
    sent = status_sent(ours, status("Pending"))
    assert reasons(sent["initContainerStatuses"]) == ["Error", "PodInitializing", "PodInitializing"]
    assert reasons(sent["containerStatuses"]) == ["PodInitializing"]


def test_the_first_init_container_counts_as_tried():
    waiting = [container("i", WAITING), container("j", WAITING)]
    sent = status_sent(
        status("Failed", conditions=UNINITIALIZED, initContainerStatuses=waiting), status("Pending")
    )
    assert reasons(sent["initContainerStatuses"]) == [LOST, "PodInitializing"]


def test_nothing_is_sent_where_the_server_knows_it_all():
    ours = status(conditions={"Ready": "True"}, hostIP="10.0.0.1")
    sent = status_to_send(ours, status("Pending"), META, may_run=True, now=NOW)
    assert status_patch(sent, status_to_send(ours, sent, META, may_run=True, now=NOW)) == {}
