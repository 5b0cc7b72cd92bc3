"""Answers of drivers that are as large as a message may be: the event loop reads what it needs of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.dra.answers import MAX_CLAIM_DEVICES, check_answers
from engine.dra.driver_calls import DraDriverFailed
from engine.dra.driver_client import DraDriverClient
from engine.dra.health import MAX_DEVICES
from engine.dra.table import ClaimState
from engine.metrics import Registry
from engine.plugins.channel import MAX_MESSAGE
from engine.wire import dra_health_v1alpha1_pb2 as health_wire
from engine.wire import dra_v1_pb2 as wire
from tests.grpc_answers import answering
from tests.turns import TurnGauge

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
CLAIMS = [ClaimState("1", "a", "default"), ClaimState("2", "b", "default")]
ASKED = {claim.uid: claim.name for claim in CLAIMS}
EMPTY_DEVICE = wire.NodePrepareResourceResponse(devices=[wire.Device()]).SerializeToString()
EMPTY_HEALTH = health_wire.NodeWatchResourcesResponse(
    devices=[health_wire.DeviceHealth()]
).SerializeToString()
MOST_CALLS = 10 * MAX_CLAIM_DEVICES
"""In one turn of the event loop."""


def many_devices() -> bytes:
    """Return an answer in which one claim has two million devices."""
    claim = wire.NodePrepareResourceResponse()
    claim.MergeFromString(EMPTY_DEVICE * ((MAX_MESSAGE - 100) // len(EMPTY_DEVICE)))
    return wire.NodePrepareResourcesResponse(
        claims={"1": claim, "2": wire.NodePrepareResourceResponse()}
    ).SerializeToString()


def many_claims(
    answer: type[wire.NodePrepareResourcesResponse | wire.NodeUnprepareResourcesResponse],
) -> bytes:
    """Return an answer with 200,000 claims, among them those of the request."""
    named = answer()
    for uid in [*ASKED, *map(str, range(3, 200_000))]:
        named.claims[uid].SetInParent()
    return named.SerializeToString()


async def test_devices_of_a_claim_are_read_up_to_the_bound(tmp_path: Path) -> None:
    with answering(tmp_path / "s", {f"{SERVICE}NodePrepareResources": [many_devices()]}):
        client = DraDriverClient("d", tmp_path / "s", "v1.DRAPlugin", Registry())
        with TurnGauge() as gauge:
            answers = await client.prepare(CLAIMS)
        client.close()
    checked = check_answers("NodePrepareResources", ASKED, answers)
    assert f"more than {MAX_CLAIM_DEVICES} devices" in checked.faults["1"]
    assert checked.done == {"2": ()}
    assert gauge.most < MOST_CALLS


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
async def test_of_claims_that_nobody_asked_for_one_is_named(tmp_path: Path, method: str) -> None:
    message = many_claims(getattr(wire, f"{method}Response"))
    with answering(tmp_path / "s", {f"{SERVICE}{method}": [message]}):
        client = DraDriverClient("d", tmp_path / "s", "v1.DRAPlugin", Registry())
        call = client.prepare if method == "NodePrepareResources" else client.unprepare
        with TurnGauge() as gauge:
            answers = await call(CLAIMS)
        client.close()
    checked = check_answers(method, ASKED, answers)
    assert checked.done.keys() == ASKED.keys()
    assert checked.fault.startswith(f"{method} returned result for unknown claim UID ")
    assert gauge.most < MOST_CALLS


async def test_a_list_with_too_many_devices_is_refused_as_a_whole(tmp_path: Path) -> None:
    message = EMPTY_HEALTH * (MAX_MESSAGE // len(EMPTY_HEALTH))
    with answering(tmp_path / "s", {"/v1alpha1.DRAResourceHealth/NodeWatchResources": [message]}):
        client = DraDriverClient("d", tmp_path / "s", "v1.DRAPlugin", Registry())
        with TurnGauge() as gauge, pytest.raises(DraDriverFailed, match=f"more than {MAX_DEVICES} devices"):
            async for _ in client.health():
                pass
        client.close()
    assert gauge.most < MOST_CALLS


async def test_a_list_of_devices_with_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    listed = health_wire.NodeWatchResourcesResponse(
        devices=[health_wire.DeviceHealth(device=health_wire.DeviceIdentifier(device_name="x"))]
    )
    message = listed.SerializeToString().replace(b"x", b"\xff")
    with answering(tmp_path / "s", {"/v1alpha1.DRAResourceHealth/NodeWatchResources": [message]}):
        client = DraDriverClient("d", tmp_path / "s", "v1.DRAPlugin", Registry())
        with pytest.raises(DraDriverFailed, match="the list of devices cannot be decoded"):
            async for _ in client.health():
                pass
        client.close()
