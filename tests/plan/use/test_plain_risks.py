"""rightsize over random clusters: which nodes are not needed, where pods go, and what happens to them,
computed again by the documented rules in plain Python.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.plan import load_snapshot
from engine.plan.history.codes import encode
from engine.plan.questions.rightsize import RightsizeParameters, rightsize
from tests.plan.use.sized_cluster import GI, MI, TIMES, SizedCluster
from tests.plan.use.test_plain_rules import recorded

CRITICAL = 2_000_000_000
ZONE = "topology.kubernetes.io/zone"
MEASURES = ("memory", "cpu")
SIDECAR = {"cpu": 10, "memory": 20 * MI}
CODE_ERROR = 3e-4
"""The relative error of recorded values, by which use may be above a limit."""

Amounts = dict[str, int]
"""Milli-CPU and bytes."""


@dataclass
class PlainNode:
    """Hold a node; `use` is the recorded memory in bytes by moment, None if there is no record."""

    name: str
    capacity: Amounts
    allocatable: Amounts
    slots: int
    zone: str
    tainted: bool
    cordoned: bool
    ready: bool
    control_plane: bool
    use: np.ndarray | None = None

    @property
    def open(self) -> bool:
        return self.ready and not self.cordoned


@dataclass
class PlainWorkload:
    """Hold a workload: requests now and then, a memory limit in bytes, and where its pods may go."""

    kind: str
    name: str
    now: Amounts
    then: Amounts
    limit: int | None
    priority: int
    zone: str
    tolerates: bool
    apart: str
    sidecar: bool
    mirror: bool
    undisruptable: bool = False

    @property
    def bound(self) -> bool:
        """Return whether its pods end with their node."""
        return self.mirror or self.kind == "DaemonSet"

    @property
    def new_limit(self) -> int | None:
        return None if self.limit is None else max(self.limit, self.then["memory"])


@dataclass(eq=False)
class PlainPod:
    """Hold a pod: its recorded use by measure, in bytes and micro-CPU by moment, NaN for none."""

    label: str
    of: PlainWorkload
    node: str
    use: dict[str, np.ndarray] = field(default_factory=dict)
    app_memory: np.ndarray | None = None

    def requests(self, new: bool) -> Amounts:
        of_app = self.of.then if new else self.of.now
        more = SIDECAR if self.of.sidecar else {"cpu": 0, "memory": 0}
        return {name: of_app[name] + more[name] for name in of_app}


@dataclass
class PlainCluster:
    """Hold a random cluster, and the files of it."""

    nodes: list[PlainNode]
    workloads: list[PlainWorkload]
    pods: list[PlainPod]
    made: SizedCluster

    def write(self, directory: Path) -> tuple[Path, Path, Path]:
        """Return the files of the cluster, its history, and the new requests."""
        wanted = [
            {"namespace": "shop", "workload": one.name, "container": "app",
             "cpu": f"{one.then['cpu']}m", "memory": str(one.then["memory"])}
            for one in self.workloads
        ]  # fmt: skip
        sizes = directory / "sizes.json"
        sizes.write_text(json.dumps({"items": wanted}))
        return *self.made.write(directory), sizes


def a_cluster(random: np.random.Generator) -> PlainCluster:
    made = SizedCluster()
    found = PlainCluster(some_nodes(random, made), [], [], made)
    for number in range(int(random.integers(2, 7))):
        _add_workload(random, found, number)
    # In a snapshot the pods of a node stand together, which decides between pods that are alike.
    found.pods.sort(key=lambda pod: [node.name for node in found.nodes].index(pod.node))
    for node in found.nodes:
        if random.random() < 0.5:
            pods = sum(np.nan_to_num(pod.use["memory"]) for pod in found.pods if pod.node == node.name)
            node.use = recorded(pods + random.uniform(0.1, 1.5) * GI * made_up(random, 1))
            made.history.row(("node-memory", node.name, "", "", ""))[:] = encode(node.use)
    return found


def some_nodes(random: np.random.Generator, made: SizedCluster) -> list[PlainNode]:
    found = []
    for number in range(int(random.integers(2, 7))):
        cpu, memory = 1000 * int(random.choice([2, 4, 8])), int(random.choice([4, 8, 16])) * GI
        held_back = int(random.integers(100, 1000))
        tainted, cordoned, away, control_plane = (
            bool(random.random() < chance) for chance in (0.2, 0.1, 0.1, 0.1)
        )
        node = PlainNode(
            f"n{number}", {"cpu": cpu, "memory": memory},
            {"cpu": cpu - held_back, "memory": memory - held_back * MI},
            int(random.choice([110, 4])), str(random.choice(["a", "b"])),
            tainted, cordoned, not away, control_plane,
        )  # fmt: skip
        labels = {ZONE: node.zone} | (
            {"node-role.kubernetes.io/control-plane": ""} if node.control_plane else {}
        )
        made.node(node.name)
        document = made.objects[-1]
        document["metadata"]["labels"] |= labels
        document["spec"] = {"unschedulable": node.cordoned}
        if node.tainted:
            document["spec"]["taints"] = [{"key": "dedicated", "effect": "NoSchedule"}]
        amounts = {
            name: {"cpu": f"{values['cpu']}m", "memory": str(values["memory"]), "pods": str(node.slots)}
            for name, values in (("capacity", node.capacity), ("allocatable", node.allocatable))
        }
        ready = [{"type": "Ready", "status": "True" if node.ready else "False"}]
        document["status"] |= amounts | {"conditions": ready}
        found.append(node)
    return found


def made_up(random: np.random.Generator, usual: float) -> np.ndarray:
    """Return float64[moments] around `usual`, some with missing moments."""
    values = usual * (1 + 0.3 * random.standard_normal(TIMES.count)).clip(0.01, 3)
    if random.random() < 0.3:
        values[random.random(TIMES.count) < 0.1] = np.nan
    if random.random() < 0.2:
        values[: int(random.integers(1, TIMES.count))] = np.nan
    return values


def _add_workload(random: np.random.Generator, cluster: PlainCluster, number: int) -> None:
    kind = str(random.choice(["Deployment", "StatefulSet", "DaemonSet", "Pod"], p=[0.5, 0.3, 0.1, 0.1]))
    now = {"cpu": int(random.integers(20, 1500)), "memory": int(random.integers(64, 3000)) * MI}
    one = PlainWorkload(
        kind, f"w{number}", now,
        {name: max(int(value * random.uniform(0.2, 1.2)), 1) for name, value in now.items()},
        int(now["memory"] * random.uniform(1, 1.5)) if random.random() < 0.4 else None,
        int(random.choice([-1, 0, 50, CRITICAL], p=[0.2, 0.5, 0.2, 0.1])),
        str(random.choice(["", "a", "b"], p=[0.7, 0.15, 0.15])), bool(random.random() < 0.5),
        str(random.choice(["", f"w{number}", "w0"], p=[0.7, 0.2, 0.1])),
        bool(random.random() < 0.3), kind == "Pod" and bool(random.random() < 0.5),
    )  # fmt: skip
    cluster.workloads.append(one)
    on = [str(name) for name in random.choice([node.name for node in cluster.nodes], random.integers(1, 6))]
    # A pending pod requests nothing anywhere.
    on = on[:1] if kind == "Pod" else [*dict.fromkeys(on)] if kind == "DaemonSet" else [*on, ""]
    for label, node in zip(
        cluster.made.pods(f"{kind} shop/{one.name}", on, {}, **_spec(one)), on, strict=True
    ):
        if one.mirror:
            notes = {"kubernetes.io/config.mirror": "1", "kubernetes.io/config.source": "file"}
            cluster.made.objects[-1]["metadata"]["annotations"] = notes
        if node:
            pod = PlainPod(label, one, node)
            cluster.pods.append(pod)
            _record(random, cluster.made, pod)
    if random.random() < 0.3:
        _add_budget(random, cluster, one)


def _spec(one: PlainWorkload) -> dict[str, Any]:
    """Return the pod spec of a workload with today's requests."""
    amounts = {"cpu": f"{one.now['cpu']}m", "memory": str(one.now["memory"])}
    resources: dict[str, Any] = {"requests": amounts}
    if one.limit is not None:
        resources["limits"] = {"memory": str(one.limit)}
    containers = [{"name": "app", "image": "app", "resources": resources}]
    if one.sidecar:
        least = {"cpu": f"{SIDECAR['cpu']}m", "memory": str(SIDECAR["memory"])}
        containers.append({"name": "log", "image": "log", "resources": {"requests": least}})
    spec: dict[str, Any] = {"containers": containers, "priority": one.priority}
    if one.zone:
        spec["nodeSelector"] = {ZONE: one.zone}
    if one.tolerates:
        spec["tolerations"] = [{"operator": "Exists"}]
    if one.apart:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": one.apart}}}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec["affinity"] = {"podAntiAffinity": required}
    return spec


def _record(random: np.random.Generator, made: SizedCluster, pod: PlainPod) -> None:
    """Record the use of a pod's containers, or of none of them."""
    containers = ["app", "log"] if pod.of.sidecar else ["app"]
    for measure, unit in (("memory", 1), ("cpu", 1000)):
        pod.use[measure] = np.full(TIMES.count, np.nan)
        for name in containers if random.random() < 0.9 else ():
            usual = (pod.of.then if name == "app" else SIDECAR)[measure] * unit * random.uniform(0.5, 2.5)
            values = recorded(made_up(random, usual))
            made.history.row((measure, "", "shop", pod.label.removeprefix("shop/"), name))[:] = encode(values)
            both = np.nan_to_num(pod.use[measure]) + np.nan_to_num(values)
            pod.use[measure] = np.where(np.isnan(pod.use[measure]) & np.isnan(values), np.nan, both)
            if name == "app" and measure == "memory":
                pod.app_memory = values


def _add_budget(random: np.random.Generator, cluster: PlainCluster, one: PlainWorkload) -> None:
    total = sum(pod.of is one for pod in cluster.pods)
    field_name = str(random.choice(["maxUnavailable", "minAvailable"]))
    percent = bool(random.random() < 0.5)
    amount = int(random.choice([0, 34, 67, 100])) if percent else int(random.integers(0, 4))
    count = math.ceil(total * amount / 100) if percent else amount
    one.undisruptable = (count if field_name == "maxUnavailable" else max(total - count, 0)) == 0
    spec = {field_name: f"{amount}%" if percent else amount, "selector": {"matchLabels": {"app": one.name}}}
    cluster.made.objects.append(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
         "metadata": {"name": one.name, "namespace": "shop"}, "spec": spec}
    )  # fmt: skip


class Emptied:
    """Empty nodes one after another: the `removable` ones in order, those that are `needed`, and the node of
    each pod afterwards, "" for none.
    """

    def __init__(self, cluster: PlainCluster, new: bool) -> None:
        self._cluster, self._new = cluster, new
        self.removable: list[str] = []
        self.needed: set[str] = set()
        self.on = {pod: pod.node for pod in cluster.pods}
        self._closed = {node.name for node in cluster.nodes if not node.open}
        shares = {node.name: self._share(node) for node in cluster.nodes}
        for node in sorted(cluster.nodes, key=lambda one: shares[one.name]):
            if node.open and not node.control_plane:
                self._empty(node)

    def _share(self, node: PlainNode) -> Fraction:
        used = [pod.requests(self._new) for pod in self._cluster.pods if pod.node == node.name]
        return max(
            Fraction(sum(one[name] for one in used), node.allocatable[name]) for name in node.allocatable
        )

    def _empty(self, node: PlainNode) -> None:
        there = [pod for pod, name in self.on.items() if name == node.name and not pod.of.bound]
        before = dict(self.on)
        self._closed.add(node.name)
        stuck = any(pod.of.undisruptable or pod.of.kind == "Pod" for pod in there)
        for pod in sorted(there, key=self._size, reverse=True):
            stuck = stuck or not self._move(pod)
        if stuck:
            self.on = before
            self._closed.discard(node.name)
            self.needed.add(node.name)
            return
        self.removable.append(node.name)
        self.on = {pod: "" if name == node.name else name for pod, name in self.on.items()}

    def _size(self, pod: PlainPod) -> Fraction:
        """Return the largest share of what an average node allows to request."""
        nodes = self._cluster.nodes
        return max(
            Fraction(amount * len(nodes), sum(node.allocatable[name] for node in nodes))
            for name, amount in pod.requests(self._new).items()
        )

    def _move(self, pod: PlainPod) -> bool:
        """Move a pod to the fullest node that takes it, the first of equal ones; return whether one does."""
        fits = [(self._left(node, pod), place) for place, node in enumerate(self._cluster.nodes)
                if self._takes(node, pod)]  # fmt: skip
        if fits:
            self.on[pod] = self._cluster.nodes[min(fits)[1]].name
        return bool(fits)

    def _there(self, node: PlainNode, but: PlainPod) -> list[PlainPod]:
        return [pod for pod, name in self.on.items() if name == node.name and pod is not but]

    def _left(self, node: PlainNode, pod: PlainPod) -> Fraction:
        """Return the smaller share of CPU and memory that is left with a pod."""
        pods = [*self._there(node, pod), pod]
        return min(
            Fraction(total - sum(one.requests(self._new)[name] for one in pods), total)
            for name, total in node.allocatable.items()
        )

    def _takes(self, node: PlainNode, pod: PlainPod) -> bool:
        there = self._there(node, pod)
        return (
            node.name not in self._closed
            and (pod.of.tolerates or not node.tainted)
            and pod.of.zone in ("", node.zone)
            and not any(pod.of.apart == one.of.name or one.of.apart == pod.of.name for one in there)
            and len(there) < node.slots
            and self._left(node, pod) >= 0
        )


def without_gaps(cluster: PlainCluster, measure: str) -> dict[PlainPod, np.ndarray]:
    """Return the use of each pod at each moment. Without a value, the mean of its workload at the moment
    counts, then the mean of the pod's other moments, then its request.
    """
    found = {}
    for pod in cluster.pods:
        values = pod.use[measure].copy()
        siblings = [one.use[measure] for one in cluster.pods if one.of is pod.of]
        for moment in np.flatnonzero(np.isnan(values)).tolist():
            known = [float(one[moment]) for one in siblings if not math.isnan(one[moment])]
            if known:
                values[moment] = sum(known) / len(known)
        missing = np.isnan(values)
        request = pod.requests(new=False)[measure] * (1000 if measure == "cpu" else 1)
        values[missing] = request if missing.all() else values[~missing].mean()
        found[pod] = values
    return found


class Risks:
    """Compute what happens on each node with these requests and places: `pressure` (moments by node),
    `evicted` (pods by node, in order) and `squeezed` (milli-CPU that a pod lacks).
    """

    def __init__(
        self, cluster: PlainCluster, on: dict[PlainPod, str], new: bool, threshold: int, reclaim: int
    ) -> None:
        self.pressure: dict[str, int] = {}
        self.evicted: dict[str, list[str]] = {}
        self.squeezed: dict[str, float] = {}
        use = {measure: without_gaps(cluster, measure) for measure in MEASURES}
        for node in cluster.nodes:
            pods = [pod for pod in cluster.pods if on[pod] == node.name]
            if not pods:
                continue
            before = [use["memory"][pod] for pod in cluster.pods if pod.node == node.name]
            outside = _outside(node, sum(before))
            memory = {pod: use["memory"][pod] for pod in pods}
            # The default threshold is part of what nodes do not let pods request.
            limits = (node.capacity["memory"] - outside, node.allocatable["memory"] + 100 * MI)
            self._press(node, memory, limits, new, threshold, reclaim)
            self._squeeze(node, {pod: use["cpu"][pod] for pod in pods}, new)

    def _press(
        self, node: PlainNode, memory: dict[PlainPod, np.ndarray], limits: tuple[int, int], new: bool,
        threshold: int, reclaim: int,
    ) -> None:  # fmt: skip
        free = min(limits) - sum(memory.values())
        if not (free < threshold).any():
            return
        self.pressure[node.name] = int((free < threshold).sum())
        worst = int(free.argmin())
        now = {pod: int(values[worst]) for pod, values in memory.items()}

        def turn(pod: PlainPod) -> tuple[bool, int, int]:
            excess = now[pod] - pod.requests(new)["memory"]
            return excess <= 0, pod.of.priority, -excess

        waiting = sorted((pod for pod in now if not pod.of.mirror and pod.of.priority < CRITICAL), key=turn)
        met = [limit for limit in limits if limit - sum(now.values()) < threshold]
        gone: list[str] = []
        while waiting and any(limit - sum(now.values()) < threshold + reclaim for limit in met):
            pod = waiting.pop(0)
            del now[pod]
            gone.append(pod.label)
        self.evicted[node.name] = gone

    def _squeeze(self, node: PlainNode, cpu: dict[PlainPod, np.ndarray], new: bool) -> None:
        demand = sum(cpu.values()) / 1000
        worst, left = int(demand.argmax()), float(node.capacity["cpu"])
        if demand[worst] <= left:
            return
        wanted = {pod: float(values[worst]) / 1000 for pod, values in cpu.items()}
        weight = {pod: max(pod.requests(new)["cpu"], 2) for pod in cpu}
        # Those that want least for their weight get all of it, which leaves more to the others.
        waiting = sorted(wanted, key=lambda pod: wanted[pod] / weight[pod])
        while waiting:
            got = min(wanted[waiting[0]], left * weight[waiting[0]] / sum(weight[pod] for pod in waiting))
            pod = waiting.pop(0)
            left -= got
            if got < 0.9 * wanted[pod]:
                self.squeezed[pod.label] = wanted[pod] - got


def _outside(node: PlainNode, pods: Any) -> int:
    """Return the bytes that a node uses outside of pods: the median of its record, or what it reserves."""
    if node.use is None:
        return node.capacity["memory"] - node.allocatable["memory"]
    differences = sorted(value for value in (node.use - pods).tolist() if not math.isnan(value))
    middle = len(differences) // 2
    both = differences[middle - 1 + len(differences) % 2 : middle + 1]
    return max(int(sum(both) / len(both)), 0)


@pytest.mark.parametrize("seed", range(100))
def test_nodes_that_are_not_needed_and_pods_at_risk_are_those_of_the_rules(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    cluster = a_cluster(random)
    path, history, sizes = cluster.write(tmp_path)
    threshold, reclaim, changes = 100 * MI, 0, dict[str, Any]()
    if random.random() < 0.5:
        threshold, reclaim = (int(random.integers(1, 1000)) * MI for _ in range(2))
        changes = {"evictionHard": {"memory.available": str(threshold)},
                   "evictionMinimumReclaim": {"memory.available": str(reclaim)}}  # fmt: skip
    answer = rightsize(
        load_snapshot([str(path)]),
        RightsizeParameters(history=str(history), recommendations=str(sizes), changes=changes),
    )
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in answer.table.to_pylist():
        rows.setdefault(row["decision"], []).append(row)
    today, then = (Emptied(cluster, new) for new in (False, True))
    assert [row["node"] for row in rows.get("removable", [])] == then.removable
    assert {row["node"] for row in rows.get("needed", [])} == then.needed
    moves = {(row["node"], row["object"], row["reason"]) for row in rows.get("move", [])}
    assert moves == {(pod.node, pod.label, f"to {node}") for pod, node in then.on.items()
                     if node not in ("", pod.node)}  # fmt: skip
    counts = [len(cluster.nodes) - len(one.removable) for one in (then, today)]
    assert f"need {counts[0]} of" in answer.headline
    assert f"today's need {counts[1]}." in answer.headline
    compare_risks(cluster, then, (threshold, reclaim), rows, answer.headline)


def compare_risks(
    cluster: PlainCluster, then: Emptied, level: tuple[int, int], rows: dict[str, list[dict[str, Any]]],
    headline: str,
) -> None:  # fmt: skip
    """Compare the rows of each risk, and how many pods the headline counts."""
    risks = Risks(cluster, then.on, True, *level)
    assert {row["node"]: row["amount"] for row in rows.get("pressure", [])} == risks.pressure
    evicted: dict[str, list[str]] = {node: [] for node in risks.evicted}
    for row in rows.get("evict", []):
        evicted[row["node"]].append(row["object"])
    assert evicted == risks.evicted
    squeezed = {row["object"]: row["amount"] for row in rows.get("squeeze", [])}
    assert squeezed == pytest.approx(risks.squeezed, abs=1)
    killed = {}
    for pod in cluster.pods:
        limit = pod.of.new_limit
        if limit is not None and pod.app_memory is not None:
            times = int((pod.app_memory > limit * (1 + CODE_ERROR)).sum())
            killed |= {pod.label: times} if times else {}
    assert {row["object"]: row["amount"] for row in rows.get("oom-kill", [])} == killed
    at_risk = {*killed, *squeezed, *(pod for pods in risks.evicted.values() for pod in pods)}
    assert re.search(rf"\b{len(at_risk)} pods? at risk", headline)
    now = Risks(cluster, {pod: pod.node for pod in cluster.pods}, False, *level)
    count = sum(map(len, now.evicted.values()))
    assert (f"; {count} evicted with today's requests" in headline) == bool(count)
