"""cgroups: the values of pods, containers and QoS levels under another version, formula or configuration.

Values come from `engine.cgroups` (`pod_values`, `container_resources`, `LevelSums`, `FileRules`), once per
template and class, since pods of one template have the same. Faults among them are found by `cgroup_lint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.api.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from engine.cgroups.containers import ContainerRules, container_resources
from engine.cgroups.conversion import WeightFormula, shares_to_weight
from engine.cgroups.files import FileRules
from engine.cgroups.levels import LevelSums
from engine.cgroups.settings import CgroupSettings
from engine.cgroups.values import GroupValues, pod_values
from engine.plan.answers import Answer, Rows
from engine.plan.configuration import NodeConfigurations
from engine.plan.objects import pod_object, template_pod
from engine.plan.questions.cgroup_lint import NodeShares, lint_node
from engine.plan.snapshot import Snapshot
from engine.tables import BURSTABLE as BURSTABLE_CODE
from engine.tables import GUARANTEED as GUARANTEED_CODE

CONTROLLERS = frozenset(["cpu", "memory", "pids"])
UNLIMITED = -1
LEVEL_NAMES = {GUARANTEED: "kubepods", BURSTABLE: "kubepods/burstable", BEST_EFFORT: "kubepods/besteffort"}
_UNITS = {"cpu.shares": "shares", "cpu.weight": "weight", "pids.max": "processes"}

Detail = Literal["qos", "pods", "containers", "lint"]


class CgroupsParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What cgroups takes."""

    version: Annotated[int, Meta(description="cgroup version, 1 or 2", ge=1, le=2)] = 2
    formula: Annotated[
        WeightFormula, Meta(description="cpu.weight of pods: linear (kubelet up to 1.34) or logarithmic")
    ] = "linear"
    container_formula: Annotated[
        WeightFormula | None, Meta(description="cpu.weight of containers, the runtime's; None: the same")
    ] = None
    detail: Annotated[list[Detail], Meta(description="which rows: qos, pods, containers, lint")] = (
        msgspec.field(default_factory=lambda: ["qos", "lint"])
    )
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}


def cgroups(snapshot: Snapshot, parameters: CgroupsParameters) -> Answer:
    """Rows whose decision is the file (`cpu.weight`, `memory.max` …) and whose amount is its value (-1 for
    unlimited), the object a level, `namespace/pod` or `namespace/pod:container`; `lint` rows name a fault.
    """
    rows = Rows(snapshot.node_names)
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.note(rows)
    files = FileRules(parameters.version, parameters.formula, controllers=CONTROLLERS)  # type: ignore[arg-type]
    detail = set(parameters.detail)
    pods = _PodFiles(snapshot, files)
    resolved: dict[tuple[Any, ...], CgroupSettings] = {}
    columns = _Columns(snapshot)
    mixed = parameters.container_formula not in (None, parameters.formula) and parameters.version == 2
    for node in range(snapshot.node_count):
        key = (configurations.key(node), columns.cpu[node], columns.memory[node])
        if key not in resolved:
            resolved[key] = CgroupSettings.resolve(
                configurations.of(node), columns.capacity(node), cgroup_v2=parameters.version == 2
            )
        settings = resolved[key]
        levels = columns.sums(node).values(settings.levels)
        if "qos" in detail:
            for level, values in levels.items():
                _add_files(rows, node, LEVEL_NAMES[level], files.files(values), level)
        mine = slice(int(snapshot.offsets[node]), int(snapshot.offsets[node + 1]))
        if "pods" in detail:
            labels = columns.labels(mine)
            for row, label in zip(range(mine.start, mine.stop), labels, strict=True):
                _add_files(rows, node, label, pods.of(row, settings)[1], "")
        if "containers" in detail:
            for row in range(mine.start, mine.stop):
                _add_containers(rows, node, snapshot, row, settings.containers, parameters)
        if "lint" in detail:
            shares = np.array(
                [pods.of(row, settings)[0].cpu_shares or 0 for row in range(mine.start, mine.stop)]
            )
            if parameters.version == 2:
                shares = _weights(shares, parameters.formula)
            lint_node(rows, node, _node_shares(columns, node, mine, shares, levels, files), mixed=mixed)
    return rows.answer()


class _Columns:
    """Per-pod sums that levels need, and node capacities."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.cpu = _known(snapshot, "cpu")
        self.memory = _known(snapshot, "memory")
        self.qos = snapshot.column("qos")
        self.pod_cpu = snapshot.per_pod("request/cpu")
        self.pod_memory = snapshot.per_pod("request/memory")
        self.usage = snapshot.pods["usage/memory"].slice(0, snapshot.placed).fill_null(-1).to_numpy()

    def capacity(self, node: int) -> dict[str, int]:
        amounts = {"cpu": int(self.cpu[node]), "memory": int(self.memory[node])}
        return {name: amount for name, amount in amounts.items() if amount >= 0}

    def sums(self, node: int) -> LevelSums:
        mine = slice(int(self.snapshot.offsets[node]), int(self.snapshot.offsets[node + 1]))
        qos = self.qos[mine]
        burstable, guaranteed = qos == BURSTABLE_CODE, qos == GUARANTEED_CODE
        return LevelSums(
            burstable_milli=int(self.pod_cpu[mine][burstable].sum()),
            burstable_memory=int(self.pod_memory[mine][burstable].sum()),
            guaranteed_memory=int(self.pod_memory[mine][guaranteed].sum()),
        )

    def labels(self, rows: slice) -> list[str]:
        labels: list[str] = self.snapshot.pod_labels(np.arange(rows.start, rows.stop)).to_pylist()
        return labels


def _known(snapshot: Snapshot, resource: str) -> NDArray[np.int64]:
    capacity = snapshot.allocatable(resource, "capacity")
    return np.where(capacity < 0, snapshot.allocatable(resource), capacity)


class _PodFiles:
    """Values and files per (template, class, rules), computed once each."""

    def __init__(self, snapshot: Snapshot, files: FileRules) -> None:
        self._specs = snapshot.templates["spec"]
        self._template = snapshot.column("template")
        self._qos = snapshot.column("qos")
        self._files = files
        self._known: dict[tuple[Any, ...], tuple[GroupValues, Mapping[str, str]]] = {}

    def of(self, row: int, settings: CgroupSettings) -> tuple[GroupValues, Mapping[str, str]]:
        key = (self._template[row], self._qos[row], settings.pods)
        found = self._known.get(key)
        if found is None:
            pod = template_pod(self._specs[int(self._template[row])].as_py(), int(self._qos[row]))
            values = pod_values(pod, settings.pods)
            found = self._known[key] = (values, self._files.files(values))
        return found


def _add_files(rows: Rows, node: int, object: str, files: Mapping[str, str], reason: str) -> None:
    for name, text in files.items():
        first = text.split()[0] if text else "max"
        amount = UNLIMITED if first in ("max", "-1") else int(first)
        rows.add(node, name, object, reason, amount, _unit(name))


def _unit(name: str) -> str:
    if name.startswith("memory."):
        return "bytes"
    return _UNITS.get(name, "µs" if name.startswith("cpu.") else "")


def _add_containers(
    rows: Rows, node: int, snapshot: Snapshot, row: int, rules: ContainerRules, parameters: CgroupsParameters
) -> None:
    pod = pod_object(snapshot, row)
    for container in pod.all_containers:
        given = container_resources(pod, container, rules)
        name = f"{pod.full_name}:{container.name}"
        if parameters.version == 1:
            rows.add(node, "cpu.shares", name, "", given.cpu_shares, "shares")
        else:
            formula = parameters.container_formula or parameters.formula
            weight = shares_to_weight(given.cpu_shares, formula)
            rows.add(node, "cpu.weight", name, formula, weight, "weight")
        rows.add(node, "cpu.quota", name, "", given.cpu_quota or UNLIMITED, "µs")
        limit = given.memory_limit_in_bytes or UNLIMITED
        rows.add(node, "memory.max", name, "", limit, "bytes")
        rows.add(node, "oom_score_adj", name, pod.status.qos_class, given.oom_score_adj, "")
        for file, text in given.unified.items():
            rows.add(node, file, name, "", UNLIMITED if text == "max" else int(text), _unit(file))


def _weights(shares: NDArray[np.int64], formula: WeightFormula) -> NDArray[np.int64]:
    distinct, index = np.unique(shares, return_inverse=True)
    return np.array([shares_to_weight(int(s), formula) for s in distinct], np.int64)[index]


def _node_shares(
    columns: _Columns,
    node: int,
    mine: slice,
    weights: NDArray[np.int64],
    levels: Mapping[str, GroupValues],
    files: FileRules,
) -> NodeShares:
    def weight(level: str) -> int:
        shares = levels[level].cpu_shares or 0
        return shares_to_weight(shares, files.formula) if files.version == 2 else shares

    return NodeShares(
        cpu_milli=int(columns.cpu[node]),
        qos=columns.qos[mine],
        weight=weights,
        request=columns.pod_cpu[mine],
        usage=columns.usage[mine],
        burstable_weight=weight(BURSTABLE),
        best_effort_weight=weight(BEST_EFFORT),
        burstable_limit=levels[BURSTABLE].memory,
        best_effort_limit=levels[BEST_EFFORT].memory,
    )
