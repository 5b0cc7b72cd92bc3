"""Rank the pods of a node in the order in which the kubelet would evict them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_critical, qos_class
from engine.api.resources import EPHEMERAL_STORAGE, MEMORY, ranking_request
from engine.eviction import PodUsage
from engine.eviction import rank as _rank
from engine.eviction.explain import reason_for_place
from engine.eviction.signals import PIDS
from engine.eviction.usage import Disk
from engine.library.documents import Amount, PodLike, base_units, pods_of
from engine.tables import PodTable

RANKED: Final = (MEMORY, EPHEMERAL_STORAGE, PIDS)


@dataclass(frozen=True, slots=True)
class RankedPod:
    """Hold a pod's place in the order of eviction: `place` 1 is evicted first.

    `pod` is `namespace/name`. `usage` and `request` are bytes, for `pids` the number of processes and None;
    `usage` is also None if it is unknown. The kubelet never evicts a `critical` pod. `reason` says why the
    pod is at this place.
    """

    place: int
    pod: str
    uid: str
    qos: str
    priority: int
    usage: int | None
    request: int | None
    critical: bool
    reason: str


def rank(pods: Iterable[PodLike], usage: Mapping[str, Amount], resource: str = MEMORY) -> list[RankedPod]:
    """Rank pods by what they use of the resource that is short, as kubelet v1.36 does, first victim first.

    `usage` maps a pod's `namespace/name` or uid to the amount that it uses: bytes, a quantity such as
    "300Mi", or a number of processes. `resource` is memory, ephemeral-storage or pids. Pods of unknown usage
    come first, as for the kubelet. Raise `InvalidInput` for a different resource, a pod in `usage` that is
    not in `pods`, and an amount that is not a quantity.
    """
    if resource not in RANKED:
        raise InvalidInput(f"must be one of {', '.join(RANKED)}", subject=f"resource {resource!r}")
    typed = pods_of(pods)
    uids = {key: pod.uid for pod in typed for key in (pod.full_name, pod.uid)}
    kept: dict[str, PodUsage] = {}
    for key, amount in usage.items():
        if key not in uids:
            raise InvalidInput("is not among the pods; name it namespace/name", subject=f"usage of {key!r}")
        kept[uids[key]] = _usage(resource, base_units(resource, amount, f"usage of {key!r}"))
    # An empty table: pods without a row are ranked by their specs, which is all that a caller has.
    ranking = _rank(PodTable(), typed, kept, resource, ("volumes",))
    return [_placed(place, pod, amount, resource) for place, (pod, amount) in enumerate(ranking, 1)]


def _placed(place: int, pod: Pod, amount: int | None, resource: str) -> RankedPod:
    request = ranking_request(pod, resource).value if resource != PIDS else None
    return RankedPod(
        place,
        pod.full_name,
        pod.uid,
        qos_class(pod),
        pod.spec.priority or 0,
        amount,
        request,
        is_critical(pod),
        reason_for_place(pod, amount, request),
    )


def _usage(resource: str, amount: int) -> PodUsage:
    if resource == MEMORY:
        return PodUsage(memory=amount)
    if resource == PIDS:
        return PodUsage(processes=amount)
    return PodUsage(volumes={"all": Disk(amount)}, disk_known=True)
