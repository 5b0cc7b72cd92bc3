"""Generate GPUs of a synthetic cluster: two NUMA nodes a machine, assigned to pods from the first
free one on.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from engine.plan.snapshot.columns import DEVICE_FIELDS, Snapshot


def gpu_devices(snapshot: Snapshot, resource: str) -> pa.Table:
    """Return one row per GPU with its NUMA node, and the pod that holds it."""
    columns: dict[str, list[Any]] = {name: [] for name in DEVICE_FIELDS}
    capacity = snapshot.allocatable(resource)
    requested = snapshot.per_pod(f"request/{resource}")
    for node in range(snapshot.node_count):
        count = int(capacity[node])
        if count <= 0:
            continue
        begin, end = int(snapshot.offsets[node]), int(snapshot.offsets[node + 1])
        owners: list[str] = []
        for row in range(begin, end):
            owners += [snapshot.pods["uid"][row].as_py()] * int(requested[row])
        for index in range(count):
            held = index < len(owners)
            values = (
                node, resource, f"GPU-{node:05d}-{index}", str(index * 2 // count), True,
                owners[index] if held else "", "main" if held else "",
            )  # fmt: skip
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    schema = pa.schema(list(DEVICE_FIELDS.items()))
    return pa.table({name: pa.array(values, schema.field(name).type) for name, values in columns.items()})
