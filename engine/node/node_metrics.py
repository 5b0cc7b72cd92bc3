"""What dashboards ask of every kubelet: who it is, and how much runs on it. Counted when scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from engine.cri.records import CREATED, EXITED, RUNNING, PodRecord
from engine.metrics import Registry

_STATES: dict[int, str] = {CREATED: "created", RUNNING: "running", EXITED: "exited"}


def count_node(registry: Registry, name: str, pods: Callable[[], Iterable[PodRecord]]) -> None:
    """`pods` are those that the runtime holds."""

    def running_pods() -> Iterator[tuple[tuple[str, ...], float]]:
        yield (), sum(any(sandbox.ready for sandbox in pod.sandboxes) for pod in pods())

    def containers() -> Iterator[tuple[tuple[str, ...], float]]:
        states = Counter(container.state for pod in pods() for container in pod.containers)
        for state, count in sorted(states.items()):
            yield (_STATES.get(state, "unknown"),), count

    registry.collected(
        "gauge", "kubelet_node_name", "The node's name; always 1.", ["node"], lambda: [((name,), 1)]
    )
    registry.collected(
        "gauge", "kubelet_running_pods", "Pods with a sandbox that is ready.", [], running_pods
    )
    registry.collected(
        "gauge", "kubelet_running_containers", "Containers by state.", ["container_state"], containers
    )
