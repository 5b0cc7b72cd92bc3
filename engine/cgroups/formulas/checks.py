"""Finds faults in a node's cgroups and explains them. Pure: observations in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from engine.api.amounts.cpu_weight import WeightFormula
from engine.cgroups.formulas.conversion import shares_to_weight

KERNEL_THREAD_WEIGHT = {1: 1024, 2: 100}
SMALL_SHARE = 0.05


class Finding(msgspec.Struct, frozen=True):
    """Describe one finding: the fault, its place, its meaning, and whether `--fix` can repair it.

    A `risk` is not wrong in itself: it tells what may happen under full load.
    """

    kind: str
    path: str
    meaning: str
    fixable: bool = False
    fixed: bool = False
    risk: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.path,
            "meaning": self.meaning,
            "fixable": self.fixable,
            "fixed": self.fixed,
            "risk": self.risk,
        }


class PodObservation(msgspec.Struct, frozen=True):
    """Hold the cgroups of one pod: desired shares of its containers, and the weights found below its
    cgroup.
    """

    path: str
    wanted_shares: Sequence[int]
    container_weights: Sequence[int]


class RootObservation(msgspec.Struct, frozen=True):
    """Hold the root of all pods and its siblings: CPU weights (v2) or shares (v1), quota in cores."""

    path: str
    version: int
    weight: int
    neighbours: Mapping[str, int]
    cpus: float
    reserved_cpus: float
    quota_cpus: float | None
    enforced_groups: Sequence[str]


def changed_files(path: str, differing: Mapping[str, tuple[str, str | None]]) -> list[Finding]:
    """Report files whose content differs from what the agent wrote."""
    if differing and all(actual is None for _, actual in differing.values()):
        return [Finding("missing-group", path, "the cgroup does not exist", fixable=True)]
    return [
        Finding(
            "changed-file",
            f"{path}/{file}",
            f"holds {actual!r} instead of {wanted!r}; another process changed it",
            fixable=True,
        )
        for file, (wanted, actual) in sorted(differing.items())
    ]


def container_formula(pods: Iterable[PodObservation]) -> WeightFormula | None:
    """Return the weight formula that the runtime used for containers; None if that cannot be determined."""
    votes = {"linear": 0, "logarithmic": 0}
    for pod in pods:
        for shares in pod.wanted_shares:
            linear, logarithmic = (shares_to_weight(shares, f) for f in ("linear", "logarithmic"))
            if linear == logarithmic:
                continue
            votes["linear"] += linear in pod.container_weights
            votes["logarithmic"] += logarithmic in pod.container_weights
    if votes["linear"] == votes["logarithmic"]:
        return None
    return "linear" if votes["linear"] > votes["logarithmic"] else "logarithmic"


def formula_mismatch(
    pods: Sequence[PodObservation], ours: WeightFormula, root: str
) -> tuple[Finding, WeightFormula] | None:
    """Report pods and containers with weights of different formulas (kubernetes/kubernetes#131216)."""
    theirs = container_formula(pods)
    if theirs is None or theirs == ours:
        return None
    meaning = (
        f"pods and QoS levels use {ours} CPU weights, but the runtime gives containers {theirs} weights "
        "(kubernetes/kubernetes#131216): processes beside the containers in a pod's group, and pods beside "
        f"other pods, get other CPU shares than requested; set cgroups.cpuWeight: {theirs}"
    )
    return Finding("weight-formula", root, meaning, fixable=True), theirs


def host_starved(root: RootObservation) -> Finding | None:
    """Report a weight of all pods that starves the host (kubernetes/kubernetes#125409).

    Under full load, the host's own cgroups and kernel threads get less CPU than is reserved for them.
    """
    total = root.weight + sum(root.neighbours.values())
    if root.weight <= 0 or root.quota_cpus is not None:
        return None
    kernel = KERNEL_THREAD_WEIGHT[root.version] / (root.weight + KERNEL_THREAD_WEIGHT[root.version])
    host = (total - root.weight) / total * root.cpus
    wanted = root.reserved_cpus or SMALL_SHARE * root.cpus
    if not root.neighbours or (host >= wanted and kernel >= SMALL_SHARE):
        return None
    meaning = (
        f"with weight {root.weight} against {total - root.weight} for all other groups beside it, pods "
        f"under full load leave the host {host:.2f} of {root.cpus:g} CPUs "
        f"({'reserved' if root.reserved_cpus else 'a sensible least'}: {wanted:.2f}), and a kernel thread "
        f"{100 * kernel:.1f} % of a CPU that it shares with a pod (kubernetes/kubernetes#125409); cap pods "
        "with cgroups.cpuCeiling: true, or raise the weight of the host's slices"
    )
    return Finding("host-starved", root.path, meaning)


def reservation_not_held(root: RootObservation, over_reserved: Sequence[str]) -> list[Finding]:
    """Report reservations larger than the node, and reserved CPU that nothing keeps free
    (kubernetes/kubernetes#129811).
    """
    findings = [
        Finding("over-reserved", name, f"more {name} is reserved than the node has") for name in over_reserved
    ]
    free = root.cpus - (root.quota_cpus or root.cpus)
    if root.reserved_cpus > 0 and free < root.reserved_cpus and not root.enforced_groups:
        meaning = (
            f"{root.reserved_cpus:g} CPUs are reserved, but pods have no CPU ceiling and no reserved group "
            "has a weight of its own, so pods may take every idle CPU and compete for the rest "
            "(kubernetes/kubernetes#129811); enforce system-reserved-compressible, or set "
            "cgroups.cpuCeiling: true"
        )
        findings.append(Finding("reservation-not-held", root.path, meaning, risk=True))
    return findings


def orphans(found: Mapping[str, str], known: Iterable[str]) -> list[Finding]:
    """Report pod cgroups (uid → path) of pods that are not on the node."""
    unknown = sorted(found.keys() - set(known))
    return [
        Finding("orphan-group", found[uid], "no pod on this node has this uid; its group was left behind")
        for uid in unknown
    ]
