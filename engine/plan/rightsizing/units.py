"""List the containers of each workload, with what they request, and the series of their use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.api.pod import Container
from engine.plan.history.history import History
from engine.plan.rightsizing.recommended import ContainerAmounts
from engine.plan.rightsizing.workloads import Workload, Workloads
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import decoded_spec

Rows = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)


@dataclass
class ContainerUnit:
    """Hold one container of a workload: all pods of the workload get the same requests for it.

    `pods` is the number of pods that count on a node, `now` what most of them request; `series` are rows of
    the history by measure, of pods that exist and of pods that existed.
    """

    workload: Workload
    row: int
    container: str
    now: ContainerAmounts
    pods: int = 0
    pod_level: bool = False
    series: dict[str, Rows] = field(default_factory=dict)

    def rows(self, measure: str) -> Rows:
        return self.series.get(measure, _NONE)

    def __str__(self) -> str:
        return f"{self.workload}: {self.container}"


def amounts_of(container: Container) -> ContainerAmounts:
    """Return what a container's spec says; a limit without a request is also its request."""
    requests, limits = container.requests, container.limits

    def amount(name: str, group: str) -> int | None:
        quantity = (limits if group == "limits" else requests).get(name)
        if quantity is None and group == "requests":
            quantity = limits.get(name)
        if quantity is None:
            return None
        return quantity.milli if name == "cpu" else quantity.value

    return ContainerAmounts(
        amount("cpu", "requests"),
        amount("memory", "requests"),
        amount("cpu", "limits"),
        amount("memory", "limits"),
    )


def running_containers(snapshot: Snapshot, template: int) -> Iterator[Container]:
    """Yield a template's containers that run as long as the pod: also init containers that restart always."""
    pod = decoded_spec(snapshot.templates["spec"][template].as_py())
    yield from pod.spec.containers
    yield from (one for one in pod.spec.init_containers or () if one.restart_policy == "Always")


def container_units(snapshot: Snapshot, workloads: Workloads, history: History | None) -> list[ContainerUnit]:
    """Return the containers of the workloads with pods on nodes, in the order of workloads."""
    template = snapshot.column("template").astype(np.int64)
    workload = workloads.of_pod[: snapshot.placed]
    pairs, counts = np.unique(np.stack([workload, template], axis=1), axis=0, return_counts=True)
    most = np.argsort(-counts, kind="stable")
    units: dict[tuple[int, str], ContainerUnit] = {}
    for index in most.tolist():
        row, number = pairs[index].tolist()
        pod_level = decoded_spec(snapshot.templates["spec"][number].as_py()).spec.resources is not None
        for container in running_containers(snapshot, number):
            key = (row, container.name)
            if key not in units:
                units[key] = ContainerUnit(
                    workloads.all[row], row, container.name, amounts_of(container), pod_level=pod_level
                )
            units[key].pods += int(counts[index])
    if history is not None:
        _find_series(units, workloads, history)
    return [units[key] for key in sorted(units)]


def _find_series(units: dict[tuple[int, str], ContainerUnit], workloads: Workloads, history: History) -> None:
    """Give each container its series, by the names of pods."""
    namespaces, pods, containers = (history.texts(name) for name in ("namespace", "pod", "container"))
    codes = np.stack([namespaces[0], pods[0], containers[0]], axis=1)
    for measure in ("memory", "cpu", "ooms"):
        rows = history.rows(measure)
        found: dict[tuple[int, str], list[int]] = {}
        known: dict[tuple[int, int], int] = {}
        for row, (namespace, pod, container) in zip(rows.tolist(), codes[rows].tolist(), strict=True):
            if (namespace, pod) not in known:
                known[namespace, pod] = workloads.of_past(namespaces[1][namespace], pods[1][pod])
            key = (known[namespace, pod], containers[1][container])
            if key in units:
                found.setdefault(key, []).append(row)
        for key, mine in found.items():
            units[key].series[measure] = np.array(mine, np.int64)
