"""Builds the node's three pressure conditions in the kubelet's words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from engine.api.node import NodeCondition
from engine.api.timestamps import whole_second
from engine.eviction import signals

_WORDS: Final = {
    signals.MEMORY_PRESSURE: {
        True: ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        False: ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    },
    signals.DISK_PRESSURE: {
        True: ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        False: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    },
    signals.PID_PRESSURE: {
        True: ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        False: ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    },
}


def node_conditions(holding: Collection[str], since: Mapping[str, float], now: float) -> list[NodeCondition]:
    """Return all three, those in `holding` true. `since` is when each last changed; times in Unix seconds."""
    return [
        NodeCondition(
            type=name,
            status="True" if name in holding else "False",
            last_heartbeat_time=whole_second(now),
            last_transition_time=whole_second(since[name]),
            reason=words[name in holding][0],
            message=words[name in holding][1],
        )
        for name, words in _WORDS.items()
    ]
