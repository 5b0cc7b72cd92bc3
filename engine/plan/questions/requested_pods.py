"""The pods that a question about a snapshot is about."""

from __future__ import annotations

from collections.abc import Sequence

from engine.admission.asked_pod import PodParameters, pods_asked_about
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import pod_object


def requested_pods(snapshot: Snapshot, parameters: PodParameters) -> Sequence[Pod]:
    """Typed pods with an API server's defaults and uids of their own. Raises `InvalidInput`."""
    pods = pods_asked_about(
        parameters,
        like=lambda label: _like(snapshot, label),
        class_priority=lambda name: _class_priority(snapshot, name),
    )
    for number, pod in enumerate(pods):
        pod.metadata.uid = f"asked-{number}"
    return pods


def _class_priority(snapshot: Snapshot, name: str) -> int | None:
    rows = snapshot.priority_classes.to_pylist()
    return next((int(row["value"]) for row in rows if row["name"] == name), None)


def _like(snapshot: Snapshot, label: str) -> Pod:
    namespace, _, name = label.rpartition("/")
    names = snapshot.pods["name"].to_pylist()
    for row, found in enumerate(names):
        if found == name and snapshot.pods["namespace"][row].as_py() == (namespace or "default"):
            return pod_object(snapshot, row)
    raise InvalidInput("no such pod in the snapshot", subject=label)
