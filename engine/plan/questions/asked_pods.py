"""The pods that a question is about: from a manifest, like one of the snapshot, or said in a few fields."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.api.defaults import apply_defaults
from engine.api.documents import convert, load_pods
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SYSTEM_CRITICAL_PRIORITY
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import NODE_CRITICAL_PRIORITY, pod_object

MAX_PODS = 100_000
_WELL_KNOWN = {
    "system-node-critical": NODE_CRITICAL_PRIORITY,
    "system-cluster-critical": SYSTEM_CRITICAL_PRIORITY,
}


class PodParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which pods. One of `file`, `like` or the fields after them; these also override the manifest's."""

    file: Annotated[str, Meta(description="Pod manifests, YAML or JSON; each pod is asked about")] = ""
    like: Annotated[str, Meta(description="namespace/name of a pod in the snapshot")] = ""
    name: Annotated[str, Meta(description="how answers call it")] = ""
    requests: Annotated[dict[str, str | int | float], Meta(description="resource requests")] = {}
    limits: Annotated[dict[str, str | int | float], Meta(description="resource limits")] = {}
    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None, Meta(description="spec.priority")
    ] = None
    priority_class: Annotated[str, Meta(description="a PriorityClass of the snapshot, or a system- one")] = ""
    critical: Annotated[bool, Meta(description="priority 2000000000: the pod may preempt")] = False
    node_selector: Annotated[dict[str, str], Meta(description="spec.nodeSelector")] = {}
    tolerations: Annotated[list[dict[str, Any]], Meta(description="spec.tolerations")] = []


def asked_pods(snapshot: Snapshot, parameters: PodParameters) -> list[Pod]:
    """Typed pods with an API server's defaults and uids of their own. Raises `InvalidInput`."""
    if parameters.file and parameters.like:
        raise InvalidInput("give a file or a pod of the snapshot, not both", subject="like")
    if parameters.file:
        pods = load_pods(Path(parameters.file))[0]
        if len(pods) > MAX_PODS:
            raise InvalidInput(f"holds more than {MAX_PODS} pods", subject=parameters.file)
    elif parameters.like:
        pods = [_like(snapshot, parameters.like)]
    elif parameters.requests or parameters.limits:
        pods = [Pod()]
    else:
        raise InvalidInput("say which pod: file, like or requests", subject="pod")
    for number, pod in enumerate(pods):
        _change(snapshot, pod, parameters)
        pod.metadata.uid = f"asked-{number}"
        pod.spec.node_name = ""
        apply_defaults(pod)
    return pods


def _change(snapshot: Snapshot, pod: Pod, parameters: PodParameters) -> None:
    name = parameters.name or pod.metadata.name or "pod"
    pod.metadata.name = name
    changed: dict[str, Any] = {}
    if parameters.requests or parameters.limits:
        amounts = {"requests": parameters.requests, "limits": parameters.limits}
        resources = {group: given for group, given in amounts.items() if given}
        pod.spec.containers = convert(
            {"spec": {"containers": [{"name": "main", "resources": resources}]}}, Pod, "pod"
        ).spec.containers
        pod.spec.init_containers = None
        pod.status.qos_class = ""
    if parameters.node_selector:
        changed["nodeSelector"] = parameters.node_selector
    if parameters.tolerations:
        changed["tolerations"] = parameters.tolerations
    if changed:
        spec = convert({"spec": changed}, Pod, "pod").spec
        pod.spec.node_selector = spec.node_selector or pod.spec.node_selector
        pod.spec.tolerations = spec.tolerations or pod.spec.tolerations
    if parameters.priority_class:
        pod.spec.priority_class_name = parameters.priority_class
        pod.spec.priority = None
    if parameters.critical:
        pod.spec.priority = SYSTEM_CRITICAL_PRIORITY
    if parameters.priority is not None:
        pod.spec.priority = parameters.priority
    if pod.spec.priority is None and pod.spec.priority_class_name:
        pod.spec.priority = _class_value(snapshot, pod.spec.priority_class_name)


def _class_value(snapshot: Snapshot, name: str) -> int:
    if name in _WELL_KNOWN:
        return _WELL_KNOWN[name]
    for row in snapshot.priority_classes.to_pylist():
        if row["name"] == name:
            return int(row["value"])
    raise InvalidInput("no such PriorityClass in the snapshot; give a priority", subject=name)


def _like(snapshot: Snapshot, label: str) -> Pod:
    namespace, _, name = label.rpartition("/")
    names = snapshot.pods["name"].to_pylist()
    for row, found in enumerate(names):
        if found == name and snapshot.pods["namespace"][row].as_py() == (namespace or "default"):
            return pod_object(snapshot, row)
    raise InvalidInput("no such pod in the snapshot", subject=label)
