"""Synthetic clusters with realistic distributions: the same seed gives the same cluster, bit for bit.

Machines come in the usual sizes; workloads have Zipf-like replica counts, log-normal requests rounded as
people round them, the three QoS classes, priorities and daemons on every node; nodes are filled to varying
degrees and never beyond what a scheduler would allow. Memory and disk in use, images with ages, and GPUs
with NUMA nodes follow the pods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.api.version import engine_version
from engine.plan.reading.templates import Templates
from engine.plan.snapshot.columns import POD_FIELDS, PRIORITY_CLASS_FIELDS, REPEATED_TEXT, Snapshot, arranged
from engine.plan.synth.devices import gpu_devices
from engine.plan.synth.images import image_sizes, node_images, with_disk_use
from engine.plan.synth.nodes import GPU, MACHINES, TAKEN_AT, Gi, Mi, node_table
from engine.tables import CRITICAL, HAS_PRIORITY, LIVE, ResourceNames

MAX_NODES = 1_000_000


PRIORITIES = ((-10, 0.08), (0, 0.74), (100_000, 0.12), (1_000_000, 0.06))
DAEMONS = (
    ("kube-proxy", 100, 50, 2_000_001_000),
    ("network-agent", 100, 120, 2_000_001_000),
    ("node-exporter", 50, 64, 0),
    ("log-shipper", 100, 200, 100_000),
)
PRIORITY_CLASSES = (
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
    ("production-high", 1_000_000),
    ("production", 100_000),
    ("batch", -10),
)
NAMESPACES = ("shop", "search", "payments", "batch", "ml", "web", "data", "platform")
CPU_STEPS = np.array(
    [5, 10, 20, 25, 50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 4000, 8000, 16000]
)
MEMORY_STEPS = np.array(
    [16, 32, 64, 100, 128, 200, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 65536]
)


@dataclass
class _Workloads:
    """Hold columns over workloads; `machine` is the kind of node they run on."""

    machine: NDArray[np.int64]
    weight: NDArray[np.floating[Any]]
    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    qos: NDArray[np.int64]
    priority: NDArray[np.int64]
    gpus: NDArray[np.int64]
    template: NDArray[np.int64]
    names: list[str]
    namespaces: NDArray[np.int64]


def synthesize(
    nodes: int,
    pods_per_node: int,
    seed: int = 1,
    *,
    images: bool = True,
    workloads_per_machine: int | None = None,
) -> Snapshot:
    """Generate a cluster of `nodes` nodes with about `pods_per_node` pods each (daemons included).

    Raise `InvalidInput` for an invalid size.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise InvalidInput(f"expected 1 to {MAX_NODES}, got {nodes}", subject="nodes")
    if not 0 <= pods_per_node <= 5000:
        raise InvalidInput(f"expected 0 to 5000, got {pods_per_node}", subject="pods-per-node")
    random = np.random.Generator(np.random.PCG64(seed))
    machine = np.sort(random.choice(len(MACHINES), nodes, p=[m.share for m in MACHINES]))
    random.shuffle(machine)
    resources = ResourceNames([GPU])
    templates = Templates(resources)
    count = workloads_per_machine or int(np.clip(nodes * pods_per_node / 200, 20, 400))
    workloads = _workloads(random, templates, count, pods_per_node)
    node, workload = _assign(random, workloads, machine, pods_per_node)
    daemons = _daemons(templates, nodes)
    table = _pods(random, workloads, node, workload, daemons, nodes)
    template_table = templates.table()
    memory = table["usage/memory"].to_numpy()
    node_column = table["node"].to_numpy()
    used = np.bincount(node_column, weights=memory, minlength=nodes).astype(np.int64)
    node_rows = node_table(random, machine, used, resources, max(110, int(pods_per_node * 1.25)))
    snapshot = arranged(
        node_rows,
        table,
        templates=template_table,
        priority_classes=pa.Table.from_pylist(
            [{"name": n, "value": v, "preemption_policy": ""} for n, v in PRIORITY_CLASSES],
            schema=pa.schema(list(PRIORITY_CLASS_FIELDS.items())),
        ),
        meta={
            "synthetic": {"nodes": nodes, "pods_per_node": pods_per_node, "seed": seed},
            "version": engine_version(),
            "taken_at": TAKEN_AT,
            "sources": [f"synthetic, seed {seed}"],
            "faults": {},
        },
    )
    extra: dict[str, Any] = {"devices": gpu_devices(snapshot, GPU)}
    if images:
        sizes = image_sizes(random, templates=template_table.num_rows)
        extra["images"] = node_images(random, snapshot, sizes, TAKEN_AT)
    snapshot = replace(snapshot, **extra)
    if images:
        snapshot = with_disk_use(random, snapshot)
    snapshot.meta["input_hash"] = snapshot.content_hash()
    return snapshot


def _step(values: NDArray[np.float64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round to the nearest amount that people write."""
    nearest: NDArray[np.int64] = steps[
        np.abs(np.log(np.maximum(values, 1e-9)[:, None]) - np.log(steps)[None, :]).argmin(axis=1)
    ]
    return nearest


def _workloads(random: np.random.Generator, templates: Templates, count: int, density: int) -> _Workloads:
    parts: list[tuple[NDArray[Any], ...]] = []
    for index, kind in enumerate(MACHINES):
        mean_cpu = kind.cores * 1000 * 0.72 / max(density, 1)
        mean_memory = kind.memory * 1024 * 0.70 / max(density, 1)
        spread = random.lognormal(-0.5, 1.0, count)
        cpu = _step(mean_cpu * spread, CPU_STEPS)
        memory = _step(mean_memory * spread * random.lognormal(-0.125, 0.5, count), MEMORY_STEPS) * Mi
        qos = random.choice(3, count, p=[0.14, 0.70, 0.16])
        weight = 1.0 / np.arange(1, count + 1) ** 0.8
        gpus = np.where((kind.gpus > 0) & (random.random(count) < 0.03), random.choice([1, 2, 4], count), 0)
        priority = random.choice([p for p, _ in PRIORITIES], count, p=[w for _, w in PRIORITIES])
        namespace = random.integers(0, len(NAMESPACES), count)
        parts.append(
            (np.full(count, index), weight / weight.sum(), cpu, memory, qos, priority, gpus, namespace)
        )
    machine, weight, cpu, memory, qos, priority, gpus, namespace = (
        np.concatenate([part[i] for part in parts]) for i in range(8)
    )
    names = [f"{('api', 'worker', 'cache', 'web', 'job')[i % 5]}-{i:04d}" for i in range(len(cpu))]
    rows = zip(names, cpu.tolist(), memory.tolist(), qos.tolist(), gpus.tolist(), strict=True)
    numbers = [_template(templates, _containers(*row)) for row in rows]
    return _Workloads(
        machine, weight, cpu, memory, qos, priority, gpus, np.array(numbers), names, namespace
    )  # fmt: skip


def _containers(name: str, cpu: int, memory: int, qos: int, gpus: int) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if qos:
        resources["requests"] = {"cpu": f"{cpu}m", "memory": f"{memory // Mi}Mi"}
        more = 1 if qos == 2 else 2
        resources["limits"] = {"memory": f"{memory * more // Mi}Mi"}
        if qos == 2:
            resources["limits"]["cpu"] = f"{cpu}m"
    if gpus:
        resources.setdefault("requests", {})[GPU] = str(gpus)
        resources.setdefault("limits", {})[GPU] = str(gpus)
    return {"containers": [{"name": "main", "image": f"registry.example/{name}:1", "resources": resources}]}


def _template(templates: Templates, spec: dict[str, Any]) -> int:
    text = encode_json(spec)
    pod = msgspec.json.decode(b'{"spec":' + text + b"}", type=Pod, dec_hook=decode_hook)
    return templates.add_pod(pod, text.decode())


def _daemons(templates: Templates, nodes: int) -> list[tuple[str, int, int, int]]:
    found = []
    for name, cpu, memory, priority in DAEMONS:
        spec = _containers(name, cpu, memory * Mi, 1, 0)
        found.append((name, _template(templates, spec), memory * Mi, priority))
    return found


def _assign(
    random: np.random.Generator, workloads: _Workloads, machine: NDArray[np.int64], density: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return node and workload of each pod, node by node, cut where a scheduler would have stopped."""
    nodes = len(machine)
    wanted = np.maximum(density - len(DAEMONS), 0)
    counts = np.clip(random.normal(wanted, wanted * 0.12, nodes), 0, wanted * 1.2).astype(np.int64)
    if wanted:
        counts += round((wanted * nodes - counts.sum()) / nodes)
    counts = np.maximum(counts, 0)
    node = np.repeat(np.arange(nodes), counts)
    workload = np.empty(len(node), np.int64)
    for index in range(len(MACHINES)):
        mine = machine[node] == index
        choices = np.flatnonzero(workloads.machine == index)
        workload[mine] = random.choice(choices, int(mine.sum()), p=workloads.weight[choices])
    room = {
        "cpu": np.array([m.cores * 1000 for m in MACHINES])[machine] * 0.93 - 400,
        "memory": np.array([m.memory * Gi for m in MACHINES])[machine] * 0.92 - 512 * Mi,
        "gpus": np.array([m.gpus for m in MACHINES])[machine],
    }
    fits = np.ones(len(node), bool)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    requested = workloads.qos[workload] > 0
    for name, limit in room.items():
        amount = getattr(workloads, name)[workload] * (requested if name != "gpus" else 1)
        total = np.cumsum(amount)
        before = np.concatenate([[0], total])[starts]
        fits &= total - before[node] <= limit[node]
    return node[fits], workload[fits]


def _pods(
    random: np.random.Generator,
    workloads: _Workloads,
    node: NDArray[np.int64],
    workload: NDArray[np.int64],
    daemons: list[tuple[str, int, int, int]],
    nodes: int,
) -> pa.Table:
    every = np.arange(nodes)
    node = np.concatenate([np.tile(every, len(daemons)), node])
    kinds = len(workloads.names)
    workload = np.concatenate([np.repeat(np.arange(len(daemons)) + kinds, nodes), workload])
    template = np.concatenate([workloads.template, [d[1] for d in daemons]])[workload]
    priority = np.concatenate([workloads.priority, [d[3] for d in daemons]])[workload]
    requested = np.concatenate([workloads.memory, [d[2] for d in daemons]])[workload]
    qos = np.concatenate([workloads.qos, [1] * len(daemons)])[workload]
    rows = len(node)
    base = np.where(qos == 0, 64 * Mi, requested)
    memory = (
        base * np.clip(random.lognormal(-0.55, 0.55, rows), 0.02, np.where(qos == 2, 0.98, 1.9))
    ).astype(np.int64)
    disk = (random.lognormal(17.0, 1.6, rows)).astype(np.int64)
    age = np.minimum(random.exponential(9 * 86400.0, rows), 400 * 86400.0)
    flags = np.full(rows, LIVE | HAS_PRIORITY, np.uint8)
    flags[priority >= 2_000_000_000] |= CRITICAL
    space = np.concatenate([workloads.namespaces, [len(NAMESPACES)] * len(daemons)])[workload]
    names = pa.array([*workloads.names, *(d[0] for d in daemons)])
    owners = [f"ReplicaSet/{n}" for n in workloads.names] + [f"DaemonSet/{d[0]}" for d in daemons]
    labels = [f'{{"app":"{n}"}}' for n in [*workloads.names, *(d[0] for d in daemons)]]
    suffix = pa.array(np.arange(rows)).cast(pa.string())
    schema = pa.schema([*POD_FIELDS.items(), ("claims", REPEATED_TEXT)])
    codes = pa.array(workload.astype(np.int32))
    zero = pa.array(np.zeros(rows, np.int32))
    return pa.table(
        {
            "namespace": pa.DictionaryArray.from_arrays(
                pa.array(space.astype(np.int32)), pa.array([*NAMESPACES, "kube-system"])
            ),
            "name": pc.binary_join_element_wise(names.take(codes), suffix, "-").cast(pa.large_string()),
            "uid": _uids(random, rows),
            "node": node.astype(np.int32),
            "template": template.astype(np.int32),
            "phase": pa.DictionaryArray.from_arrays(zero, pa.array(["Running"])),
            "qos": qos.astype(np.uint8),
            "flags": flags,
            "priority": priority.astype(np.int32),
            "created": np.floor(TAKEN_AT - age),
            "owner": pa.DictionaryArray.from_arrays(codes, pa.array(owners)),
            "labels": pa.DictionaryArray.from_arrays(codes, pa.array(labels)),
            "usage/memory": memory,
            "usage/disk": disk,
            "usage/inodes": disk // 20_000 + 10,
            "usage/processes": random.integers(1, 60, rows),
            "claims": pa.DictionaryArray.from_arrays(zero, pa.array([""])),
        },
        schema,
    )


def _uids(random: np.random.Generator, rows: int) -> pa.Array:
    text = random.bytes(rows * 16).hex()
    dashed = np.frombuffer(text.encode(), "S32").astype("S36") if rows else np.empty(0, "S36")
    view = dashed.view(np.uint8).reshape(rows, 36)
    out = np.full((rows, 36), ord("-"), np.uint8)
    for target, source, width in ((0, 0, 8), (9, 8, 4), (14, 12, 4), (19, 16, 4), (24, 20, 12)):
        out[:, target : target + width] = view[:, source : source + width]
    offsets = pa.py_buffer(np.arange(0, 36 * (rows + 1), 36, dtype=np.int64))
    return pa.LargeStringArray.from_buffers(rows, offsets, pa.py_buffer(out.tobytes()))
