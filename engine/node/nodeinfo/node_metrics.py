"""Provides the metrics by which dashboards identify a kubelet and count its pods; computed when scraped."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from engine.api.pod import Pod
from engine.api.qos import is_static
from engine.cri.records import CREATED, EXITED, RUNNING, PodRecord
from engine.metrics import Registry, Sample
from engine.node.nodeinfo.machine import architecture, kubelet_version

_STATES: dict[int, str] = {CREATED: "created", RUNNING: "running", EXITED: "exited"}


def _build() -> dict[str, str]:
    version = kubelet_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {
        "major": major,
        "minor": minor,
        "git_version": version,
        "compiler": platform.python_implementation(),
        "platform": f"linux/{architecture()}",
    }


def count_node(registry: Registry, name: str, pods: Callable[[], Iterable[PodRecord]]) -> None:
    """Count the pods that the runtime holds."""

    def running_pods() -> Iterator[tuple[tuple[str, ...], float]]:
        yield (), sum(any(sandbox.ready for sandbox in pod.sandboxes) for pod in pods())

    def containers() -> Iterator[tuple[tuple[str, ...], float]]:
        states = Counter(container.state for pod in pods() for container in pod.containers)
        for state, count in sorted(states.items()):
            yield (_STATES.get(state, "unknown"),), count

    labels, values = zip(*_build().items(), strict=True)
    registry.collected(
        "gauge",
        "kubernetes_build_info",
        "The Kubernetes version that this agent acts as, and what it runs on; always 1.",
        labels,
        lambda: [(values, 1)],
    )
    registry.collected(
        "gauge", "kubelet_node_name", "The node's name; always 1.", ["node"], lambda: [((name,), 1)]
    )
    registry.collected(
        "gauge", "kubelet_running_pods", "Pods with a sandbox that is ready.", [], running_pods
    )
    registry.collected(
        "gauge", "kubelet_running_containers", "Containers by state.", ["container_state"], containers
    )


def count_pods(
    registry: Registry, *, known: Callable[[], Iterable[Pod]], active: Callable[[], Iterable[Pod]]
) -> None:
    """Count pods: `known` are those requested and not forgotten, `active` those that hold resources."""

    def counted(pods: Callable[[], Iterable[Pod]]) -> Iterator[Sample]:
        counts = Counter(is_static(pod) for pod in pods())
        yield from [(("true",), counts[True]), (("",), counts[False])]

    def conditions(type: str) -> Counter[str]:
        return Counter(
            condition.reason.lower()
            for pod in known()
            for condition in pod.status.conditions or ()
            if condition.type == type
        )

    registry.collected(
        "gauge",
        "kubelet_pod_pending_resizes",
        "Resizes that wait or are impossible.",
        ["reason"],
        lambda: [((reason,), count) for reason, count in conditions("PodResizePending").items()],
    )
    registry.collected(
        "gauge",
        "kubelet_pod_in_progress_resizes",
        "Resizes under way.",
        [],
        lambda: [((), conditions("PodResizeInProgress").total())],
    )
    registry.collected(
        "gauge",
        "kubelet_managed_ephemeral_containers",
        "Ephemeral containers of the node's pods.",
        [],
        lambda: [((), sum(len(pod.spec.ephemeral_containers or ()) for pod in known()))],
    )
    for name, help, pods in (
        (
            "desired",
            "Pods that the node should run; static is true for pods that are not from the API server.",
            known,
        ),
        ("active", "Pods that count when the node admits a new pod.", active),
    ):
        registry.collected("gauge", f"kubelet_{name}_pods", help, ["static"], partial(counted, pods))
