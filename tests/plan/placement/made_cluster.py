"""Nodes and pods as kubectl prints them, for tests of where pods go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.plan import Snapshot, load_snapshot

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
GPU = "gpu.example.com"


def node(name: str, zone: str = "a", *, ready: bool = True, cpu: str = "4", **fields: Any) -> dict[str, Any]:
    """Return a node; `labels`, `images`, `memory` and `pods` go to their fields, others to its spec."""
    labels = {HOST: name, ZONE: zone} | fields.pop("labels", {})
    amounts = {"cpu": cpu, "memory": fields.pop("memory", "8Gi"), "pods": fields.pop("pods", "110")}
    images = fields.pop("images", [])
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": fields,
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "images": images,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def pod(name: str, on: str, *, app: str = "web", owner: str = "ReplicaSet", **spec: Any) -> dict[str, Any]:
    """Return a pod of a controller, or of none if `owner` is empty.

    `requests` and `container` go to its container.
    """
    requests = spec.pop("requests", {"cpu": "100m"})
    container = {"name": "main", "image": "x", "resources": {"requests": requests}}
    container |= spec.pop("container", {})
    owners = [{"kind": owner, "name": app, "uid": "o", "controller": True}] if owner else []
    placed = {"nodeName": on} if on else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": name,
            "labels": {"app": app},
            "ownerReferences": owners,
        },
        "spec": {**placed, "containers": [container], **spec},
        "status": {"phase": "Running" if on else "Pending"},
    }


def budget(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }


def read(tmp_path: Path, *objects: dict[str, Any]) -> Snapshot:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
    return load_snapshot([str(path)])


def device_objects(*offering: str, on: str = "n1") -> list[dict[str, Any]]:
    """Return a device on each of these nodes and on `on`, and the claim that has the device of node `on`."""
    api = {"apiVersion": "resource.k8s.io/v1"}
    expression = f"device.driver == '{GPU}'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    made = [api | {"kind": "DeviceClass", "metadata": {"name": GPU}, "spec": spec}]
    for name in (on, *offering):
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        offer = {"driver": GPU, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0"}]}
        made.append(api | {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": offer})
    requests = [{"name": "r", "exactly": {"deviceClassName": GPU, "count": 1}}]
    results = [{"request": "r", "driver": GPU, "pool": on, "device": "gpu-0"}]
    field = {"key": "metadata.name", "operator": "In", "values": [on]}
    reach = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "shop"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}, "nodeSelector": reach}},
    }
    return [*made, api | claim]
