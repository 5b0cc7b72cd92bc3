"""Run a probe once from a program, with the agent's result."""

from __future__ import annotations

from typing import Final, NamedTuple

from engine._fast.probing.state import (
    OUTCOME_ERROR,
    OUTCOME_FAILURE,
    OUTCOME_SUCCESS,
    OUTCOME_WARNING,
)
from engine.api.errors import InvalidInput
from engine.probes import ProbeSpec
from engine.probes.library import run

_NAMES: Final = {
    OUTCOME_SUCCESS: "success",
    OUTCOME_WARNING: "success",  # a redirect to another host, as for the kubelet
    OUTCOME_FAILURE: "failure",
    OUTCOME_ERROR: "error",
}


class ProbeOutcome(NamedTuple):
    """Hold the outcome: `result` is success, failure or error; `message` gives the reason, as the Unhealthy
    event does.
    """

    result: str
    message: str


async def run_probe(spec: ProbeSpec, host: str = "") -> ProbeOutcome:
    """Run a probe of `probe_specs` once, against `host` (the pod's address) unless the probe names its own.

    Ends within the probe's timeout and never raises for anything that a target does. Raise `InvalidInput`
    for a command, which only a container runtime can run, for a port given by name, and without a host.
    """
    if spec.kind == "exec":
        raise InvalidInput(
            "a command probe needs the pod's container runtime", subject=f"{spec.container} {spec.type}"
        )
    target = spec.host or host
    if not target:
        raise InvalidInput("needs a host", subject=f"{spec.container} {spec.type}")
    # By name would need the container's list of ports, which a probe alone does not have.
    outcome = await run(spec, target, spec.resolve_port())
    return ProbeOutcome(_NAMES.get(outcome.outcome, "failure"), outcome.text)
