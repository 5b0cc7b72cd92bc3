"""Tells which ResourceClaims a pod and its containers use, and whether the pod may use them. Pure.

Rules and messages: kubelet v1.36 (`pkg/kubelet/cm/dra`, `dynamic-resource-allocation/resourceclaim`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.api.objects.dynamic_resources import ResourceClaim
from engine.api.pod import Container, Pod, PodResourceClaim, ResourceRequirements
from engine.api.quantity import Quantity
from engine.dra.table import ClaimKey, ClaimState, ClaimTable


class PodClaim(msgspec.Struct, frozen=True):
    """Name a ResourceClaim that a pod uses, by its object's `name`.

    `entry` is its name in `spec.resourceClaims`, empty for the claim of the pod's extended resources;
    `generated`: made from a template for this pod, which then has to own it.
    """

    name: str
    entry: str = ""
    generated: bool = False


def pod_claims(pod: Pod) -> list[PodClaim]:
    """Return every claim of the pod, without entries of templates that need no claim.

    Raises `Refused` where a claim has not been created yet.
    """
    found = [claim for entry in pod.spec.resource_claims or () if (claim := _pod_claim(pod, entry))]
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        found.append(PodClaim(extended.resource_claim_name))
    return found


def has_claims(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def _pod_claim(pod: Pod, entry: PodResourceClaim) -> PodClaim | None:
    if entry.resource_claim_name is not None:
        return PodClaim(entry.resource_claim_name, entry.name)
    namespace, name = pod.metadata.namespace, pod.metadata.name
    if entry.resource_claim_template_name is None:
        text = "none of the supported fields are set"
        raise InvalidInput(f'pod "{namespace}/{name}", spec.resourceClaim "{entry.name}": {text}')
    for status in pod.status.resource_claim_statuses or ():
        if status.name == entry.name:
            made = status.resource_claim_name
            return None if made is None else PodClaim(made, entry.name, generated=True)
    raise Refused(f'pod "{namespace}/{name}": ResourceClaim not created yet')


def check_claim(pod: Pod, claimed: PodClaim, claim: ResourceClaim) -> None:
    """Raise `Refused` unless the claim is allocated, reserved for the pod, and owned by it if generated."""
    meta, namespace, name = claim.metadata, pod.metadata.namespace, pod.metadata.name
    if meta.name != claimed.name or not meta.uid:
        raise Refused(f"ResourceClaim {claimed.name}: the API server answered with {meta.name!r}")
    if meta.namespace != namespace:
        of_claim, of_pod = f"{meta.namespace}/{meta.name}", f"{namespace}/{name}"
        raise Refused(f"ResourceClaim {of_claim} is not in the same namespace as Pod {of_pod}")
    if claimed.generated and not _is_owned(claim, pod):
        text = f"was not created for Pod {namespace}/{name} (Pod is not owner)"
        raise Refused(f"ResourceClaim {namespace}/{meta.name} {text}")
    if not any(consumer.uid == pod.uid for consumer in claim.status.reserved_for or ()):
        raise Refused(f"pod {name} ({pod.uid}) is not allowed to use ResourceClaim {meta.name} ({meta.uid})")
    if claim.status.allocation is None:
        raise Refused(f"ResourceClaim {meta.name}: not allocated")
    if any(not result.driver for result in claim.allocated):
        raise Refused(f"ResourceClaim {meta.name}: DRA driver name is empty")


def _is_owned(claim: ResourceClaim, pod: Pod) -> bool:
    return any(o.controller and o.uid == pod.uid for o in claim.metadata.owner_references or ())


def container_requests(pod: Pod, container: Container) -> Iterator[tuple[PodClaim, str]]:
    """Yield each claim that the container uses, with the request whose devices it gets, or '' for all.

    Raises `Refused` as `pod_claims` does.
    """
    for named in (container.resources.claims if container.resources is not None else None) or ():
        for entry in pod.spec.resource_claims or ():
            if entry.name == named.name and (claim := _pod_claim(pod, entry)):
                yield claim, named.request
    extended = pod.status.extended_resource_claim_status
    if extended is None:
        return
    for mapping in extended.request_mappings or ():
        asked = container.requests.get(mapping.resource_name)
        if mapping.container_name == container.name and asked is not None and asked.value > 0:
            yield PodClaim(extended.resource_claim_name), mapping.request_name


def base_request(request: str) -> str:
    """Return the request of a prioritized list as drivers name it: `gpu/large` → `gpu`."""
    return request.partition("/")[0]


def without_claimed(pod: Pod) -> Pod:
    """Return the pod without the extended resources for which a claim stands: device plugins and the sums of
    resources do not count these."""
    if pod.status.extended_resource_claim_status is None:
        return pod

    def slim(container: Container) -> Container:
        kept = ResourceRequirements(
            requests=_unclaimed(pod, container.name, container.requests),
            limits=_unclaimed(pod, container.name, container.limits),
            claims=container.resources.claims if container.resources is not None else None,
        )
        return msgspec.structs.replace(container, resources=kept)

    init = [slim(container) for container in pod.init_containers] or None
    main = [slim(container) for container in pod.spec.containers]
    spec = msgspec.structs.replace(pod.spec, init_containers=init, containers=main)
    return msgspec.structs.replace(pod, spec=spec)


def _unclaimed(pod: Pod, container: str, amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount for name, amount in amounts.items() if not is_claimed(pod, container, name)}


def is_claimed(pod: Pod, container: str, resource: str) -> bool:
    """Tell whether a claim stands for a container's extended resource, so that no device plugin gives it."""
    extended = pod.status.extended_resource_claim_status
    return extended is not None and any(
        mapping.container_name == container and mapping.resource_name == resource
        for mapping in extended.request_mappings or ()
    )


def container_claims(table: ClaimTable, pod: Pod, container: Container) -> list[ClaimState]:
    """Return the claims of a container that are in the table."""
    found: dict[ClaimKey, ClaimState] = {}
    with suppress(KubengineError):
        for claim, _ in container_requests(pod, container):
            state = table.get((pod.metadata.namespace, claim.name))
            if state is not None:
                found[state.key] = state
    return list(found.values())
