"""Read workloads to be added to a cluster: pods, and controllers with a pod template and replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from engine.api.documents import convert
from engine.api.documents.reader import parse_documents, read_text
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.plan.reading.added import AddedPods

REPLICAS: Final = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "StatefulSet": "replicas",
    "Job": "parallelism",
}
"""The field of each controller that says how many pods run at once."""
MOST_REPLICAS: Final = 100_000


def load_workloads(path: Path) -> list[AddedPods]:
    """Return the workloads of a file of manifests. Raise `InvalidInput` naming the file, object and field."""
    found = [_workload(document, str(path)) for document in parse_documents(read_text(path), str(path))]
    if not found:
        raise InvalidInput("contains no object; expected a Pod or a controller of pods", subject=str(path))
    return found


def _workload(document: dict[str, Any], path: str) -> AddedPods:
    kind, name = str(document.get("kind") or "?"), (document.get("metadata") or {}).get("name") or "pod"
    subject = f"{path}: {kind} {name}"
    if kind == "Pod":
        return AddedPods(convert(document, Pod, subject), 1)
    if kind not in REPLICAS:
        expected = ", ".join(("Pod", *REPLICAS))
        raise InvalidInput(f"kind: expected one of {expected}, got {kind}", subject=path)
    spec = document.get("spec") or {}
    count = spec.get(REPLICAS[kind], 1)
    if not isinstance(count, int) or not 0 <= count <= MOST_REPLICAS:
        raise InvalidInput(
            f"spec.{REPLICAS[kind]}: expected 0 to {MOST_REPLICAS}, got {count!r}", subject=subject
        )
    template = spec.get("template")
    if not isinstance(template, dict):
        raise InvalidInput("spec.template: expected a pod template", subject=subject)
    meta = {"namespace": (document.get("metadata") or {}).get("namespace") or "default"}
    meta |= (template.get("metadata") or {}) | {"name": name}
    pod = convert({"metadata": meta, "spec": template.get("spec") or {}}, Pod, subject)
    owner = "ReplicaSet" if kind == "Deployment" else kind
    return AddedPods(pod, count, f"{owner}/{name}")
