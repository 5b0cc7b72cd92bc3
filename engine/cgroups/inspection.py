"""Looking at a node's cgroups: what is there, beside what should be, and putting it right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Pod
from engine.api.qos import GUARANTEED
from engine.api.quantity import ZERO
from engine.api.resources import CPU
from engine.cgroups import checks
from engine.cgroups.checks import Finding, PodObservation, RootObservation
from engine.cgroups.files import CPU_SHARE
from engine.cgroups.names import CgroupName, to_path

if TYPE_CHECKING:
    from engine.cgroups.manager import CgroupManager

_CONTAINER_FILES = {
    1: ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes"),
    2: ("cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.high", "memory.oom.group"),
}


def snapshot(manager: CgroupManager, *, containers: bool = True) -> list[dict[str, Any]]:
    """Every group with each file's wanted and actual text: the root, the levels, then pods."""
    rows = [_row(manager, name, level) for level, name in manager.levels.names.items()]
    for uid, (pod, name) in manager.pods.known.items():
        row = _row(manager, name, GUARANTEED, uid)
        contribution = manager.levels.sums.pods.get(uid)
        row["qosClass"] = contribution.qos_class if contribution else ""
        row["pod"] = pod.full_name
        if containers:
            row["containers"] = [
                {"path": path, "files": files} for path, files in container_files(manager, name).items()
            ]
        rows.append(row)
    return rows


def _row(manager: CgroupManager, name: CgroupName, level: str, uid: str = "") -> dict[str, Any]:
    group = manager.tree.group(name)
    files = {
        file: {"wanted": text, "actual": manager.tree.read(name, file)} for file, text in group.wanted.items()
    }
    return {"path": group.path, "qosClass": level, "uid": uid, "files": files}


def container_files(manager: CgroupManager, pod: CgroupName) -> dict[str, dict[str, str | None]]:
    """Path → file → text of the groups that the runtime made in a pod's group."""
    found: dict[str, dict[str, str | None]] = {}
    tree = manager.tree
    for child in tree.children(pod):
        path = f"{to_path(pod, manager.settings.driver)}/{child}"
        files = _CONTAINER_FILES[manager.mounts.version]
        found[path] = {file: tree.read_path(path, file) for file in files}
    return found


def check(manager: CgroupManager, pods: Sequence[Pod], *, fix: bool = False) -> list[Finding]:
    """Faults of this node's cgroups; with `fix` those that can be are put right.

    `pods` are the pods of the node; groups of others are orphans.
    """
    root = manager.settings.root
    findings: list[Finding] = []
    for name in [
        *manager.levels.names.values(),
        *(n for _, n in manager.pods.known.values()),
    ]:
        group = manager.tree.groups.get(name)
        if group is not None:
            findings += checks.changed_files(group.path, manager.tree.verify(name))
    observed = _observe_pods(manager)
    mismatch = checks.formula_mismatch(observed, manager.formula, to_path(root, manager.settings.driver))
    if mismatch is not None and manager.mounts.version == 2:
        findings.append(mismatch[0])
    neighbourhood = _observe_root(manager)
    starved = checks.host_starved(neighbourhood)
    findings += [starved] if starved is not None else []
    findings += checks.reservation_not_held(neighbourhood, manager.settings.node.over_reserved())
    existing = {uid: group.path for uid, group in manager.existing_pods().items()}
    findings += checks.orphans(existing, [pod.uid for pod in pods])
    if not fix:
        return findings
    if mismatch is not None and manager.mounts.version == 2:
        manager.use_formula(mismatch[1])
    return [replace(finding, fixed=True) if _fix(manager, finding) else finding for finding in findings]


def _fix(manager: CgroupManager, finding: Finding) -> bool:
    if not finding.fixable:
        return False
    try:
        manager.write_all()
    except Refused:
        return False
    return True


def _observe_pods(manager: CgroupManager) -> list[PodObservation]:
    observed = []
    for pod, name in manager.pods.known.values():
        weights = [
            int(text)
            for files in container_files(manager, name).values()
            if (text := files.get("cpu.weight")) is not None and text.isdigit()
        ]
        shares = [manager.container_resources(pod, c).cpu_shares for c in pod.all_containers]
        observed.append(PodObservation(to_path(name, manager.settings.driver), shares, weights))
    return observed


def _observe_root(manager: CgroupManager) -> RootObservation:
    """The top group that pods are in, beside the other top groups."""
    tree, version = manager.tree, manager.mounts.version
    node, root = manager.settings.node, manager.settings.root
    share = CPU_SHARE[version]
    top = to_path(root[:1], manager.settings.driver)
    hierarchy = manager.mounts.holding("cpu")
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
        quota_cpus=_quota(manager),
        enforced_groups=[group.kind for group in manager.settings.reserved_groups],
    )


def _quota(manager: CgroupManager) -> float | None:
    if manager.mounts.version == 1:
        quota = manager.tree.read(manager.settings.root, "cpu.cfs_quota_us") or "-1"
        period = manager.tree.read(manager.settings.root, "cpu.cfs_period_us") or "100000"
    else:
        quota, _, period = (manager.tree.read(manager.settings.root, "cpu.max") or "max 100000").partition(
            " "
        )
    return int(quota) / int(period) if quota.isdigit() else None


def describe(manager: CgroupManager, pod: str = "") -> dict[str, Any]:
    """For `kubengine cgroups` and status pages: the node's settings and every group, or one pod's.
    Raises `InvalidInput` where no pod is called so (namespace/name, name or uid)."""
    node = manager.settings.node
    groups = snapshot(manager)
    if pod:
        groups = [row for row in groups if row["uid"] and pod in (row["uid"], *_names(row["pod"]))]
        if not groups:
            raise InvalidInput(f"no pod {pod!r} on this node")
    return {
        "enabled": True,
        "version": manager.mounts.version,
        "driver": manager.settings.driver,
        "root": to_path(manager.settings.root, manager.settings.driver),
        "hierarchies": [hierarchy.path for hierarchy in manager.mounts.hierarchies],
        "lacking": manager.mounts.lacking,
        "cpuWeightFormula": manager.formula,
        "cpuWeightReason": manager.formula_reason,
        "allocatable": {name: str(amount) for name, amount in node.allocatable().items()},
        "reservation": {name: str(amount) for name, amount in node.reservation().items()},
        "writes": manager.tree.writes,
        "remade": manager.tree.remade,
        "refusals": dict(manager.pods.refusals),
        "groups": groups,
    }


def _names(full_name: str) -> tuple[str, str]:
    """What a pod may be called: `namespace/name`, or `name`."""
    return full_name, full_name.rpartition("/")[2]
