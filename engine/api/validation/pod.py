"""The pod as a whole: metadata, life time, what only an API server has; and all parts together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SOURCE_ANNOTATION
from engine.api.quantity import ZERO
from engine.api.resources import is_qualified_name
from engine.api.validation.containers import container_problems
from engine.api.validation.names import (
    LARGEST_INT32,
    NO_API,
    dns_label,
    in_range,
    is_subdomain,
    labels,
    one_of,
)
from engine.api.validation.network import network_problems
from engine.api.validation.placement import placement_problems
from engine.api.validation.resources import resource_problems
from engine.api.validation.security import pod_security
from engine.api.validation.volumes import volume_problems

_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
_LARGEST_ANNOTATIONS = 256 * 1024


def check_pod(pod: Pod, subject: str) -> None:
    """Raises `InvalidInput` with every problem in one line."""
    found = list(problems(pod))
    if found:
        raise InvalidInput("; ".join(found), subject=subject)


def problems(pod: Pod) -> Iterator[str]:
    """Every fault of a pod as `field: what was expected`, in the order of the spec."""
    yield from _metadata(pod)
    spec = pod.spec
    if not spec.containers:
        yield "spec.containers: expected at least one container"
    yield from one_of(spec.restart_policy, ("Always", "OnFailure", "Never", ""), "spec.restartPolicy")
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        yield f"spec.terminationGracePeriodSeconds: expected 0 or more, got {grace}"
    yield from in_range(spec.active_deadline_seconds, 1, LARGEST_INT32, "spec.activeDeadlineSeconds")
    yield from in_range(spec.priority, -LARGEST_INT32 - 1, LARGEST_INT32, "spec.priority")
    yield from container_problems(pod)
    yield from volume_problems(pod)
    yield from resource_problems(spec.resources, "spec.resources", pod_level=True)
    if spec.runtime_class_name is not None and not is_subdomain(spec.runtime_class_name):
        yield f"spec.runtimeClassName: expected a DNS subdomain, got {spec.runtime_class_name[:64]!r}"
    for resource, quantity in (spec.overhead or {}).items():
        if quantity < ZERO:
            yield f"spec.overhead.{resource}: expected 0 or more, got {quantity}"
    yield from pod_security(pod)
    yield from network_problems(pod)
    yield from placement_problems(pod)
    yield from _of_an_api_server(pod)


def _metadata(pod: Pod) -> Iterator[str]:
    meta = pod.metadata
    if not is_subdomain(meta.name):
        yield f"metadata.name: expected a DNS subdomain (lower case, digits, - and .), got {meta.name[:64]!r}"
    if meta.namespace:
        yield from dns_label(meta.namespace, "metadata.namespace")
    if meta.uid and _UID.fullmatch(meta.uid) is None:
        yield f"metadata.uid: expected letters, digits, - _ and ., got {meta.uid[:64]!r}"
    yield from labels(meta.labels, "metadata.labels")
    for name in pod.annotations:
        if not is_qualified_name(name.lower()):
            yield f"metadata.annotations: {name[:64]!r} is not an annotation's name"
    if sum(len(k.encode()) + len(v.encode()) for k, v in pod.annotations.items()) > _LARGEST_ANNOTATIONS:
        yield f"metadata.annotations: more than {_LARGEST_ANNOTATIONS} bytes"


def _of_an_api_server(pod: Pod) -> Iterator[str]:
    """What a static pod may not refer to (v1.36 PreventStaticPodAPIReferences), and what we have not got."""
    spec = pod.spec
    if spec.resource_claims:
        yield f"spec.resourceClaims: {NO_API}"
    if spec.ephemeral_containers:
        yield f"spec.ephemeralContainers: {NO_API}"
    if pod.annotations.get(SOURCE_ANNOTATION) == "api":
        return
    if spec.service_account_name or spec.service_account:
        yield f"spec.serviceAccountName: {NO_API}"
    if spec.image_pull_secrets:
        yield f"spec.imagePullSecrets: {NO_API}"
