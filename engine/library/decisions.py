"""Make a node's decisions over plain documents. None needs root, a running agent or global state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.admission import Failure, NodeAllocations, Preemption, Verdict
from engine.admission import decide as _decide
from engine.admission import preempt as _preempt
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.api.pod import Pod
from engine.cgroups import ContainerResources, ContainerRules, GroupValues, PodRules
from engine.cgroups import container_resources as _container_resources
from engine.cgroups import pod_values as _pod_values
from engine.eviction.thresholds import Threshold
from engine.eviction.thresholds import thresholds_from_config as _thresholds
from engine.library.documents import (
    Amount,
    ConfigLike,
    NodeLike,
    PodLike,
    base_units,
    config_of,
    container_of,
    node_of,
    pod_of,
    pods_of,
)
from engine.probes import ProbeSpec
from engine.probes import probe_specs as _probe_specs


class AdmittedPods(NodeAllocations):
    """Hold a node and the pods that it has admitted. `check` costs the same however many pods there are.

    Takes Node and Pod documents as dicts or typed objects. A new pod is judged against the pods already
    added. A method that raises changes nothing.
    """

    def __init__(self, node: NodeLike, pods: Iterable[PodLike] = ()) -> None:
        """Raise `InvalidInput` for negative amounts, sums beyond 64 bits and repeated uids."""
        super().__init__(node_of(node), pods_of(pods))

    def add(self, pod: PodLike) -> None:
        """Count a pod, whether it fits or not. Raise `InvalidInput` for a uid that was added before."""
        super().add(_one(pod))

    def check(self, pod: PodLike) -> list[Failure]:
        """Return every failed check in the kubelet's order; an empty list if the pod fits.

        Raise `InvalidInput` for a pod that was added before and for amounts that are negative or beyond 64
        bits.
        """
        return super().check(_one(pod))

    def update(self, pod: PodLike) -> None:
        """Replace the requests of a pod that was resized. Raise `InvalidInput` if it was not added."""
        super().update(_one(pod))


def decide(
    admitted: NodeAllocations, pod: PodLike, *, policy: str = "kubelet", time_limit: float = 0.1
) -> Verdict:
    """Decide whether the node would take this pod, and which pods it would preempt for it (kubelet v1.36).

    `policy` is kubelet, priority or minimal; `time_limit` bounds the search of the last two in seconds.
    Raise `InvalidInput` as `AdmittedPods.check` does.
    """
    return _decide(admitted, _one(pod), policy=policy, time_limit=time_limit)


def preempt(
    pods: Iterable[PodLike],
    preemptor: PodLike,
    requirements: Mapping[str, Amount] | Iterable[tuple[str, Amount]],
    *,
    policy: str = "kubelet",
    time_limit: float = 0.1,
) -> Preemption:
    """Choose which of a node's pods are evicted so that `preemptor` fits.

    `requirements` says how much of each resource must be freed: a quantity such as "500m" or "64Mi", or an
    integer: milli-CPU for cpu, bytes for memory and storage, a count for other resources; `pods` is a number
    of pod slots. Raise `NotEnoughToPreempt` if all preemptable pods together are not enough, and
    `InvalidInput` for invalid arguments.
    """
    given = requirements.items() if isinstance(requirements, Mapping) else requirements
    needs = [(name, base_units(name, amount)) for name, amount in given]
    return _preempt(pods_of(pods), _one(preemptor), needs, policy=policy, time_limit=time_limit)


def pod_values(pod: PodLike, rules: PodRules | None = None) -> GroupValues:
    """Compute the values of the pod's cgroup: shares, quota, memory limit and so on.

    A limit counts only if every container declares one. `rules` defaults to those of a node with the default
    configuration. Raise `InvalidInput` for an invalid value of an annotation that has an effect.
    """
    return _pod_values(pod_of(pod), rules or PodRules())


def container_resources(pod: PodLike, container: str, rules: ContainerRules) -> ContainerResources:
    """Compute what the runtime receives for one container of a pod, chosen by name: CRI
    LinuxContainerResources.

    Raise `InvalidInput` if no container has that name.
    """
    typed = pod_of(pod)
    found = container_of(typed, container)
    if found is None:
        raise InvalidInput(f"has no container {container!r}", subject=f"pod {typed.metadata.name}")
    return _container_resources(typed, found, rules)


def probe_specs(pod: PodLike, section: ProbesSection | None = None) -> list[ProbeSpec]:
    """Return the probes of a pod's containers and sidecars, in order, with defaults filled in and times in
    seconds.

    Raise `InvalidInput` with the field.
    """
    return _probe_specs(pod_of(pod), section or ProbesSection())


def thresholds_from_config(config: ConfigLike | None = None) -> list[Threshold]:
    """Return the eviction thresholds of a KubeletConfiguration, hard ones first. Raise `InvalidInput` with
    the kubelet's message.
    """
    return _thresholds(config_of(config))


def _one(pod: PodLike) -> Pod:
    return pods_of([pod])[0]
