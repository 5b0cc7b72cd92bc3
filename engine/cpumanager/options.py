"""Parses `cpuManagerPolicyOptions`: stages, the gates of the stages, and forbidden combinations.

Source: kubelet v1.36 `cpumanager/policy_options.go`, including the error messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.encoding.go_bool import parse_bool
from engine.api.errors import InvalidInput
from engine.cpumanager.topology import CpuTopology

NONE, STATIC = "none", "static"
FULL_PCPUS = "full-pcpus-only"
ACROSS_NUMA = "distribute-cpus-across-numa"
BY_SOCKET = "align-by-socket"
ACROSS_CORES = "distribute-cpus-across-cores"
STRICT_RESERVATION = "strict-cpu-reservation"
BY_CACHE = "prefer-align-cpus-by-uncorecache"

ALPHA = (BY_SOCKET, ACROSS_CORES)
BETA = (ACROSS_NUMA,)
STABLE = (FULL_PCPUS, STRICT_RESERVATION, BY_CACHE)
ALPHA_GATE, BETA_GATE = "CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions"
FORBIDDEN = (
    (FULL_PCPUS, ACROSS_CORES),
    (ACROSS_NUMA, ACROSS_CORES),
    (BY_CACHE, ACROSS_CORES),
    (BY_CACHE, ACROSS_NUMA),
)
SUBJECT = "cpuManagerPolicyOptions"


class StaticOptions(msgspec.Struct, frozen=True):
    """Hold the options of the static policy."""

    full_pcpus: bool = False
    across_numa: bool = False
    by_socket: bool = False
    across_cores: bool = False
    strict_reservation: bool = False
    by_cache: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], *, alpha: bool, beta: bool) -> StaticOptions:
        """Read options; `alpha` and `beta` say whether options of that stage are enabled.

        Raises `InvalidInput`.
        """
        values: dict[str, bool] = {}
        for name, value in sorted(options.items()):
            if name not in (*ALPHA, *BETA, *STABLE):
                raise _wrong(f'unknown CPU Manager Policy option: "{name}"')
            for stage, members, enabled in (("Alpha", ALPHA, alpha), ("Beta", BETA, beta)):
                if name in members and not enabled:
                    raise _wrong(
                        f'CPU Manager Policy {stage}-level Options not enabled, but option "{name}" provided'
                    )
            try:
                values[name] = parse_bool(value)
            except ValueError as error:
                raise _wrong(f'bad value for option "{name}": {error}') from None
        for one, other in FORBIDDEN:
            if values.get(one) and values.get(other):
                raise _wrong(f"static policy options {one} and {other} can not be used at the same time")
        return cls(
            full_pcpus=values.get(FULL_PCPUS, False),
            across_numa=values.get(ACROSS_NUMA, False),
            by_socket=values.get(BY_SOCKET, False),
            across_cores=values.get(ACROSS_CORES, False),
            strict_reservation=values.get(STRICT_RESERVATION, False),
            by_cache=values.get(BY_CACHE, False),
        )

    @classmethod
    def from_config(cls, config: KubeletConfiguration) -> StaticOptions:
        """Return the options of a configuration, according to its feature gates. Raises `InvalidInput`."""
        return cls.parse(
            config.cpu_manager_policy_options or {},
            alpha=config.gate(ALPHA_GATE, False),
            beta=config.gate(BETA_GATE, True),
        )

    def check(self, topology: CpuTopology, topology_policy: str) -> None:
        """Check the options against this machine and the topology manager's policy.

        Raises `InvalidInput`.
        """
        if not self.by_socket:
            return
        if topology_policy == "single-numa-node":
            raise _wrong(
                f"Topolgy manager {topology_policy} policy is incompatible with CPUManager {BY_SOCKET} "
                "policy option"
            )
        if len(topology.layout.sockets) > len(topology.layout.nodes):
            raise _wrong(
                "Align by socket is not compatible with hardware where number of sockets are more than "
                "number of NUMA"
            )


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(message, subject=SUBJECT)


def check_policy(config: KubeletConfiguration) -> None:
    """Raise `InvalidInput` for an unknown policy, and for options that its policy does not have."""
    policy, options = config.cpu_manager_policy, config.cpu_manager_policy_options
    if policy not in (NONE, STATIC):
        raise InvalidInput(f'unknown policy: "{policy}"; expected none or static', subject="cpuManagerPolicy")
    if policy == NONE and options:
        given = " ".join(f"{name}:{value}" for name, value in sorted(options.items()))
        text = f"None policy: received unsupported options=map[{given}]"
        raise InvalidInput(text, subject="cpuManagerPolicyOptions")
