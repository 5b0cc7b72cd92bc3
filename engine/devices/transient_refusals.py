"""Tells which rejections for devices will pass: a plugin is not back yet, or terminating pods
hold them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from engine.api.pod import Pod
from engine.devices.state import DeviceState

AWAITING_PLUGIN: Final = "AwaitingDevicePlugin"
AWAITING_DEVICES: Final = "AwaitingDevices"
AWAITING_PINNED: Final = "AwaitingPinnedResources"


class TransientRefusal(NamedTuple):
    """Explain why a pod that does not get its devices now may get them later. `holders` are the uids of
    terminating pods.
    """

    reason: str
    message: str
    holders: frozenset[str] = frozenset()


def plugins_to_come(state: DeviceState, pod: Pod, *, now: float, allowance: float) -> list[str]:
    """Return the needed resources whose plugin is known and away, or has not listed its devices yet.

    A plugin that came back less than `allowance` seconds ago and has fewer healthy devices than the pod
    needs, or not those that it holds, is still discovering them.
    """
    return [
        name
        for name, count in state.pod_needs(pod).items()
        if not state.resources[name].reported
        or (state.resources[name].is_back_since(now - allowance) and not _has_enough(state, pod, name, count))
    ]


def _has_enough(state: DeviceState, pod: Pod, name: str, count: int) -> bool:
    inventory = state.resources[name].inventory
    held = [entry for entry in state.entries_of(pod.uid) if entry.resource_name == name]
    return inventory.healthy_count >= count and all(inventory.is_healthy(entry.devices) for entry in held)


def transient_refusal(
    state: DeviceState,
    pod: Pod,
    *,
    is_terminating: Callable[[str], bool],
    now: float,
    allowance: float,
    pinned: Iterable[str] = (),
) -> TransientRefusal | None:
    """Return why a rejection will pass, or None. `is_terminating(uid)` tells whether a pod is terminating.

    `pinned` are uids of pods that hold CPUs or memory of a kind that this pod requests.
    """
    away = plugins_to_come(state, pod, now=now, allowance=allowance)
    if away:
        return awaiting_plugins(away)
    needs = state.pod_needs(pod)
    holders = frozenset(
        entry.pod_uid
        for entry in state.entries()
        if entry.resource_name in needs and entry.pod_uid != pod.uid and is_terminating(entry.pod_uid)
    )
    if holders:
        text = f"{len(holders)} terminating pods still hold devices of {', '.join(sorted(needs))}"
        return TransientRefusal(AWAITING_DEVICES, text, holders)
    holders = frozenset(uid for uid in pinned if uid != pod.uid and is_terminating(uid))
    if holders:
        text = f"{len(holders)} terminating pods still hold exclusive CPUs or reserved memory"
        return TransientRefusal(AWAITING_PINNED, text, holders)
    return None


def awaiting_plugins(resources: Iterable[str]) -> TransientRefusal:
    """Word that the plugins of some resources are not back."""
    return TransientRefusal(
        AWAITING_PLUGIN, f"the device plugin of {', '.join(resources)} has not come back yet"
    )
