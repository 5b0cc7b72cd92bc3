"""The pod as a whole: life time, what only an API server has; and all parts together."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import SOURCE_ANNOTATION
from engine.api.validation.annotations import annotation_problems
from engine.api.validation.containers import container_problems
from engine.api.validation.metadata import metadata_problems
from engine.api.validation.names import LARGEST_INT32, NO_API, dns_subdomain, in_range, one_of
from engine.api.validation.network import network_problems
from engine.api.validation.placement import placement_problems
from engine.api.validation.resources import overhead_problems, pod_resources
from engine.api.validation.security import pod_security
from engine.api.validation.volumes import volume_problems
from engine.api.validation.windows import os_problems


def check_pod(pod: Pod, subject: str) -> None:
    """Raise `InvalidInput` with every problem in one line."""
    found = list(problems(pod))
    if found:
        raise InvalidInput("; ".join(found), subject=subject)


def problems(pod: Pod) -> Iterator[str]:
    """Return every fault of a pod as `field: what was expected`, in the order of the spec."""
    spec = pod.spec
    yield from metadata_problems(pod)
    yield from one_of(spec.restart_policy, ("Always", "OnFailure", "Never", ""), "spec.restartPolicy")
    grace = spec.termination_grace_period_seconds
    if grace is not None and grace < 0:
        yield f"spec.terminationGracePeriodSeconds: expected 0 or more, got {grace}"
    yield from in_range(spec.active_deadline_seconds, 1, LARGEST_INT32, "spec.activeDeadlineSeconds")
    yield from container_problems(pod)
    yield from volume_problems(pod)
    yield from pod_resources(pod)
    if spec.runtime_class_name is not None:
        yield from dns_subdomain(spec.runtime_class_name, "spec.runtimeClassName")
    yield from overhead_problems(pod)
    yield from pod_security(pod)
    yield from network_problems(pod)
    yield from placement_problems(pod)
    yield from os_problems(pod)
    yield from annotation_problems(pod)
    yield from _of_an_api_server(pod)


def _of_an_api_server(pod: Pod) -> Iterator[str]:
    """Yield API references, which a static pod must not have (v1.36 PreventStaticPodAPIReferences)."""
    spec = pod.spec
    if spec.resource_claims:
        yield f"spec.resourceClaims: {NO_API}"
    if spec.ephemeral_containers:
        yield f"spec.ephemeralContainers: {NO_API}"
    if pod.annotations.get(SOURCE_ANNOTATION) == "api":
        return
    if spec.service_account_name or spec.service_account:
        yield f"spec.serviceAccountName: {NO_API}"
    if any(secret.name for secret in spec.image_pull_secrets or ()):
        yield f"spec.imagePullSecrets: {NO_API}"
