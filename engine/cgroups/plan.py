"""Computes the values of every level from pods and a node's description alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.qos import GUARANTEED, qos_class
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import ContainerResources, container_resources
from engine.cgroups.formulas.conversion import huge_page_size
from engine.cgroups.formulas.levels import LEVELS, Contribution, LevelSums
from engine.cgroups.formulas.names import level_name, pod_name, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import GroupValues, pod_values
from engine.cgroups.interface_files import FileRules

PLANNED_CONTROLLERS = frozenset(["cpu", "memory", "pids", "hugetlb", "cpuset", "io"])


class PlannedGroup(msgspec.Struct, frozen=True):
    """Describe one planned cgroup: its path, its kind and its files.

    A container's path ends in its name, where a runtime uses its id. `oom_score_adj` is set for containers.
    """

    path: str
    kind: Literal["root", "level", "reserved", "pod", "container"]
    qos_class: str
    files: Mapping[str, str]
    pod: str = ""
    oom_score_adj: int | None = None

    def as_dict(self) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "path": self.path,
            "kind": self.kind,
            "qosClass": self.qos_class,
            "pod": self.pod,
            "files": dict(self.files),
        }
        if self.oom_score_adj is not None:
            answer["oomScoreAdj"] = self.oom_score_adj
        return answer


def plan(
    pods: Iterable[Pod],
    config: KubeletConfiguration,
    section: CgroupsSection,
    capacity: Mapping[str, Quantity | int],
    *,
    version: Literal[1, 2] = 2,
    formula: WeightFormula = "linear",
) -> list[PlannedGroup]:
    """Return every cgroup of a node with this capacity and these pods, root first.

    A pod without a uid appears under its name. Raises `InvalidInput` for a bad configuration.
    """
    sizes = tuple(sorted(size for name in capacity if (size := huge_page_size(name)) is not None))
    settings = CgroupSettings.resolve(
        config,
        capacity,
        cgroup_v2=version == 2,
        section=section,
        huge_page_sizes=sizes,
    )
    rules = FileRules(version, formula, sizes, PLANNED_CONTROLLERS)
    listed = [(pod, pod.uid or pod.metadata.name) for pod in pods]
    groups = plan_levels((pod for pod, _ in listed), settings, rules)
    for pod, uid in listed:
        groups += _pod_groups(pod, uid, settings, rules)
    return groups


def plan_levels(pods: Iterable[Pod], settings: CgroupSettings, rules: FileRules) -> list[PlannedGroup]:
    """Return the root, the QoS levels and the reserved groups of a node with these pods."""
    groups: list[PlannedGroup] = []
    sums = LevelSums()
    for pod in pods:
        sums.put(pod.uid or pod.metadata.name, Contribution.of(pod))
    levels = sums.values(settings.levels)
    levels[GUARANTEED] = msgspec.structs.replace(settings.root_values(), unified=levels[GUARANTEED].unified)
    for level in LEVELS:
        files = rules.files(levels[level], unbounded_huge_pages=level != GUARANTEED)
        path = to_path(level_name(settings.root, level), settings.driver)
        groups.append(PlannedGroup(path, "root" if level == GUARANTEED else "level", level, files))
    for reserved in settings.reserved_groups:
        path = to_path(reserved.name, settings.driver)
        groups.append(PlannedGroup(path, "reserved", "", rules.given_files(reserved.values())))
    return groups


def _pod_groups(pod: Pod, uid: str, settings: CgroupSettings, rules: FileRules) -> Iterable[PlannedGroup]:
    level = qos_class(pod)
    path = to_path(pod_name(settings.root, level, uid), settings.driver)
    yield PlannedGroup(path, "pod", level, rules.files(pod_values(pod, settings.pods)), pod.full_name)
    for container in pod.all_containers:
        wanted = container_resources(pod, container, settings.containers)
        files = rules.files(container_values(wanted))
        yield PlannedGroup(
            f"{path}/{container.name}", "container", level, files, pod.full_name, wanted.oom_score_adj
        )


def container_values(wanted: ContainerResources) -> GroupValues:
    """Return the values of the cgroup that a runtime creates for a container."""
    return GroupValues(
        cpu_shares=wanted.cpu_shares,
        cpu_quota=wanted.cpu_quota or None,
        cpu_period=wanted.cpu_period or None,
        memory=wanted.memory_limit_in_bytes or None,
        cpuset=wanted.cpuset_cpus or None,
        huge_pages={
            size: wanted.hugepage_limits[name]
            for name in wanted.hugepage_limits
            if (size := huge_page_size("hugepages-" + name.replace("B", "i"))) is not None
        },
        unified=wanted.unified,
    )
