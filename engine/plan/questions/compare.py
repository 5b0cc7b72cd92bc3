"""Compare a cluster at two times: which nodes and pods came, went, moved and grew."""

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
    """Hold a pod that has not ended: its node (empty: none), its workload, and its requests."""

    node: str
    workload: Workload
    cpu: int
    memory: int


def compare(a: Snapshot, b: Snapshot) -> Answer:
    """Return rows `node-came`, `node-went` and `node-changed` (object the field), `workload-came`,
    `workload-went` and `workload-scaled` (amount: pods more), and per pod `pod-came`, `pod-went`,
    `pod-moved`, `pod-grew` and `pod-shrank` (amount: the change of the request).
    """
    known = set(a.node_names)
    names = [*a.node_names, *(name for name in b.node_names if name not in known), ""]
    comparison = _Comparison(a, b, Rows(names), {name: row for row, name in enumerate(names)})
    return comparison.answer()


class _Comparison:
    def __init__(self, a: Snapshot, b: Snapshot, rows: Rows, number: Mapping[str, int]) -> None:
        self._a, self._b, self._rows, self._number = a, b, rows, number
        self._counts: Counter[str] = Counter()
        self._grown: Counter[str] = Counter()

    def answer(self) -> Answer:
        self._nodes()
        before, after = _pods(self._a), _pods(self._b)
        self._workloads(before, after)
        self._pods(before, after)
        return replace(self._rows.answer(), headline=self._headline())

    def _add(self, node: str, decision: str, object: str, reason: str, amount: int, unit: str) -> None:
        self._counts[decision] += 1
        self._rows.add(self._number[node], decision, object, reason, amount, unit)

    def _nodes(self) -> None:
        at = [{name: row for row, name in enumerate(one.node_names)} for one in (self._a, self._b)]
        types = [instance_types(one) for one in (self._a, self._b)]
        for name, row in at[0].items():
            if name not in at[1]:
                self._add(name, "node-went", "", types[0][row], 1, "nodes")
                continue
            left, right = (_facts(one, rows[name]) for one, rows in zip((self._a, self._b), at, strict=True))
            for field in left.keys() | right.keys():
                if left.get(field) != right.get(field):
                    said = f"{left.get(field, 'none')} → {right.get(field, 'none')}"
                    self._add(name, "node-changed", field, said, 1, "changes")
        for name, row in at[1].items():
            if name not in at[0]:
                self._add(name, "node-came", "", types[1][row], 1, "nodes")

    def _workloads(
        self, before: Mapping[tuple[str, str], _PodState], after: Mapping[tuple[str, str], _PodState]
    ) -> None:
        counts = [Counter(one.workload for one in side.values()) for side in (before, after)]
        for workload in dict.fromkeys([*counts[0], *counts[1]]):
            had, has = counts[0][workload], counts[1][workload]
            # A pod without a controller comes and goes as a pod.
            if workload.kind == "Pod" or had == has:
                continue
            decision = "workload-scaled" if had and has else "workload-came" if has else "workload-went"
            self._add("", decision, str(workload), f"{had} → {has} pods", has - had, "pods")

    def _pods(
        self, before: Mapping[tuple[str, str], _PodState], after: Mapping[tuple[str, str], _PodState]
    ) -> None:
        for key, old in before.items():
            label, new = "/".join(key), after.get(key)
            if new is None:
                self._add(old.node, "pod-went", label, _where("from", old), 1, "pods")
                self._count(old, -1)
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
                    said = f"{name} {_amount(had, name)} → {_amount(has, name)}"
                    self._add(new.node, decision, label, said, has - had, unit)
                    self._grown[name] += has - had
        for key, new in after.items():
            if key not in before:
                self._add(new.node, "pod-came", "/".join(key), _where("to", new), 1, "pods")
                self._count(new, 1)

    def _count(self, pod: _PodState, sign: int) -> None:
        for name, _ in MEASURES:
            self._grown[name] += sign * getattr(pod, name)

    def _headline(self) -> str:
        parts = []
        for noun in ("node", "workload", "pod"):
            words = ("came", "went", "scaled", "moved", "grew", "shrank", "changed")
            changes = [(self._counts[f"{noun}-{word}"], word) for word in words]
            said = [f"{count:,} {word}" for count, word in changes if count]
            if said:
                parts.append(f"{noun}s: {', '.join(said)}")
        if not parts:
            return "Nothing changed between A and B."
        for name, _ in MEASURES:
            change = self._grown[name]
            if change:
                word = "more" if change > 0 else "less"
                parts.append(f"{_amount(abs(change), name)} {word} {name} requested")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."


def _facts(snapshot: Snapshot, node: int) -> dict[str, str]:
    """Return the fields of a node whose changes matter to pods."""
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
