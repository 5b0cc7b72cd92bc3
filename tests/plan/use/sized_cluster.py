"""A small cluster of workloads as kubectl prints it, and its use over time, for tests of sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.plan import Snapshot, load_snapshot
from engine.plan.history.codes import encode
from engine.plan.history.history import HistoryBuilder, Times
from engine.plan.history.history_file import write_history

MI, GI = 1 << 20, 1 << 30
TIMES = Times(1_799_900_100, 300, 288)
CONTROLLERS = {"Deployment": "ReplicaSet", "CronJob": "Job"}


@dataclass
class SizedCluster:
    """Collect objects and use; `write` gives the files that the planner reads."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    history: HistoryBuilder = field(default_factory=lambda: HistoryBuilder(TIMES))

    def node(self, name: str, cpu: str = "4", memory: str = "16Gi", **labels: str) -> None:
        amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
        labels = {name.replace("_", "-").replace("--", "/"): value for name, value in labels.items()}
        self.objects.append(
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | labels},
                "spec": {},
                "status": {
                    "capacity": amounts, "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.2", "operatingSystem": "linux"},
                },
            }
        )  # fmt: skip

    def pods(
        self,
        owner: str,
        nodes: Sequence[str],
        requests: Mapping[str, str],
        limits: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> list[str]:
        """Add a pod on each of these nodes, an empty one is pending; `owner` as `Deployment shop/web`."""
        kind, _, path = owner.partition(" ")
        namespace, _, name = path.partition("/")
        made = []
        for number, node in enumerate(nodes):
            pod = {
                "Deployment": f"{name}-7d9f8b6c5d-{number:05d}",
                "StatefulSet": f"{name}-{number}",
                "Pod": name,
            }.get(kind, f"{name}-{number:05d}")
            controller = {"Deployment": f"{name}-7d9f8b6c5d"}.get(kind, name)
            reference = {"kind": CONTROLLERS.get(kind, kind), "name": controller, "controller": True}
            labels = {"app": name} | ({"pod-template-hash": "7d9f8b6c5d"} if kind == "Deployment" else {})
            resources = {"requests": dict(requests)} | ({"limits": dict(limits)} if limits else {})
            container = {"name": "app", "image": "example.com/app:1", "resources": resources}
            self.objects.append(
                {
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": pod, "namespace": namespace, "uid": f"{namespace}-{pod}",
                                 "labels": labels, "ownerReferences": [] if kind == "Pod" else [reference]},
                    "spec": {"nodeName": node, "containers": [container]} | spec,
                    "status": {"phase": "Running" if node else "Pending"},
                }
            )  # fmt: skip
            made.append(f"{namespace}/{pod}")
        return made

    def use(self, pods: Sequence[str], memory: Any, cpu: Any) -> None:
        """Record bytes and cores of each pod: a number, or an array of all moments with NaN for none."""
        for pod in pods:
            namespace, _, name = pod.partition("/")
            for measure, values in (("memory", memory), ("cpu", np.multiply(cpu, 1e6))):
                row = self.history.row((measure, "", namespace, name, "app"))
                row[:] = encode(np.broadcast_to(np.asarray(values, float), TIMES.count))

    def node_use(self, name: str, memory: Any, cpu: Any = 0.0, part: str = "node") -> None:
        """Record bytes and cores of a node, or of its `pods` or `system` slice."""
        for measure, values in (("memory", memory), ("cpu", np.multiply(cpu, 1e6))):
            row = self.history.row((f"{part}-{measure}", name, "", "", ""))
            row[:] = encode(np.broadcast_to(np.asarray(values, float), TIMES.count))

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Return the files of the cluster and of its history."""
        cluster, history = directory / "cluster.json", directory / "use.arrow"
        cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": self.objects}))
        write_history(self.history.history({"sources": ["made up"]}), history)
        return cluster, history

    def snapshot(self, directory: Path) -> Snapshot:
        return load_snapshot([str(self.write(directory)[0])], strict=True)


def at_peak(usual: float, peak: float, *moments: int) -> np.ndarray:
    """Return use that is `usual` but for a few moments."""
    values = np.full(TIMES.count, float(usual))
    values[list(moments)] = peak
    return values
