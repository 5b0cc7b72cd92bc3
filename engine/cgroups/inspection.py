"""Inspects a node's cgroups: compares what exists with what should exist, and repairs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Container, Pod
from engine.api.qos import GUARANTEED
from engine.api.quantity import ZERO
from engine.api.resources import CPU
from engine.cgroups.formulas import checks
from engine.cgroups.formulas.checks import Finding, PodObservation, RootObservation
from engine.cgroups.formulas.containers import ContainerResources
from engine.cgroups.formulas.names import CgroupName, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.interface_files import CPU_SHARE
from engine.cgroups.pod_cgroups import PodCgroups, PodGroup
from engine.cgroups.qos_cgroups import QosCgroups
from engine.cgroups.tree import CgroupTree
from engine.host.cgroupfs.mounts import Mounts

_CONTAINER_FILES = {
    1: ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes"),
    2: ("cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.high", "memory.oom.group"),
}


class Inspected(Protocol):
    """State the data of `CgroupManager` that an inspection reads, and three operations that repair."""

    settings: CgroupSettings
    mounts: Mounts
    tree: CgroupTree
    levels: QosCgroups
    pods: PodCgroups
    formula: WeightFormula
    formula_reason: str

    def existing_pods(self) -> dict[str, PodGroup]: ...

    def container_resources(self, pod: Pod, container: Container) -> ContainerResources: ...

    def use_formula(self, formula: WeightFormula) -> None: ...

    def write_all(self) -> int: ...


def snapshot(cgroups: Inspected, *, containers: bool = True) -> list[dict[str, Any]]:
    """Return every cgroup with each file's expected and actual text: the root, the levels, then pods."""
    rows = [_row(cgroups, name, level) for level, name in cgroups.levels.names.items()]
    for uid, (pod, name) in cgroups.pods.known.items():
        row = _row(cgroups, name, GUARANTEED, uid)
        contribution = cgroups.levels.sums.pods.get(uid)
        row["qosClass"] = contribution.qos_class if contribution else ""
        row["pod"] = pod.full_name
        if containers:
            row["containers"] = [
                {"path": path, "files": files} for path, files in container_files(cgroups, name).items()
            ]
        rows.append(row)
    return rows


def _row(cgroups: Inspected, name: CgroupName, level: str, uid: str = "") -> dict[str, Any]:
    group = cgroups.tree.group(name)
    files = {
        file: {"wanted": text, "actual": cgroups.tree.read(name, file)} for file, text in group.wanted.items()
    }
    return {"path": group.path, "qosClass": level, "uid": uid, "files": files}


def container_files(cgroups: Inspected, pod: CgroupName) -> dict[str, dict[str, str | None]]:
    """Return path → file → text of the cgroups that the runtime created in a pod's cgroup."""
    found: dict[str, dict[str, str | None]] = {}
    tree = cgroups.tree
    for child in tree.children(pod):
        path = f"{to_path(pod, cgroups.settings.driver)}/{child}"
        files = _CONTAINER_FILES[cgroups.mounts.version]
        found[path] = {file: tree.read_path(path, file) for file in files}
    return found


def check(cgroups: Inspected, pods: Sequence[Pod], *, fix: bool = False) -> list[Finding]:
    """Find faults in this node's cgroups; with `fix`, repair what can be repaired.

    `pods` are the pods of the node; cgroups of others are orphaned.
    """
    root = cgroups.settings.root
    findings: list[Finding] = []
    for name in [
        *cgroups.levels.names.values(),
        *(n for _, n in cgroups.pods.known.values()),
    ]:
        group = cgroups.tree.groups.get(name)
        if group is not None:
            findings += checks.changed_files(group.path, cgroups.tree.verify(name))
    observed = _observe_pods(cgroups)
    mismatch = checks.formula_mismatch(observed, cgroups.formula, to_path(root, cgroups.settings.driver))
    if mismatch is not None and cgroups.mounts.version == 2:
        findings.append(mismatch[0])
    neighbourhood = _observe_root(cgroups)
    starved = checks.host_starved(neighbourhood)
    findings += [starved] if starved is not None else []
    findings += checks.reservation_not_held(neighbourhood, cgroups.settings.node.over_reserved())
    existing = {uid: group.path for uid, group in cgroups.existing_pods().items()}
    findings += checks.orphans(existing, [pod.uid for pod in pods])
    if not fix:
        return findings
    if mismatch is not None and cgroups.mounts.version == 2:
        cgroups.use_formula(mismatch[1])
    return [replace(finding, fixed=True) if _fix(cgroups, finding) else finding for finding in findings]


def _fix(cgroups: Inspected, finding: Finding) -> bool:
    if not finding.fixable:
        return False
    try:
        cgroups.write_all()
    except Refused:
        return False
    return True


def _observe_pods(cgroups: Inspected) -> list[PodObservation]:
    observed = []
    for pod, name in cgroups.pods.known.values():
        weights = [
            int(text)
            for files in container_files(cgroups, name).values()
            if (text := files.get("cpu.weight")) is not None and text.isdigit()
        ]
        shares = [cgroups.container_resources(pod, c).cpu_shares for c in pod.all_containers]
        observed.append(PodObservation(to_path(name, cgroups.settings.driver), shares, weights))
    return observed


def _observe_root(cgroups: Inspected) -> RootObservation:
    """Observe the top-level cgroup of all pods and its siblings."""
    tree, version = cgroups.tree, cgroups.mounts.version
    node, root = cgroups.settings.node, cgroups.settings.root
    share = CPU_SHARE[version]
    top = to_path(root[:1], cgroups.settings.driver)
    hierarchy = cgroups.mounts.holding("cpu")
    weights: dict[str, int] = {}
    for child in tree.children(()) if hierarchy is not None else ():
        text = tree.read_path(f"/{child}", share)
        if text is not None and text.isdigit():
            weights[f"/{child}"] = int(text)
    reserved = (node.kube_reserved or {}).get(CPU, ZERO) + (node.system_reserved or {}).get(CPU, ZERO)
    return RootObservation(
        path=top,
        version=version,
        weight=weights.pop(top, 0),
        neighbours=weights,
        cpus=node.capacity.get(CPU, ZERO).nano / 1e9,
        reserved_cpus=reserved.nano / 1e9,
        quota_cpus=_quota(cgroups),
        enforced_groups=[group.kind for group in cgroups.settings.reserved_groups],
    )


def _quota(cgroups: Inspected) -> float | None:
    if cgroups.mounts.version == 1:
        quota = cgroups.tree.read(cgroups.settings.root, "cpu.cfs_quota_us") or "-1"
        period = cgroups.tree.read(cgroups.settings.root, "cpu.cfs_period_us") or "100000"
    else:
        quota, _, period = (cgroups.tree.read(cgroups.settings.root, "cpu.max") or "max 100000").partition(
            " "
        )
    return int(quota) / int(period) if quota.isdigit() else None


def describe(cgroups: Inspected, pod: str = "") -> dict[str, Any]:
    """Return the node's settings and every cgroup, or one pod's, for `kubengine cgroups` and status pages.

    Raises `InvalidInput` if no pod has that namespace/name, name or uid.
    """
    node = cgroups.settings.node
    groups = snapshot(cgroups)
    if pod:
        groups = [row for row in groups if row["uid"] and pod in (row["uid"], *_names(row["pod"]))]
        if not groups:
            raise InvalidInput(f"no pod {pod!r} on this node")
    return {
        "enabled": True,
        "version": cgroups.mounts.version,
        "driver": cgroups.settings.driver,
        "root": to_path(cgroups.settings.root, cgroups.settings.driver),
        "hierarchies": [hierarchy.path for hierarchy in cgroups.mounts.hierarchies],
        "lacking": cgroups.mounts.lacking,
        "cpuWeightFormula": cgroups.formula,
        "cpuWeightReason": cgroups.formula_reason,
        "allocatable": {name: str(amount) for name, amount in node.allocatable().items()},
        "reservation": {name: str(amount) for name, amount in node.reservation().items()},
        "writes": cgroups.tree.writes,
        "remade": cgroups.tree.remade,
        "refusals": dict(cgroups.pods.refusals),
        "groups": groups,
    }


def _names(full_name: str) -> tuple[str, str]:
    """Return the names that select a pod: `namespace/name` and `name`."""
    return full_name, full_name.rpartition("/")[2]
