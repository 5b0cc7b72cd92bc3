"""Find the workload of each pod: the controller that a person edits, rather than the ReplicaSet or Job
between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.plan.snapshot.columns import Snapshot

HASH_LABEL: Final = "pod-template-hash"
_SUFFIX: Final = re.compile(r"-[a-z0-9]{5}$")
_HASH: Final = re.compile(r"-[a-z0-9]{6,10}$")
_ORDINAL: Final = re.compile(r"-[0-9]+$")
_MINUTES: Final = re.compile(r"-[0-9]{8,10}$")
"""The end of a Job's name that a CronJob gives it: minutes since 1970."""
_labels = msgspec.json.Decoder(dict[str, str] | None)


@dataclass(frozen=True)
class Workload:
    """Name the object that defines a pod; `kind` is `Pod` for one without a controller."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Workloads:
    """Hold the workloads of a snapshot's pods: `of_pod`, int64[pods], are rows of `all`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.all: list[Workload] = []
        self._rows: dict[Workload, int] = {}
        self._pods: dict[tuple[str, str], int] = {}
        columns = [snapshot.pods[name].to_pylist() for name in ("namespace", "name", "owner", "labels")]
        decoded: dict[str, str] = {}
        found = []
        for namespace, name, owner, labels in zip(*columns, strict=True):
            if labels not in decoded:
                decoded[labels] = (_labels.decode(labels or "null") or {}).get(HASH_LABEL, "")
            workload = _workload(namespace, name, owner, decoded[labels])
            row = self._rows.get(workload)
            if row is None:
                row = self._rows[workload] = len(self.all)
                self.all.append(workload)
            self._pods[namespace, name] = row
            found.append(row)
        self.of_pod: NDArray[np.int64] = np.array(found, np.int64)

    def row(self, workload: Workload) -> int:
        """Return the row of a workload, -1 if the snapshot has no pod of it."""
        return self._rows.get(workload, -1)

    def of_past(self, namespace: str, pod: str) -> int:
        """Return the workload of a pod that is in the history, by its name alone if it no longer exists; -1
        if it fits none.
        """
        found = self._pods.get((namespace, pod))
        if found is not None:
            return found
        candidates = (Workload(kind, namespace, name) for kind, name in _owners(pod))
        return next((self._rows[one] for one in candidates if one in self._rows), -1)


def _workload(namespace: str, name: str, owner: str, template_hash: str) -> Workload:
    kind, _, controller = owner.partition("/")
    if kind == "ReplicaSet":
        if template_hash and controller.endswith(f"-{template_hash}"):
            return Workload("Deployment", namespace, controller.removesuffix(f"-{template_hash}"))
        if not template_hash and _HASH.search(controller):
            return Workload("Deployment", namespace, _HASH.sub("", controller))
    if kind == "Job" and _MINUTES.search(controller):
        return Workload("CronJob", namespace, _MINUTES.sub("", controller))
    if kind in ("", "Node"):
        return Workload("Pod", namespace, name)
    return Workload(kind, namespace, controller)


def _owners(pod: str) -> Iterator[tuple[str, str]]:
    """Yield the (kind, name) of workloads that name their pods like this, the likeliest first."""
    if _SUFFIX.search(pod):
        base = _SUFFIX.sub("", pod)
        if _HASH.search(base):
            yield "Deployment", _HASH.sub("", base)
        yield from (("ReplicaSet", base), ("DaemonSet", base), ("Job", base))
        if _MINUTES.search(base):
            yield "CronJob", _MINUTES.sub("", base)
    if _ORDINAL.search(pod):
        yield "StatefulSet", _ORDINAL.sub("", pod)
