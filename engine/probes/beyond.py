"""Names the features of a probe that go beyond the kubelet, for metrics and decisions. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.probes.cheaper import cheaper
from engine.probes.spec import ProbeSpec, probe_specs

REPLACEABLE: Final = "replaceable-command"


@lru_cache(maxsize=1024)
def features(spec: ProbeSpec) -> tuple[str, ...]:
    """Return which of `milliseconds`, `pod-network`, `start-period`, `grpc-tls`, `h2c` and
    `replaceable-command` a probe has.
    """
    has = {
        "milliseconds": any(time % 1 for time in (spec.period, spec.timeout, spec.initial_delay)),
        "pod-network": spec.network == "pod",
        "start-period": spec.start_period > 0,
        "grpc-tls": spec.kind == "grpcs",
        "h2c": spec.kind == "h2c",
        REPLACEABLE: bool(cheaper(spec.command)),
    }
    return tuple(name for name, is_so in has.items() if is_so)


def beyond(pod: Pod, section: ProbesSection) -> dict[str, list[str]]:
    """Return the features of each probe that has any, by container and type; None if the pod's probes cannot
    be parsed.

    For a replaceable command, the replacement is included.
    """
    try:
        specs = probe_specs(pod, section)
    except InvalidInput:
        return {}
    return {f"{spec.container} {spec.type}": _described(spec) for spec in specs if features(spec)}


def _described(spec: ProbeSpec) -> list[str]:
    return [f"{name}: {cheaper(spec.command)}" if name == REPLACEABLE else name for name in features(spec)]
