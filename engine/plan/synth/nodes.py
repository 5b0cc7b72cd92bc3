"""Generate nodes of a synthetic cluster: machine kinds, amounts left for pods, readings of memory, disk and
PIDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.api.encoding.json_text import encode_json
from engine.plan.reading.node_rows import READINGS
from engine.tables import ResourceNames

TAKEN_AT: Final = 1_750_000_000.0
GPU: Final = "nvidia.com/gpu"
Ki, Mi, Gi = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class Machine:
    """Describe one kind of node: its share of the cluster, cores, memory in GiB, GPUs."""

    name: str
    share: float
    cores: int
    memory: int
    gpus: int = 0


MACHINES = (
    Machine("m4", 0.20, 4, 16),
    Machine("m8", 0.28, 8, 32),
    Machine("m16", 0.27, 16, 64),
    Machine("m32", 0.15, 32, 128),
    Machine("m64", 0.06, 64, 256),
    Machine("g8", 0.04, 96, 768, 8),
)


def node_table(
    random: np.random.Generator,
    machine: NDArray[np.int64],
    used: NDArray[np.int64],
    resources: ResourceNames,
    max_pods: int,
) -> pa.Table:
    """Return one row per node; `machine` indexes `MACHINES`, `used` is the memory that its pods use."""
    nodes = len(machine)
    cores = np.array([m.cores for m in MACHINES])[machine] * 1000
    memory = np.array([m.memory for m in MACHINES])[machine] * Gi
    gpus = np.array([m.gpus for m in MACHINES])[machine]
    storage = np.where(cores >= 32_000, 400, 120) * Gi
    capacity = {"cpu": cores, "memory": memory, "ephemeral-storage": storage, GPU: gpus}
    allocatable = {
        "cpu": (cores * 0.94).astype(np.int64),
        "memory": (memory * 0.93).astype(np.int64) - 100 * Mi,
        "ephemeral-storage": (storage * 0.9).astype(np.int64),
        GPU: gpus,
    }
    names = [f"node-{index:05d}" for index in range(nodes)]
    columns: dict[str, Any] = {"name": pa.array(names)}
    documents = []
    for index, name in enumerate(names):
        amounts = {
            group: {
                "cpu": f"{values['cpu'][index]}m",
                "memory": str(values["memory"][index]),
                "pods": str(max_pods),
                "ephemeral-storage": str(values["ephemeral-storage"][index]),
            } | ({GPU: str(gpus[index])} if gpus[index] else {})
            for group, values in (("allocatable", allocatable), ("capacity", capacity))
        }  # fmt: skip
        labels = {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": MACHINES[machine[index]].name,
            "topology.kubernetes.io/zone": f"zone-{'abc'[index % 3]}",
        }  # fmt: skip
        document = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": amounts}
        documents.append(encode_json(document).decode())
    columns |= {
        "document": pa.array(documents, pa.large_string()),
        "known": np.ones(nodes, bool),
        "ready": pa.array([True] * nodes, pa.bool_()),
        "unschedulable": np.zeros(nodes, bool),
        "images_truncated": np.zeros(nodes, bool),
        "kubelet_version": pa.array(["v1.32.10"] * nodes),
        "os": pa.array(["linux"] * nodes),
        "arch": pa.array(["amd64"] * nodes),
        "config": pa.array([""] * nodes, pa.large_string()),
    }
    for name in resources.names:
        for group, values in (("allocatable", allocatable), ("capacity", capacity)):
            columns[f"{group}/{name}"] = np.where((name == GPU) & (gpus == 0), -1, values[name])
    columns["allocatable/pods"] = columns["capacity/pods"] = np.full(nodes, max_pods)
    available = np.maximum(memory - used - (memory * 0.04).astype(np.int64), 64 * Mi)
    full = random.beta(5, 3, nodes)
    readings = {
        "memory_capacity": memory,
        "memory_available": available,
        "memory_working_set": memory - available,
        "nodefs_capacity": storage,
        "nodefs_available": (storage * (1 - full * 0.95)).astype(np.int64),
        "nodefs_inodes": storage // (16 * Ki),
        "nodefs_inodes_free": (storage // (16 * Ki) * (1 - full * 0.4)).astype(np.int64),
        "imagefs_capacity": storage,
        "imagefs_available": (storage * (1 - full * 0.95)).astype(np.int64),
        "imagefs_inodes": storage // (16 * Ki),
        "imagefs_inodes_free": (storage // (16 * Ki) * (1 - full * 0.4)).astype(np.int64),
        "pid_max": np.full(nodes, 32768 * 4),
        "pid_used": random.integers(1500, 9000, nodes),
        "read_at": np.full(nodes, int(TAKEN_AT)),
    }
    for reading in READINGS:
        known = readings.get(reading)
        columns[f"reading/{reading}"] = pa.nulls(nodes, pa.int64()) if known is None else known
    return pa.table(columns)
