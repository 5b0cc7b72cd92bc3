"""Make the snapshot in which containers have new requests: templates are split by workload where they
differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.plan.reading.templates import Templates
from engine.plan.rightsizing.proposals import SizedContainer
from engine.plan.rightsizing.recommended import ContainerAmounts
from engine.plan.rightsizing.workloads import Workloads
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import whole
from engine.plan.snapshot.objects import decoded_spec
from engine.tables import ResourceNames


def resized(snapshot: Snapshot, workloads: Workloads, sized: Iterable[SizedContainer]) -> Snapshot:
    """Return the same pods on the same nodes with new requests and limits, and the classes that follow."""
    changed = {(one.unit.row, one.unit.container): one.after for one in sized if one.after != one.unit.now}
    touched = {row for row, _ in changed}
    pods = whole(snapshot.pods)
    template = pods["template"].to_numpy().astype(np.int64)
    # Workloads without a change share the templates as they are: number -1.
    owner = np.where(np.isin(workloads.of_pod, np.array(sorted(touched), np.int64)), workloads.of_pod, -1)
    pairs, which = np.unique(np.stack([template, owner], axis=1), axis=0, return_inverse=True)
    templates = Templates(ResourceNames(snapshot.resources.names))
    specs: list[str] = snapshot.templates["spec"].to_pylist()
    numbers = [_add(templates, specs[number], row, changed) for number, row in pairs.tolist()]
    table = templates.table()
    fresh = np.array(numbers, np.int32)[which.reshape(-1)]
    qos = np.where(owner >= 0, table["qos"].to_numpy()[fresh], pods["qos"].to_numpy())
    for name, values in (("template", fresh), ("qos", qos.astype(np.uint8))):
        pods = pods.set_column(pods.schema.get_field_index(name), name, pa.array(values))
    return replace(snapshot, pods=pods, templates=table)


def _add(
    templates: Templates, spec: str, workload: int, changed: dict[tuple[int, str], ContainerAmounts]
) -> int:
    if workload < 0:
        return templates.add_pod(decoded_spec(spec), spec)
    plain = msgspec.json.decode(spec)
    for container in (*plain.get("containers", ()), *(plain.get("initContainers") or ())):
        amounts = changed.get((workload, container["name"]))
        if amounts is not None:
            container["resources"] = _resources(container.get("resources") or {}, amounts)
    text = encode_json(plain).decode()
    return templates.add_pod(decoded_spec(text), text)


def _resources(plain: dict[str, Any], amounts: ContainerAmounts) -> dict[str, Any]:
    """Return a container's resources with these of CPU and memory; others stay."""
    requests, limits = dict(plain.get("requests") or {}), dict(plain.get("limits") or {})
    for group, name, value in (
        (requests, "cpu", amounts.cpu),
        (requests, "memory", amounts.memory),
        (limits, "cpu", amounts.cpu_limit),
        (limits, "memory", amounts.memory_limit),
    ):
        if value is None:
            group.pop(name, None)
        else:
            group[name] = f"{value}m" if name == "cpu" else str(value)
    return plain | {"requests": requests, "limits": limits}
