"""rollout over random clusters: preemptions and evictions, computed again by the documented rules in plain
Python.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.plan import load_snapshot
from engine.plan.questions.rollout import RolloutParameters, rollout

MI, GI = 1 << 20, 1 << 30
CRITICAL = 2_000_000_000
PRIORITIES = [-5, 0, 7, 1000, CRITICAL, CRITICAL + 1000]
RESOURCES = ("pods", "cpu", "memory")
MEMORY = "memory.available"
DEFAULT_THRESHOLD = 100 * MI


@dataclass
class PlainPod:
    """Hold a pod: its requests (milli-CPU, bytes, and 1 of `pods`), and the memory that it uses in bytes."""

    name: str
    created: int
    qos: str
    priority: int
    mirror: bool
    requests: dict[str, int]
    use: int

    @property
    def critical(self) -> bool:
        return self.mirror or self.priority >= CRITICAL

    def document(self, node: str) -> dict[str, Any]:
        amounts = {"cpu": f"{self.requests['cpu']}m", "memory": str(self.requests["memory"])}
        resources = {
            "BestEffort": {},
            "Burstable": {"requests": amounts},
            "Guaranteed": {"requests": amounts, "limits": amounts},
        }[self.qos]
        meta = {"name": self.name, "namespace": "shop", "uid": self.name,
                "creationTimestamp": f"2026-01-01T00:00:{self.created:02d}Z"}  # fmt: skip
        if self.mirror:
            meta["annotations"] = {"kubernetes.io/config.mirror": "1", "kubernetes.io/config.source": "file"}
        spec = {"nodeName": node, "priority": self.priority,
                "containers": [{"name": "c", "resources": resources}]}  # fmt: skip
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec,
                "status": {"phase": "Running"}}  # fmt: skip


@dataclass
class PlainNode:
    """Hold a node: capacity (milli-CPU, bytes), its pods, and in bytes what is available on the node and, if
    the statistics have it, in the cgroup of all pods. Its configuration, if it is known, reserves `reserved`
    bytes.
    """

    name: str
    capacity: dict[str, int]
    available: dict[str, int]
    reserved: int | None
    pods: list[PlainPod] = field(default_factory=list)

    @property
    def allocatable(self) -> int:
        """Return the memory that pods may request today: less than the configuration says."""
        return self.capacity["memory"] - (self.reserved or 0) - 300 * MI

    def allocatable_after(self, reserved: int, threshold: int) -> int:
        """Return the memory that pods may request if the change reserves so many bytes more."""
        if self.reserved is None:
            return max(self.capacity["memory"] - reserved - threshold, 0)
        return max(self.allocatable - reserved - threshold + DEFAULT_THRESHOLD, 0)

    def limit(self, reserved: int) -> int:
        """Return how many bytes all pods may use if the change reserves so many more."""
        if "pods" in self.available and (self.reserved is not None or not reserved):
            return self.used + self.available["pods"] - reserved
        return self.capacity["memory"] - (self.reserved or 0) - reserved

    @property
    def used(self) -> int:
        """Return the bytes that its pods use."""
        return sum(pod.use for pod in self.pods)

    def documents(self) -> list[dict[str, Any]]:
        """Return the Node, its statistics and its pods."""
        cpu, memory = self.capacity["cpu"], self.capacity["memory"]
        today = {"cpu": f"{cpu - 100}m", "memory": str(self.allocatable), "pods": "110"}
        groups = [
            {"name": "pods", "memory": {"availableBytes": free, "workingSetBytes": self.used}}
            for name, free in self.available.items()
            if name == "pods"
        ]
        stats = {
            "node": {
                "nodeName": self.name,
                "memory": {"availableBytes": self.available["node"], "workingSetBytes": self.used},
                "systemContainers": groups,
            },
            "pods": [
                {"podRef": {"name": pod.name, "namespace": "shop"}, "memory": {"workingSetBytes": pod.use}}
                for pod in self.pods
            ],
        }
        status = {"capacity": {"cpu": f"{cpu}m", "memory": str(memory), "pods": "110"}, "allocatable": today,
                  "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}, "status": status}
        return [node, stats, *(pod.document(self.name) for pod in self.pods)]


def some_nodes(random: np.random.Generator) -> list[PlainNode]:
    """Return nodes with pods of all classes, some of which are critical."""
    found = []
    for number in range(int(random.integers(1, 4))):
        cpu, memory = 1000 * int(random.integers(1, 9)), int(random.integers(2, 17)) * GI
        available = {"node": int(random.integers(0, 2500)) * MI}
        if random.random() < 0.5:
            available["pods"] = int(random.integers(0, 2500)) * MI
        reserved = int(random.integers(0, 1000)) * MI if random.random() < 0.5 else None
        node = PlainNode(f"n{number}", {"cpu": cpu, "memory": memory}, available, reserved)
        for place in range(int(random.integers(0, 16))):
            qos = str(random.choice(["BestEffort", "Burstable", "Guaranteed"]))
            requests = {"pods": 1, "cpu": 0, "memory": 0}
            if qos != "BestEffort":
                # A few sizes, so that several pods come equally near to what is short.
                requests["cpu"] = int(random.integers(1, 5)) * cpu // 16
                requests["memory"] = int(random.integers(1, 5)) * memory // 16
            priority = random.choice(PRIORITIES, p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05])
            node.pods.append(
                PlainPod(
                    f"p{number}-{place}", int(random.integers(0, 60)), qos, int(priority),
                    bool(random.random() < 0.05), requests,
                    int(random.uniform(0, 2) * (requests["memory"] or 300 * MI)),
                )
            )  # fmt: skip
        # The pods of a node cannot use more than it has.
        least = 1 + sum(pod.use for pod in node.pods) // (memory - GI)
        for pod in node.pods:
            pod.use //= least
        found.append(node)
    return found


def some_changes(random: np.random.Generator) -> dict[str, Any]:
    """Return random fields of a configuration that end pods."""
    changes: dict[str, Any] = {}
    if random.random() < 0.6:
        changes["systemReserved"] = {
            "cpu": f"{random.integers(0, 3000)}m",
            "memory": f"{random.integers(0, 4000)}Mi",
        }
    if random.random() < 0.5:
        changes["maxPods"] = int(random.integers(1, 16))
    if random.random() < 0.6:
        changes["evictionHard"] = {MEMORY: f"{random.integers(1, 1500)}Mi"}
    if random.random() < 0.4:
        changes["evictionSoft"] = {MEMORY: f"{random.integers(500, 2500)}Mi"}
        changes["evictionSoftGracePeriod"] = {MEMORY: f"{random.integers(1, 200)}s"}
    if random.random() < 0.4:
        changes["evictionMinimumReclaim"] = {MEMORY: f"{random.integers(1, 1000)}Mi"}
    return changes or {"maxPods": 3}


def bytes_of(changes: dict[str, Any], name: str) -> int | None:
    """Return an amount of memory.available in bytes, None without one."""
    text = changes.get(name, {}).get(MEMORY)
    return int(text.removesuffix("Mi")) * MI if text else None


class Admission:
    """Admit pods one after another as the kubelet does, with preemption for critical ones."""

    def __init__(self, pods: list[PlainPod], allocatable: dict[str, int]) -> None:
        self._allocatable = allocatable
        self.admitted: list[PlainPod] = []
        self.refused: dict[str, str] = {}
        self.victims: dict[str, str] = {}
        for pod in sorted(pods, key=lambda one: one.created):
            self._judge(pod)

    def _judge(self, pod: PlainPod) -> None:
        short = {}
        for name in RESOURCES:
            used = sum(other.requests[name] for other in self.admitted)
            missing = used + pod.requests[name] - self._allocatable[name]
            if pod.requests[name] and missing > 0:
                short[name] = missing
        if short and not pod.critical:
            self.refused[pod.name] = f"OutOf{next(iter(short))}"
            return
        victims = chosen_victims(self.admitted, pod, short) if short else []
        if victims is None:
            self.refused[pod.name] = "UnexpectedAdmissionError"
            return
        for victim in victims:
            self.victims[victim.name] = f"for the critical pod shop/{pod.name}"
            self.admitted.remove(victim)
        self.admitted.append(pod)

    @property
    def ended(self) -> set[str]:
        return {*self.refused, *self.victims}


def chosen_victims(pods: list[PlainPod], critical: PlainPod, short: dict[str, int]) -> list[PlainPod] | None:
    """Return the victims: Guaranteed pods only for what the others cannot cover, then Burstable, then
    BestEffort; None if all pods together are not enough.
    """
    of_class: dict[str, list[PlainPod]] = {"BestEffort": [], "Burstable": [], "Guaranteed": []}
    for pod in pods:
        if not pod.critical or pod.priority < critical.priority:
            of_class[pod.qos].append(pod)
    best, burst, guaranteed = of_class.values()
    first = nearest_first(guaranteed, left_after(short, best + burst))
    if first is None:
        return None
    second = nearest_first(burst, left_after(short, best + first))
    if second is None:
        return None
    third = nearest_first(best, left_after(short, first + second))
    return None if third is None else first + second + third


def left_after(short: dict[str, int], pods: list[PlainPod]) -> dict[str, int]:
    left = {name: amount - sum(pod.requests[name] for pod in pods) for name, amount in short.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def nearest_first(pods: list[PlainPod], short: dict[str, int]) -> list[PlainPod] | None:
    """Return pods of one class in the order of choice until nothing is short, None if they are too few."""
    chosen, pods = list[PlainPod](), list(pods)
    while short:
        if not pods:
            return None
        best = min(pods, key=lambda pod: (
            distance(pod, short), pod.requests["memory"], pod.requests["cpu"], -pods.index(pod)
        ))  # fmt: skip
        chosen.append(best)
        # The last pod takes the place of the chosen one, which decides between pods that are alike.
        pods[pods.index(best)] = pods[-1]
        pods.pop()
        short = left_after(short, [best])
    return chosen


def distance(pod: PlainPod, short: dict[str, int]) -> float:
    """Return the sum of the squared shares of the shortage that are left without a pod."""
    return sum((max(need - pod.requests[name], 0) / need) ** 2 for name, need in short.items())


def evicted(node: PlainNode, limit: int, hard: int, soft: int | None, reclaim: int) -> list[str]:
    """Return the pods that a node evicts, in order. Each frees what it uses, of the node and of all pods,
    which may use `limit` bytes together. If they use more, the kernel holds them to it.

    Hard thresholds watch both amounts, a soft one only that of the node. A threshold that is met must be
    exceeded by `reclaim` bytes afterwards.
    """
    free = {"node": node.available["node"]}
    # A node that reserves all its memory has no limit to watch.
    if limit > 0:
        free["pods"] = max(limit - node.used, 0)
    waiting = sorted(
        (pod for pod in node.pods if not pod.critical),
        key=lambda pod: (pod.use <= pod.requests["memory"], pod.priority, pod.requests["memory"] - pod.use),
    )
    gone: list[str] = []
    for watched, threshold in ((("node", "pods"), hard), (("node",), soft or 0)):
        met = [name for name in watched if name in free and free[name] < threshold]
        while waiting and any(free[name] < threshold + reclaim for name in met):
            pod = waiting.pop(0)
            gone.append(pod.name)
            free = {name: amount + pod.use for name, amount in free.items()}
    return gone


@pytest.mark.parametrize("seed", range(120))
def test_pods_that_end_are_those_of_the_rules(seed: int, tmp_path: Path) -> None:
    """Preempt and refuse in the order of creation, then evict those that exceed their requests most."""
    random = np.random.default_rng(seed)
    nodes, changes = some_nodes(random), some_changes(random)
    with (tmp_path / "cluster.json").open("w") as file:
        file.writelines(json.dumps(one) + "\n" for node in nodes for one in node.documents())
    for node in nodes:
        if node.reserved is not None:
            config = {"kubeletconfig": {"kubeReserved": {"memory": str(node.reserved)}}}
            (tmp_path / "nodes" / node.name).mkdir(parents=True)
            (tmp_path / "nodes" / node.name / "configz.json").write_text(json.dumps(config))
    rows = rollout(load_snapshot([str(tmp_path)]), RolloutParameters(changes=changes)).table.to_pylist()
    reserved = changes.get("systemReserved", {"cpu": "0m", "memory": "0Mi"})
    held_back = int(reserved["memory"].removesuffix("Mi")) * MI
    threshold = bytes_of(changes, "evictionHard") or DEFAULT_THRESHOLD
    reclaim = bytes_of(changes, "evictionMinimumReclaim") or 0
    for node in nodes:
        cpu = node.capacity["cpu"]
        less = int(reserved["cpu"].removesuffix("m")) + (0 if node.reserved is None else 100)
        today = Admission(node.pods, {"cpu": cpu - 100, "memory": node.allocatable, "pods": 110})
        after = Admission(node.pods, {
            "cpu": max(cpu - less, 0),
            "memory": node.allocatable_after(held_back, threshold),
            "pods": changes.get("maxPods", 110),
        })  # fmt: skip
        refused = {pod: why for pod, why in after.refused.items() if pod not in today.ended}
        victims = {pod: why for pod, why in after.victims.items() if pod not in today.ended}
        already = evicted(node, node.limit(0), DEFAULT_THRESHOLD, None, 0)
        limit = node.limit(held_back)
        later = evicted(node, limit, threshold, bytes_of(changes, "evictionSoft"), reclaim)
        leaving = [pod for pod in later if pod not in already and pod not in {*refused, *victims}]
        mine = [row for row in rows if row["node"] == node.name]
        found = {
            kind: {
                row["object"].removeprefix("shop/"): row["reason"] for row in mine if row["decision"] == kind
            }
            for kind in ("refuse", "victim", "evict")
        }
        assert {pod: why.partition(":")[0] for pod, why in found["refuse"].items()} == refused
        assert found["victim"] == victims
        assert list(found["evict"]) == leaving
        counted = [row["amount"] for row in mine if row["decision"] in ("affected", "unaffected")]
        assert counted == [len(refused) + len(victims) + len(leaving)]
