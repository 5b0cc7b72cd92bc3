"""Containers and init containers: names, images, ports, mounts, restart rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from operator import ne
from typing import Final

from msgspec.structs import astuple

from engine.api.defaults import apply_defaults
from engine.api.pod import (
    Container,
    ContainerPort,
    Pod,
    PodSecurityContext,
    PodSpec,
    Volume,
    VolumeMount,
)
from engine.api.resources import CPU, MEMORY
from engine.api.struct import Struct
from engine.api.validation.environment import environment_problems
from engine.api.validation.names import NO_API, below, dns_label, is_port, is_port_name, one_of
from engine.api.validation.probes import probe_problems
from engine.api.validation.resources import container_resources
from engine.api.validation.security import container_security

PULL_POLICIES = ("Always", "IfNotPresent", "Never", "")


BLANK: Final = Pod(spec=PodSpec(containers=[Container()]))
"""What `apply_defaults` makes of a pod that gives nothing."""
apply_defaults(BLANK)
_MOST_RULES, _MOST_EXIT_CODES = 20, 255
_RESTART, _KEEP = "RestartContainer", "NotRequired"


def given_fields(values: Struct, blank: Struct) -> set[str]:
    """Return the names of the fields of a spec that differ from those of `blank`.

    Most pods give few of their many fields, so that whole groups of checks have nothing to look at.
    """
    differing = map(ne, astuple(values), astuple(blank))
    return set(compress(values.__struct_fields__, differing))


def uses_security(pod: Pod) -> bool:
    """Tell whether the pod or a container gives anything in a security context."""
    if pod.spec.security_context not in (None, PodSecurityContext()):
        return True
    contexts = [container.security_context for container in pod.all_containers]
    return any(contexts)


def container_problems(pod: Pod) -> Iterator[str]:
    volumes = {volume.name: volume for volume in pod.spec.volumes or []}
    # Init and app containers share one space of names, because the kubelet finds statuses and logs by name.
    if not pod.spec.containers:
        yield "spec.containers: expected at least one container"
    names: set[str] = set()
    for where, container in containers_with_path(pod):
        yield from _container(pod, container, where, volumes)
        if container.name in names:
            yield f"{where}.name: {container.name!r} is already the name of another container"
        names.add(container.name)
    yield from _host_ports(pod)


def containers_with_path(pod: Pod) -> Iterator[tuple[str, Container]]:
    """Yield each container with its path, init containers first."""
    for field, containers in (("initContainers", pod.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            yield f"spec.{field}[{index}]", container


def is_init(where: str) -> bool:
    """Return whether a path of `containers_with_path` is an init container's."""
    return where.startswith("spec.initContainers")


def _container(pod: Pod, container: Container, where: str, volumes: Mapping[str, Volume]) -> Iterator[str]:
    init = is_init(where)
    yield from dns_label(container.name, f"{where}.name")
    if not container.image.strip():
        yield f"{where}.image: expected an image reference"
    elif container.image != container.image.strip():
        yield f"{where}.image: must not begin or end with white space, got {container.image[:64]!r}"
    yield from one_of(container.image_pull_policy, PULL_POLICIES, f"{where}.imagePullPolicy")
    policies = ("File", "FallbackToLogsOnError", "")
    yield from one_of(container.termination_message_policy, policies, f"{where}.terminationMessagePolicy")
    given = given_fields(container, BLANK.spec.containers[0])
    if not given.isdisjoint(("restart_policy", "restart_policy_rules")):
        yield from restart_problems(container, where)
    yield from _ports(container.ports or [], f"{where}.ports")
    if "resources" in given:
        yield from container_resources(container.resources, f"{where}.resources")
    if "resize_policy" in given:
        yield from resize_policy_problems(pod, container, where, init=init)
    if not given.isdisjoint(("env", "env_from")):
        yield from environment_problems(container, volumes, where)
    if not given.isdisjoint(("volume_mounts", "volume_devices")):
        yield from _mounts(container, where, volumes)
    if not given.isdisjoint(("liveness_probe", "readiness_probe", "startup_probe", "lifecycle")):
        yield from probe_problems(pod, container, where, may_have=not init or container.is_sidecar)
    if "security_context" in given:
        yield from container_security(pod, container, f"{where}.securityContext")


def _ports(ports: list[ContainerPort], where: str) -> Iterator[str]:
    names: set[str] = set()
    for index, port in enumerate(ports):
        field = f"{where}[{index}]"
        # A host port of 0 is an absent one: defaulting has set it to the container's with hostNetwork.
        if not is_port(port.container_port) or (port.host_port and not is_port(port.host_port)):
            yield f"{field}: expected ports between 1 and 65535"
        yield from one_of(port.protocol, ("TCP", "UDP", "SCTP"), f"{field}.protocol")
        if port.name and not is_port_name(port.name):
            yield f"{field}.name: expected up to 15 of a-z, 0-9 and -, with a letter, got {port.name[:64]!r}"
        elif port.name and port.name in names:
            yield f"{field}.name: {port.name!r} is already the name of another port"
        names.add(port.name)


def _host_ports(pod: Pod) -> Iterator[str]:
    """Check host ports. Containers share the node's; init containers run in sequence, so each has its own."""
    for index, container in enumerate(pod.init_containers):
        yield from _repeated_host_ports([(f"spec.initContainers[{index}]", container)])
    together = [(where, one) for where, one in containers_with_path(pod) if not is_init(where)]
    yield from _repeated_host_ports(together)
    for where, container in together if pod.spec.host_network else ():
        for number, port in enumerate(container.ports or []):
            if port.host_port != port.container_port:
                yield f"{where}.ports[{number}].hostPort: must match containerPort with hostNetwork"


def _repeated_host_ports(containers: Iterable[tuple[str, Container]]) -> Iterator[str]:
    taken: set[tuple[str, str, int]] = set()
    for where, container in containers:
        for number, port in enumerate(container.ports or []):
            # By the text of the address, as `AccumulateUniqueHostPorts`: the wildcard and a single address
            # do not collide here.
            key = (port.protocol, port.host_ip, port.host_port)
            if port.host_port and key in taken:
                field = f"{where}.ports[{number}].hostPort"
                yield f"{field}: host port {port.host_port}/{port.protocol} is given twice"
            taken.add(key)


def _mounts(container: Container, where: str, volumes: Mapping[str, Volume]) -> Iterator[str]:
    paths: set[str] = set()
    for index, mount in enumerate(container.volume_mounts or []):
        field = f"{where}.volumeMounts[{index}]"
        if mount.name not in volumes:
            yield f"{field}.name: there is no volume {mount.name!r}"
        if not mount.mount_path:
            yield f"{field}.mountPath: expected a path"
        elif mount.mount_path in paths:
            yield f"{field}.mountPath: {mount.mount_path!r} is mounted twice"
        paths.add(mount.mount_path)
        yield from _mount(mount, field, privileged=_privileged(container))
    # Only a claim gives a block device, and claims need an API server.
    if container.volume_devices:
        yield f"{where}.volumeDevices: {NO_API}"


def _mount(mount: VolumeMount, field: str, *, privileged: bool) -> Iterator[str]:
    if mount.sub_path and mount.sub_path_expr:
        yield f"{field}.subPathExpr: must not be set together with subPath"
    yield from below(mount.sub_path, f"{field}.subPath")
    yield from below(mount.sub_path_expr, f"{field}.subPathExpr")
    propagation = mount.mount_propagation
    yield from one_of(propagation, ("None", "HostToContainer", "Bidirectional"), f"{field}.mountPropagation")
    if propagation == "Bidirectional" and not privileged:
        yield f"{field}.mountPropagation: Bidirectional is for privileged containers only"
    recursive = mount.recursive_read_only
    yield from one_of(recursive, ("Disabled", "IfPossible", "Enabled"), f"{field}.recursiveReadOnly")
    if recursive in ("IfPossible", "Enabled"):
        if not mount.read_only:
            yield f"{field}.recursiveReadOnly: requires readOnly: true"
        if propagation not in (None, "None"):
            yield f"{field}.recursiveReadOnly: must not be set with mountPropagation {propagation}"


def _privileged(container: Container) -> bool:
    return bool(container.security_context and container.security_context.privileged)


def restart_problems(container: Container, where: str) -> Iterator[str]:
    yield from one_of(container.restart_policy, ("Always", "OnFailure", "Never"), f"{where}.restartPolicy")
    rules = container.restart_policy_rules or []
    if container.restart_policy is None and rules:
        yield f"{where}.restartPolicy: must specify restartPolicy when restart rules are used"
    if len(rules) > _MOST_RULES:
        yield f"{where}.restartPolicyRules: expected at most {_MOST_RULES}, got {len(rules)}"
    for index, rule in enumerate(rules):
        field = f"{where}.restartPolicyRules[{index}]"
        yield from one_of(rule.action, ("Restart", "RestartAllContainers"), f"{field}.action")
        # The only condition that a rule may have (KEP-5307); later ones come beside it.
        if rule.exit_codes is None:
            yield f"{field}.exitCodes: must be specified"
            continue
        yield from one_of(rule.exit_codes.operator, ("In", "NotIn"), f"{field}.exitCodes.operator")
        if len(rule.exit_codes.values or []) > _MOST_EXIT_CODES:
            yield f"{field}.exitCodes.values: expected at most {_MOST_EXIT_CODES}"


def resize_policy_problems(pod: Pod, container: Container, where: str, *, init: bool) -> Iterator[str]:
    seen: set[str] = set()
    for index, policy in enumerate(container.resize_policy or []):
        field = f"{where}.resizePolicy[{index}]"
        yield from one_of(policy.resource_name, (CPU, MEMORY), f"{field}.resourceName")
        if policy.resource_name in seen:
            yield f"{field}.resourceName: {policy.resource_name[:64]!r} has a policy already"
        seen.add(policy.resource_name)
        yield from one_of(policy.restart_policy, (_KEEP, _RESTART), f"{field}.restartPolicy")
        # A container that must not restart cannot be restarted for a resize either (KEP-1287).
        if pod.spec.restart_policy == "Never" and policy.restart_policy != _KEEP:
            yield f"{field}.restartPolicy: expected {_KEEP} in a pod with restartPolicy Never"
        if init and not container.is_sidecar and policy.restart_policy == _RESTART:
            yield f"{field}.restartPolicy: expected {_KEEP} for an init container that ends"
