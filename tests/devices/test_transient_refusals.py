"""Which refusals of devices are transient, case by case."""

from __future__ import annotations

import pytest

from engine.devices.state import DeviceState
from engine.devices.transient_refusals import AWAITING_DEVICES, AWAITING_PLUGIN, transient_refusal
from engine.wire import deviceplugin_v1beta1_pb2 as wire
from tests.devices.conftest import GPU, container, make_pod

POD = make_pod("a")


def listing(*healths: str) -> bytes:
    devices = [wire.Device(ID=f"gpu-{i}", health=health) for i, health in enumerate(healths)]
    return wire.ListAndWatchResponse(devices=devices).SerializeToString()


def returned_plugin(now: float, *healths: str, back: bool = True) -> DeviceState:
    """Return the state of a resource whose plugin left 10 s before `now` and, if `back`, returned with these
    devices."""
    state = DeviceState()
    state.connect(GPU, now - 20)
    state.receive(GPU, listing("Healthy", "Healthy"))
    state.disconnect(GPU, now - 10)
    if back:
        state.connect(GPU, now)
        state.receive(GPU, listing(*healths))
    return state


def reason(state: DeviceState, *, now: float = 100.0, leaving: str = "") -> str:
    found = transient_refusal(state, POD, is_terminating=lambda uid: uid == leaving, now=now, allowance=40.0)
    return found.reason if found is not None else ""


@pytest.mark.parametrize(
    ("healths", "later", "expected"),
    [
        ((), 0, AWAITING_PLUGIN),
        (("Unhealthy", "Unhealthy"), 39, AWAITING_PLUGIN),
        (("Unhealthy", "Unhealthy"), 41, ""),
        (("Healthy",), 0, ""),
    ],
    ids=["lists nothing yet", "lists what is not well yet", "has had its time", "has enough"],
)
def test_a_returning_plugin_may_list_its_devices_later(healths, later, expected):
    assert reason(returned_plugin(100.0, *healths), now=100.0 + later) == expected


def test_a_plugin_that_is_away_may_come_back():
    assert reason(returned_plugin(100.0, back=False)) == AWAITING_PLUGIN


def test_a_plugin_that_was_never_here_has_what_it_lists():
    state = DeviceState()
    state.connect(GPU, 99.0)
    state.receive(GPU, listing("Unhealthy"))
    assert reason(state) == ""


def test_a_pods_own_devices_may_become_healthy():
    state = returned_plugin(60.0, "Healthy", "Healthy")
    state.claim(GPU, ["gpu-1"])
    state.assign(state.make_entry(POD.uid, "app", GPU, ["gpu-1"], b""))
    assert reason(state, now=61.0) == ""
    state.receive(GPU, listing("Healthy", "Unhealthy"))
    assert reason(state, now=61.0) == AWAITING_PLUGIN


def test_devices_of_pods_that_end_will_be_free():
    state = returned_plugin(100.0, "Healthy", "Healthy")
    state.claim(GPU, ["gpu-0", "gpu-1"])
    state.assign(state.make_entry("uid-old", "app", GPU, ["gpu-0", "gpu-1"], b""))
    assert reason(state) == ""
    assert reason(state, leaving="uid-old") == AWAITING_DEVICES
    assert reason(state, leaving="uid-other") == ""


def test_a_pod_without_devices_waits_for_none():
    state = returned_plugin(100.0, back=False)
    bare = make_pod("bare", container("app"))
    assert transient_refusal(state, bare, is_terminating=lambda _: True, now=100.0, allowance=40.0) is None
