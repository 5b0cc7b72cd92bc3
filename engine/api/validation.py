"""What is wrong with a pod, field by field, before anything is started.

`problems(pod)` lists every fault as `field: what was expected`. The rules are those of the API
server that a node without one has to apply itself, plus: a pod that needs an API server is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.api._base import json_name
from engine.api.errors import InvalidInput
from engine.api.pod import Container, LifecycleHandler, Pod, Probe, ResourceRequirements, Volume
from engine.api.quantity import NANO, ZERO, Quantity
from engine.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    is_extended,
    is_hugepage,
    scaled,
    supports_pod_level,
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
_ENV_NAME = re.compile(r"[^=\s\x00-\x1f]+")

_NEEDS_API_SERVER = [
    "config_map",
    "secret",
    "persistent_volume_claim",
    "ephemeral",
    "csi",
    "nfs",
    "iscsi",
    "fc",
    "flex_volume",
    "git_repo",
    "glusterfs",
    "rbd",
    "cephfs",
    "cinder",
    "portworx_volume",
    "aws_elastic_block_store",
    "gce_persistent_disk",
    "azure_disk",
    "azure_file",
    "vsphere_volume",
]
_SUPPORTED_SOURCES = ("host_path", "empty_dir", "downward_api", "projected", "image")
_NO_API = "needs an API server (or a driver), which this node has not got"


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
    if spec.restart_policy not in ("", "Always", "OnFailure", "Never"):
        yield f"spec.restartPolicy: expected Always, OnFailure or Never, got {spec.restart_policy!r}"
    for name in ("termination_grace_period_seconds", "active_deadline_seconds"):
        value = getattr(spec, name)
        if value is not None and value < 0:
            yield f"spec.{json_name(name)}: expected 0 or more, got {value}"
    yield from _containers(pod)
    yield from _volumes(pod)
    yield from _resources(spec.resources, "spec.resources", pod_level=True)
    for resource, quantity in (spec.overhead or {}).items():
        if quantity < ZERO:
            yield f"spec.overhead.{resource}: expected 0 or more, got {quantity}"
    if spec.resource_claims:
        yield f"spec.resourceClaims: {_NO_API}"
    if spec.runtime_class_name:
        yield f"spec.runtimeClassName: {_NO_API}"
    if spec.ephemeral_containers:
        yield f"spec.ephemeralContainers: {_NO_API}"


def _metadata(pod: Pod) -> Iterator[str]:
    meta = pod.metadata
    if len(meta.name) > 253 or _SUBDOMAIN.fullmatch(meta.name) is None:
        yield f"metadata.name: expected a DNS subdomain (lower case, digits, - and .), got {meta.name[:64]!r}"
    if meta.namespace and (len(meta.namespace) > 63 or _LABEL.fullmatch(meta.namespace) is None):
        yield f"metadata.namespace: expected a DNS label, got {meta.namespace[:64]!r}"
    if meta.uid and _UID.fullmatch(meta.uid) is None:
        yield f"metadata.uid: expected letters, digits, - _ and ., got {meta.uid[:64]!r}"


def _containers(pod: Pod) -> Iterator[str]:
    seen: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    volumes = {volume.name: volume for volume in pod.spec.volumes or []}
    for field, containers in (("initContainers", pod.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            where = f"spec.{field}[{index}]"
            yield from _container(container, where, volumes)
            if container.name in seen:
                yield f"{where}.name: {container.name!r} is already the name of another container"
            seen.add(container.name)
            yield from _restarts(container, where)
            for port in container.ports or []:
                key = (port.host_ip, port.protocol, port.host_port)
                if port.host_port and field == "containers" and key in host_ports:
                    yield f"{where}.ports: host port {port.host_port}/{port.protocol} is given twice"
                host_ports.add(key)


def _restarts(container: Container, where: str) -> Iterator[str]:
    policy, rules = container.restart_policy, container.restart_policy_rules or []
    if policy not in (None, "Always", "OnFailure", "Never"):
        yield f"{where}.restartPolicy: expected Always, OnFailure or Never, got {policy!r}"
    if policy is None and rules:
        yield f"{where}.restartPolicy: must specify restartPolicy when restart rules are used"
    if len(rules) > 20:
        yield f"{where}.restartPolicyRules: expected at most 20, got {len(rules)}"
    for index, rule in enumerate(rules):
        field = f"{where}.restartPolicyRules[{index}]"
        if rule.action not in ("Restart", "RestartAllContainers"):
            yield f"{field}.action: expected Restart or RestartAllContainers, got {rule.action!r}"
        if rule.exit_codes is None:
            yield f"{field}.exitCodes: must be specified"
            continue
        if rule.exit_codes.operator not in ("In", "NotIn"):
            yield f"{field}.exitCodes.operator: expected In or NotIn, got {rule.exit_codes.operator!r}"
        if len(rule.exit_codes.values or []) > 255:
            yield f"{field}.exitCodes.values: expected at most 255"


def _container(container: Container, where: str, volumes: Mapping[str, Volume]) -> Iterator[str]:
    if len(container.name) > 63 or _LABEL.fullmatch(container.name) is None:
        yield f"{where}.name: expected a DNS label, got {container.name[:64]!r}"
    if not container.image.strip():
        yield f"{where}.image: expected an image reference"
    yield from _pull_policy(container.image_pull_policy, f"{where}.imagePullPolicy")
    for index, port in enumerate(container.ports or []):
        if not 0 < port.container_port < 65536 or not 0 <= port.host_port < 65536:
            yield f"{where}.ports[{index}]: expected ports between 1 and 65535"
        if port.protocol not in ("TCP", "UDP", "SCTP"):
            yield f"{where}.ports[{index}].protocol: expected TCP, UDP or SCTP, got {port.protocol!r}"
    yield from _resources(container.resources, f"{where}.resources", pod_level=False)
    yield from _environment(container, where)
    yield from _mounts(container, where, volumes)
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is not None:
            yield from _probe(probe, f"{where}.{name}")
    if container.lifecycle is not None:
        for name, handler in (
            ("postStart", container.lifecycle.post_start),
            ("preStop", container.lifecycle.pre_stop),
        ):
            if handler is not None:
                yield from _one_of(
                    handler, ("exec", "http_get", "tcp_socket", "sleep"), f"{where}.lifecycle.{name}"
                )


def _pull_policy(policy: str, where: str) -> Iterator[str]:
    if policy not in ("", "Always", "IfNotPresent", "Never"):
        yield f"{where}: expected Always, IfNotPresent or Never, got {policy!r}"


def _resources(resources: ResourceRequirements | None, where: str, *, pod_level: bool) -> Iterator[str]:
    if resources is None:
        return
    if resources.claims:
        yield f"{where}.claims: {_NO_API}"
    requests, limits = resources.requests or {}, resources.limits or {}
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name, quantity in amounts.items():
            yield from _amount(name, quantity, f"{where}.{kind}.{name}", pod_level=pod_level)
    for name, limit in limits.items():
        request = requests.get(name)
        if request is not None and request > limit:
            yield f"{where}.requests.{name}: {request} is more than the limit {limit}"
        if request is not None and request != limit and (is_hugepage(name) or is_extended(name)):
            yield f"{where}.requests.{name}: expected to equal the limit {limit}, got {request}"


def _amount(name: str, quantity: Quantity, field: str, *, pod_level: bool) -> Iterator[str]:
    if quantity < ZERO:
        yield f"{field}: expected 0 or more, got {quantity}"
    elif scaled(name, quantity) >= 2**63:
        yield f"{field}: {quantity} does not fit in 64 bits"
    if pod_level and not supports_pod_level(name):
        yield f"{field}: only cpu, memory and hugepages can be set for a whole pod"
    elif name not in (CPU, MEMORY, EPHEMERAL_STORAGE) and not is_hugepage(name):
        if not is_extended(name):
            yield f"{field}: unknown resource; expected cpu, memory, … or domain/name"
        elif quantity.nano % NANO:
            yield f"{field}: expected a whole number, got {quantity}"


def _environment(container: Container, where: str) -> Iterator[str]:
    for index, source in enumerate(container.env_from or []):
        if source.config_map_ref is not None or source.secret_ref is not None:
            yield f"{where}.envFrom[{index}]: {_NO_API}"
    for index, variable in enumerate(container.env or []):
        field = f"{where}.env[{index}]"
        if _ENV_NAME.fullmatch(variable.name) is None:
            yield f"{field}.name: expected a name without '=' or blanks, got {variable.name[:64]!r}"
        source_of = variable.value_from
        if source_of is None:
            continue
        if source_of.config_map_key_ref or source_of.secret_key_ref:
            yield f"{field}.valueFrom: {_NO_API}"
        elif source_of.field_ref is None and source_of.resource_field_ref is None:
            yield f"{field}.valueFrom: expected fieldRef or resourceFieldRef"


def _mounts(container: Container, where: str, volumes: Mapping[str, Volume]) -> Iterator[str]:
    paths: set[str] = set()
    for index, mount in enumerate(container.volume_mounts or []):
        field = f"{where}.volumeMounts[{index}]"
        if mount.name not in volumes:
            yield f"{field}.name: there is no volume {mount.name!r}"
        elif volumes[mount.name].image is not None and (mount.sub_path or mount.sub_path_expr):
            yield f"{field}.subPath: not supported in an image volume, which is mounted whole"
        if mount.mount_path in paths:
            yield f"{field}.mountPath: {mount.mount_path!r} is mounted twice"
        paths.add(mount.mount_path)
        for path in (mount.sub_path, mount.sub_path_expr):
            if path.startswith("/") or ".." in path.split("/"):
                yield f"{field}.subPath: expected a relative path without .., got {path!r}"
        if mount.mount_propagation not in (None, "None", "HostToContainer", "Bidirectional"):
            yield f"{field}.mountPropagation: expected None, HostToContainer or Bidirectional"
    if container.volume_devices:
        yield f"{where}.volumeDevices: {_NO_API}"


def _probe(probe: Probe, where: str) -> Iterator[str]:
    yield from _one_of(probe, ("exec", "http_get", "tcp_socket", "grpc"), where)
    for name, least in (
        ("initial_delay_seconds", 0),
        ("timeout_seconds", 0),
        ("period_seconds", 0),
        ("success_threshold", 0),
        ("failure_threshold", 0),
    ):
        value = getattr(probe, name)
        if value < least or value > 2**31 - 1:
            yield f"{where}.{json_name(name)}: expected {least} or more, got {value}"


def _one_of(owner: Probe | LifecycleHandler, choices: tuple[str, ...], where: str) -> Iterator[str]:
    given = [name for name in choices if getattr(owner, name) is not None]
    if len(given) != 1:
        yield f"{where}: expected exactly one of exec, httpGet, tcpSocket and the like, got {len(given)}"
    action: Any = owner.exec
    if action is not None and not action.command:
        yield f"{where}.exec.command: expected a command"


def _volumes(pod: Pod) -> Iterator[str]:
    seen: set[str] = set()
    for index, volume in enumerate(pod.spec.volumes or []):
        where = f"spec.volumes[{index}]"
        if _LABEL.fullmatch(volume.name) is None or len(volume.name) > 63:
            yield f"{where}.name: expected a DNS label, got {volume.name[:64]!r}"
        if volume.name in seen:
            yield f"{where}.name: {volume.name!r} is already the name of another volume"
        seen.add(volume.name)
        yield from _volume(volume, where)


def _volume(volume: Volume, where: str) -> Iterator[str]:
    foreign = [name for name in _NEEDS_API_SERVER if getattr(volume, name) is not None]
    if foreign:
        yield f"{where}: a {foreign[0].replace('_', ' ')} volume {_NO_API}"
        return
    given = [name for name in _SUPPORTED_SOURCES if getattr(volume, name) is not None]
    if len(given) != 1:
        yield f"{where}: expected exactly one source (hostPath, emptyDir, downwardAPI, projected, image)"
    if volume.image is not None:
        if not volume.image.reference.strip():
            yield f"{where}.image.reference: expected an image reference"
        yield from _pull_policy(volume.image.pull_policy, f"{where}.image.pullPolicy")
    if volume.host_path is not None:
        path = volume.host_path.path
        if not path.startswith("/") or ".." in path.split("/"):
            yield f"{where}.hostPath.path: expected an absolute path without .., got {path!r}"
    if volume.empty_dir is not None:
        if volume.empty_dir.medium not in ("", "Memory") and not is_hugepage(volume.empty_dir.medium.lower()):
            yield f"{where}.emptyDir.medium: expected Memory or nothing, got {volume.empty_dir.medium!r}"
        if volume.empty_dir.size_limit is not None and volume.empty_dir.size_limit < ZERO:
            yield f"{where}.emptyDir.sizeLimit: expected 0 or more"
    for number, source in enumerate((volume.projected and volume.projected.sources) or []):
        if source.downward_api is None:
            yield f"{where}.projected.sources[{number}]: {_NO_API}"
