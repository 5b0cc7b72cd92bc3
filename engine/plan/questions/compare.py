"""Compare a cluster at two times: nodes, workloads and pods that were added, removed or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from engine.api.amounts.sizes import quantity_size
from engine.plan.answers.answer import Answer, Rows
from engine.plan.rightsizing.workloads import Workload, Workloads
from engine.plan.snapshot.columns import NO_NODE, TERMINAL, Snapshot
from engine.plan.snapshot.node_labels import instance_types
from engine.plan.snapshot.objects import node_object

MEASURES: Final = (("cpu", "milli-CPU"), ("memory", "bytes"))


class _PodState(NamedTuple):
    """Hold a pod that has not ended: its node ("": none), its workload, and its requests in milli-CPU and
    bytes.
    """

    node: str
    workload: Workload
    cpu: int
    memory: int


def compare(a: Snapshot, b: Snapshot) -> Answer:
    """Return rows `node-came`, `node-went` and `node-changed` (object: the field), `workload-came`,
    `workload-went` and `workload-scaled` (amount: change of the number of pods), and per pod `pod-came`,
    `pod-went`, `pod-moved`, `pod-grew` and `pod-shrank` (amount: change of the request).
    """
    known = set(a.node_names)
    names = [*a.node_names, *(name for name in b.node_names if name not in known), ""]
    comparison = _Comparison(a, b, Rows(names), {name: row for row, name in enumerate(names)})
    return comparison.answer()


class _Comparison:
    """Collect the rows of a comparison. `number` maps a node's name to its row in the answer.

    `_counts` is the number of rows by decision, and `_growth` the change of all requests by resource: both
    are for the headline.
    """

    def __init__(self, a: Snapshot, b: Snapshot, rows: Rows, number: Mapping[str, int]) -> None:
        self._a, self._b, self._rows, self._number = a, b, rows, number
        self._counts: Counter[str] = Counter()
        self._growth: Counter[str] = Counter()

    def answer(self) -> Answer:
        """Return the rows of nodes, then of workloads, then of pods."""
        self._compare_nodes()
        before, after = _pods(self._a), _pods(self._b)
        self._compare_workloads(before, after)
        self._compare_pods(before, after)
        return replace(self._rows.answer(), headline=self._headline())

    def _add(self, node: str, decision: str, object: str, reason: str, amount: int, unit: str) -> None:
        self._counts[decision] += 1
        self._rows.add(self._number[node], decision, object, reason, amount, unit)

    def _compare_nodes(self) -> None:
        old, new = ({name: row for row, name in enumerate(one.node_names)} for one in (self._a, self._b))
        types = [instance_types(one) for one in (self._a, self._b)]
        for name, row in old.items():
            if name not in new:
                self._add(name, "node-went", "", types[0][row], 1, "nodes")
                continue
            before, after = _facts(self._a, row), _facts(self._b, new[name])
            # Not a set of the keys: its order differs between processes, and so would the rows.
            for field in before | after:
                if before.get(field) != after.get(field):
                    change = f"{before.get(field, 'none')} → {after.get(field, 'none')}"
                    self._add(name, "node-changed", field, change, 1, "changes")
        for name, row in new.items():
            if name not in old:
                self._add(name, "node-came", "", types[1][row], 1, "nodes")

    def _compare_workloads(
        self, before: Mapping[tuple[str, str], _PodState], after: Mapping[tuple[str, str], _PodState]
    ) -> None:
        counts = [Counter(one.workload for one in side.values()) for side in (before, after)]
        for workload in dict.fromkeys([*counts[0], *counts[1]]):
            had, has = counts[0][workload], counts[1][workload]
            # A pod without a controller has a row of its own already.
            if workload.kind == "Pod" or had == has:
                continue
            decision = "workload-scaled" if had and has else "workload-came" if has else "workload-went"
            self._add("", decision, str(workload), f"{had} → {has} pods", has - had, "pods")

    def _compare_pods(
        self, before: Mapping[tuple[str, str], _PodState], after: Mapping[tuple[str, str], _PodState]
    ) -> None:
        for key, old in before.items():
            label, new = "/".join(key), after.get(key)
            if new is None:
                self._add(old.node, "pod-went", label, _where("from", old), 1, "pods")
                self._add_growth(old, -1)
                continue
            if new.node != old.node:
                self._add(
                    new.node,
                    "pod-moved",
                    label,
                    f"to {new.node or 'no node'} from {old.node or 'no node'}",
                    1,
                    "pods",
                )
            for name, unit in MEASURES:
                had, has = getattr(old, name), getattr(new, name)
                if had != has:
                    decision = "pod-grew" if has > had else "pod-shrank"
                    change = f"{name} {_amount(had, name)} → {_amount(has, name)}"
                    self._add(new.node, decision, label, change, has - had, unit)
                    self._growth[name] += has - had
        for key, new in after.items():
            if key not in before:
                self._add(new.node, "pod-came", "/".join(key), _where("to", new), 1, "pods")
                self._add_growth(new, 1)

    def _add_growth(self, pod: _PodState, sign: int) -> None:
        for name, _ in MEASURES:
            self._growth[name] += sign * getattr(pod, name)

    def _headline(self) -> str:
        parts = []
        for noun in ("node", "workload", "pod"):
            words = ("came", "went", "scaled", "moved", "grew", "shrank", "changed")
            changes = [(self._counts[f"{noun}-{word}"], word) for word in words]
            named = [f"{count:,} {word}" for count, word in changes if count]
            if named:
                parts.append(f"{noun}s: {', '.join(named)}")
        if not parts:
            return "Nothing changed between A and B."
        for name, _ in MEASURES:
            change = self._growth[name]
            if change:
                word = "more" if change > 0 else "less"
                parts.append(f"{_amount(abs(change), name)} {word} {name} requested")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."


def _facts(snapshot: Snapshot, node: int) -> dict[str, str]:
    """Return the fields of a node whose changes matter to pods, as texts by name."""
    found = node_object(snapshot, node)
    facts = {f"label {key}": value for key, value in found.labels.items()}
    facts |= {f"taint {one.key}": f"{one.value}:{one.effect}" for one in found.spec.taints or ()}
    facts |= {f"allocatable {name}": str(amount) for name, amount in found.allocatable.items()}
    for name in ("ready", "unschedulable", "kubelet_version"):
        if name in snapshot.nodes.column_names:
            facts[name.replace("_", " ")] = str(snapshot.nodes[name][node].as_py())
    return facts


def _pods(snapshot: Snapshot) -> dict[tuple[str, str], _PodState]:
    """Return the pods that have not ended, by namespace and name."""
    workloads = Workloads(snapshot)
    nodes = [*snapshot.node_names, ""]
    columns = [snapshot.pods[name].to_pylist() for name in ("namespace", "name", "node", "phase")]
    template = snapshot.pods["template"].to_numpy()
    amounts = [snapshot.templates[f"request/{name}"].to_numpy()[template].tolist() for name, _ in MEASURES]
    of_pod = workloads.of_pod.tolist()
    found = {}
    for namespace, name, node, phase, workload, cpu, memory in zip(*columns, of_pod, *amounts, strict=True):
        if phase not in TERMINAL:
            at = nodes[node] if node != NO_NODE else ""
            found[namespace, name] = _PodState(at, workloads.all[workload], cpu, memory)
    return found


def _where(word: str, pod: _PodState) -> str:
    return f"{word} {pod.node} ({pod.workload})" if pod.node else f"({pod.workload})"


def _amount(value: int, name: str) -> str:
    return quantity_size(value) if name == "memory" else f"{value}m"
