"""Decisions of a node over plain documents. None needs root, a running agent or state of this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.admission import AdmittedPods as _AdmittedPods
from engine.admission import Failure, Preemption, Verdict
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
    ConfigLike,
    NodeLike,
    PodLike,
    config_of,
    container_of,
    node_of,
    pod_of,
    pods_of,
)
from engine.probes import ProbeSpec
from engine.probes import probe_specs as _probe_specs


class AdmittedPods(_AdmittedPods):
    """A node and the pods that it has taken. `check` costs the same however many pods there are.

    Takes Node and Pod documents as dicts or typed objects. New pods are judged by those that are to stay.
    Methods that raise leave everything as it was.
    """

    def __init__(self, node: NodeLike, pods: Iterable[PodLike] = ()) -> None:
        """Raise `InvalidInput` for negative amounts, sums beyond 64 bits and repeated uids."""
        super().__init__(node_of(node), pods_of(pods))

    def add(self, pod: PodLike) -> None:
        """Count a pod, whether it fits or not. Raise `InvalidInput` for a uid that is there."""
        super().add(_one(pod))

    def check(self, pod: PodLike) -> list[Failure]:
        """Every failed check in the kubelet's order, none if the pod fits.

        Raise `InvalidInput` for a pod that is there already and for amounts that are negative or beyond 64
        bits.
        """
        return super().check(_one(pod))

    def update(self, pod: PodLike) -> None:
        """The pod's requests changed (a resize). Raise `InvalidInput` if it is not there."""
        super().update(_one(pod))


def decide(
    admitted: _AdmittedPods, pod: PodLike, *, policy: str = "kubelet", time_limit: float = 0.1
) -> Verdict:
    """Would the node take this pod, and which pods would it preempt for it (kubelet v1.36)?

    `policy` is kubelet, priority or minimal; `time_limit` bounds the search of the last two in seconds.
    Raise `InvalidInput` as `AdmittedPods.check` does.
    """
    return _decide(admitted, _one(pod), policy=policy, time_limit=time_limit)


def preempt(
    pods: Iterable[PodLike],
    preemptor: PodLike,
    requirements: Mapping[str, int] | Iterable[tuple[str, int]],
    *,
    policy: str = "kubelet",
    time_limit: float = 0.1,
) -> Preemption:
    """Choose which of a node's pods are evicted so that `preemptor` fits.

    `requirements` says how much of each resource must be freed: milli-CPU for cpu, bytes for memory and
    storage, pieces for the rest, `pods` for places. Raise `NotEnoughToPreempt` if all preemptable pods
    together are not enough, and `InvalidInput` for arguments that make no sense.
    """
    return _preempt(pods_of(pods), _one(preemptor), requirements, policy=policy, time_limit=time_limit)


def pod_values(pod: PodLike, rules: PodRules | None = None) -> GroupValues:
    """The values of the pod's cgroup: shares, quota, memory limit and so on. A limit counts only where every
    container declares one. Without `rules`, those of a node with the default configuration.

    Raise `InvalidInput` for an annotation that counts and makes no sense.
    """
    return _pod_values(pod_of(pod), rules or PodRules())


def container_resources(pod: PodLike, container: str, rules: ContainerRules) -> ContainerResources:
    """What the runtime is told for one container of a pod, chosen by name: CRI LinuxContainerResources.

    Raise `InvalidInput` for a name that no container has.
    """
    typed = pod_of(pod)
    found = container_of(typed, container)
    if found is None:
        raise InvalidInput(f"has no container {container!r}", subject=f"pod {typed.metadata.name}")
    return _container_resources(typed, found, rules)


def probe_specs(pod: PodLike, section: ProbesSection | None = None) -> list[ProbeSpec]:
    """The probes of a pod's containers and sidecars, in order, with defaults filled in and times in seconds.

    Raise `InvalidInput` with the field.
    """
    return _probe_specs(pod_of(pod), section or ProbesSection())


def thresholds_from_config(config: ConfigLike | None = None) -> list[Threshold]:
    """The eviction thresholds of a KubeletConfiguration, hard ones first. Raise `InvalidInput` with the
    kubelet's words."""
    return _thresholds(config_of(config))


def _one(pod: PodLike) -> Pod:
    return pods_of([pod])[0]
