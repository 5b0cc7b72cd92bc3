"""Read the pods that a question asks about."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.admission.asked_pod import PodParameters, pods_asked_about
from engine.admission.predicates import NATIVE
from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.resources import pod_requests
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.lazy_table import rows_with, value_of
from engine.plan.snapshot.objects import pod_object
from engine.tables import ABSENT


def requested_pods(snapshot: Snapshot, parameters: PodParameters) -> Sequence[Pod]:
    """Return typed pods with an API server's defaults and uids of their own. Raise `InvalidInput`."""
    pods = pods_asked_about(
        parameters,
        like=lambda label: pod_like(snapshot, label)[0],
        class_priority=lambda name: priority_of_class(snapshot, name),
        known_resources=offered(snapshot),
    )
    for number, pod in enumerate(pods):
        pod.metadata.uid = f"asked-{number}"
    return pods


def offered(snapshot: Snapshot) -> list[str]:
    """Return the resources that some node names, even if none is left of them."""
    names = [name for name in snapshot.nodes.column_names if name.startswith("allocatable/")]
    there = (name.removeprefix("allocatable/") for name in names)
    return [name for name in there if (snapshot.allocatable(name) != ABSENT).any()]


def check_resources(snapshot: Snapshot, parameters: PodParameters) -> list[str]:
    """Return notes about resources that pods request and no node of the snapshot names.

    An agent does not count them, so it takes such a pod; a scheduler finds no node for it. Raise
    `InvalidInput` if they were requested by name.
    """
    there = offered(snapshot)
    absent: dict[str, None] = {}
    for pod in requested_pods(snapshot, parameters):
        absent |= dict.fromkeys(name for name in pod_requests(pod) if name not in (*NATIVE, *there))
    said = [f"no node has {name}{nearest(name, there)}" for name in absent]
    if said and (parameters.requests or parameters.limits):
        raise InvalidInput("; ".join(said), subject="requests" if parameters.requests else "limits")
    return said


def priority_of_class(snapshot: Snapshot, name: str) -> int | None:
    """Return the value of a PriorityClass, None if the snapshot has none of this name."""
    rows = snapshot.priority_classes.to_pylist()
    return next((int(row["value"]) for row in rows if row["name"] == name), None)


def pod_like(snapshot: Snapshot, label: str) -> tuple[Pod, str]:
    """Return a copy of the pod `namespace/name` with its labels, and its owner as `Kind/name`.

    Raise `InvalidInput` if there is none.
    """
    namespace, _, name = label.rpartition("/")
    pods = snapshot.pods
    # Namespaces repeat and names hardly do, so the names are compared first.
    for row in rows_with(pods, "name", name):
        if value_of(pods, "namespace", row) == (namespace or "default"):
            pod = pod_object(snapshot, row)
            pod.metadata.labels = msgspec.json.decode(value_of(pods, "labels", row) or "null")
            return pod, str(value_of(pods, "owner", row))
    raise InvalidInput("no such pod in the snapshot", subject=label)
