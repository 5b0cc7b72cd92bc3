"""Describes a machine's CPUs and their containers for people and the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.api import cpu_set as cpu_sets
from engine.api.pod import Pod
from engine.cpumanager.options import NONE, STATIC
from engine.cpumanager.static_policy import StaticCpuPolicy
from engine.cpumanager.topology import CpuTopology

Description = dict[str, Any]


def describe_machine(topology: CpuTopology, offline: int) -> Description:
    """Describe CPUs under the policy none; `offline` is a bit mask."""
    return {
        "policy": NONE,
        "reserved": "",
        "shared": cpu_sets.text(topology.cpus),
        "offline": cpu_sets.text(offline),
        "processors": [one._asdict() for one in topology.processors],
        "containers": [],
    }


def describe_policy(
    policy: StaticCpuPolicy, offline: int, pools: Sequence[Description], pods: Mapping[str, Pod]
) -> Description:
    """Describe CPUs under the policy static; `pods` are those with exclusive CPUs, by uid."""
    containers = [
        {
            "pod": pods[uid].full_name if uid in pods else "",
            "podUID": uid,
            "container": name,
            "cpus": cpu_sets.text(cpus),
        }
        for uid, name, cpus in policy.state.entries()
    ]
    return {
        **({"pools": list(pools)} if pools else {}),
        **describe_machine(policy.topology, offline),
        "policy": STATIC,
        "reserved": cpu_sets.text(policy.reserved),
        "shared": cpu_sets.text(policy.state.shared),
        "containers": containers,
    }
