"""Applies the defaults of an API server to a pod in place.

Source: Kubernetes core/v1 defaulting. A limit without a request sets the request.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import (
    Container,
    DownwardAPIFile,
    EmptyDirVolume,
    EnvVarSource,
    HTTPGetAction,
    Lifecycle,
    Pod,
    PodSecurityContext,
    Probe,
    ResourceList,
    ResourceRequirements,
    Volume,
)
from engine.api.quantity import Quantity
from engine.api.resources import (
    CPU,
    MEMORY,
    aggregate_limits,
    aggregate_requests,
    is_hugepage,
    supports_pod_level,
)

DEFAULT_GRACE_SECONDS = 30
DEFAULT_FILE_MODE = 0o644
DEFAULT_TERMINATION_MESSAGE_PATH = "/dev/termination-log"


def apply_defaults(pod: Pod) -> None:
    """Fill in what an API server would fill in."""
    pod.metadata.namespace = pod.metadata.namespace or "default"
    spec = pod.spec
    spec.restart_policy = spec.restart_policy or "Always"
    spec.dns_policy = spec.dns_policy or "ClusterFirst"
    spec.scheduler_name = spec.scheduler_name or "default-scheduler"
    if spec.termination_grace_period_seconds is None:
        spec.termination_grace_period_seconds = DEFAULT_GRACE_SECONDS
    # Of an object from before negative periods were refused (core/v1's conversion.go).
    elif spec.termination_grace_period_seconds < 0:
        spec.termination_grace_period_seconds = 1
    if spec.security_context is None:
        spec.security_context = PodSecurityContext()
    if spec.enable_service_links is None:
        spec.enable_service_links = True
    for volume in spec.volumes or []:
        _default_volume(volume)
    for container in pod.all_containers:
        _default_container(container)
        if spec.host_network:
            for port in container.ports or []:
                port.host_port = port.host_port or port.container_port
    # After the containers, whose amounts it adds up.
    if spec.resources is not None:
        _default_pod_resources(pod)
    for amounts in _amounts(pod):
        for name, amount in amounts.items():
            amounts[name] = amount.in_milli()


def _amounts(pod: Pod) -> Iterator[ResourceList]:
    """Yield every list of requests and limits, whose amounts are rounded up to thousandths after the sums."""
    for resources in (pod.spec.resources, *(container.resources for container in pod.all_containers)):
        if resources is not None:
            yield from (each for each in (resources.requests, resources.limits) if each)
    yield pod.spec.overhead or {}


def _default_volume(volume: Volume) -> None:
    # A volume without any source is an emptyDir (`SetDefaults_Volume`).
    if volume == Volume(name=volume.name):
        volume.empty_dir = EmptyDirVolume()
    if volume.image is not None:
        volume.image.pull_policy = volume.image.pull_policy or _pull_policy(volume.image.reference)
    if volume.projected is not None and volume.projected.default_mode is None:
        volume.projected.default_mode = DEFAULT_FILE_MODE
    if volume.downward_api is not None and volume.downward_api.default_mode is None:
        volume.downward_api.default_mode = DEFAULT_FILE_MODE


def default_selectors(pod: Pod) -> None:
    """Fill in the defaults of field and resource references.

    Separate from the other defaults, because a kubelet's uid of a static pod distinguishes an unset divisor
    from 0.
    """
    for source in _selectors(pod):
        if source.field_ref is not None:
            source.field_ref.api_version = source.field_ref.api_version or "v1"
        if source.resource_field_ref is not None and source.resource_field_ref.divisor is None:
            source.resource_field_ref.divisor = Quantity()


def _selectors(pod: Pod) -> Iterator[DownwardAPIFile | EnvVarSource]:
    for container in pod.all_containers:
        yield from (v.value_from for v in container.env or [] if v.value_from is not None)
    for volume in pod.spec.volumes or []:
        sources = (volume.projected and volume.projected.sources) or []
        for api in (volume.downward_api, *(source.downward_api for source in sources)):
            yield from (api and api.items) or []


def _default_container(container: Container) -> None:
    if container.resources is None:
        container.resources = ResourceRequirements()
    container.image_pull_policy = container.image_pull_policy or _pull_policy(container.image)
    container.termination_message_path = (
        container.termination_message_path or DEFAULT_TERMINATION_MESSAGE_PATH
    )
    container.termination_message_policy = container.termination_message_policy or "File"
    for port in container.ports or []:
        port.protocol = port.protocol or "TCP"
    for variable in container.env or []:
        if variable.value_from is not None and variable.value_from.file_key_ref is not None:
            reference = variable.value_from.file_key_ref
            reference.optional = bool(reference.optional)
    _requests_from_limits(container.resources)
    for probe in (container.liveness_probe, container.readiness_probe, container.startup_probe):
        if probe is not None:
            _default_probe(probe)
    _default_lifecycle(container.lifecycle)


def _default_probe(probe: Probe) -> None:
    probe.timeout_seconds = probe.timeout_seconds or 1
    probe.period_seconds = probe.period_seconds or 10
    probe.success_threshold = probe.success_threshold or 1
    probe.failure_threshold = probe.failure_threshold or 3
    _default_http(probe.http_get)
    if probe.grpc is not None and probe.grpc.service is None:
        probe.grpc.service = ""


def _default_lifecycle(lifecycle: Lifecycle | None) -> None:
    if lifecycle is not None:
        for handler in (lifecycle.post_start, lifecycle.pre_stop):
            if handler is not None:
                _default_http(handler.http_get)


def _default_http(action: HTTPGetAction | None) -> None:
    if action is not None:
        action.path = action.path or "/"
        action.scheme = action.scheme or "HTTP"


def _requests_from_limits(resources: ResourceRequirements | None) -> None:
    if resources is not None and resources.limits:
        resources.requests = {**resources.limits, **(resources.requests or {})}


def _default_pod_resources(pod: Pod) -> None:
    """Compute pod-level amounts that follow from others (KEP-2837).

    Huge pages are limited to the containers' limits together. With limits, CPU and memory request what the
    containers request together, or the limit if they request nothing.
    """
    resources = pod.spec.resources
    if resources is None or not (resources.limits or resources.requests):
        return
    requests: ResourceList = dict(resources.requests or {})
    limits: ResourceList = dict(resources.limits or {})
    for name, sum in aggregate_limits(pod).items():
        if is_hugepage(name) and name not in requests:
            limits.setdefault(name, sum)
    if limits:
        for name, sum in aggregate_requests(pod).items():
            if name in (CPU, MEMORY):
                requests.setdefault(name, sum)
        for name, limit in limits.items():
            if supports_pod_level(name):
                requests.setdefault(name, limit)
    resources.limits, resources.requests = limits or None, requests or None


def _pull_policy(image: str) -> str:
    """Return Always for images without tag or digest, and for `latest`."""
    name, _, digest = image.partition("@")
    # Only in the last part of the path is a colon followed by a tag; before, it is a registry's port.
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"
