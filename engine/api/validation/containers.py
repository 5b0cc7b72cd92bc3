"""Containers and init containers: names, images, ports, mounts; the rest is in files of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.api.pod import Container, ContainerPort, Pod, Volume, VolumeMount
from engine.api.validation.environment import environment_problems
from engine.api.validation.lifecycle import stop_signal_problems
from engine.api.validation.names import NO_API, below, dns_label, is_port, is_port_name, one_of
from engine.api.validation.probes import probe_problems
from engine.api.validation.resources import resource_problems
from engine.api.validation.security import container_security

PULL_POLICIES = ("Always", "IfNotPresent", "Never", "")


def container_problems(pod: Pod) -> Iterator[str]:
    seen: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    volumes = {volume.name: volume for volume in pod.spec.volumes or []}
    for field, containers in (("initContainers", pod.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            where = f"spec.{field}[{index}]"
            init = field == "initContainers"
            yield from _container(pod, container, where, volumes, stays=not init or container.is_sidecar)
            if container.name in seen:
                yield f"{where}.name: {container.name!r} is already the name of another container"
            seen.add(container.name)
            if pod.spec.host_network and not init:
                for number, port in enumerate(container.ports or []):
                    if port.host_port not in (0, port.container_port):
                        yield f"{where}.ports[{number}].hostPort: must match containerPort with hostNetwork"
            for port in container.ports or []:
                key = (port.host_ip, port.protocol, port.host_port)
                if port.host_port and not init and key in host_ports:
                    yield f"{where}.ports: host port {port.host_port}/{port.protocol} is given twice"
                host_ports.add(key)


def _container(
    pod: Pod, container: Container, where: str, volumes: Mapping[str, Volume], *, stays: bool
) -> Iterator[str]:
    yield from dns_label(container.name, f"{where}.name")
    if not container.image.strip():
        yield f"{where}.image: expected an image reference"
    elif container.image != container.image.strip():
        yield f"{where}.image: expected no blanks at its ends, got {container.image[:64]!r}"
    yield from one_of(container.image_pull_policy, PULL_POLICIES, f"{where}.imagePullPolicy")
    yield from one_of(container.restart_policy, ("Always", "OnFailure", "Never"), f"{where}.restartPolicy")
    yield from _restart_rules(container, where)
    policies = ("File", "FallbackToLogsOnError", "")
    yield from one_of(container.termination_message_policy, policies, f"{where}.terminationMessagePolicy")
    yield from _ports(container.ports or [], f"{where}.ports")
    yield from resource_problems(container.resources, f"{where}.resources", pod_level=False)
    yield from environment_problems(container, volumes, where)
    yield from _mounts(container, where, volumes)
    grace = pod.spec.termination_grace_period_seconds
    yield from probe_problems(container, where, may_have=stays, grace=30 if grace is None else grace)
    yield from stop_signal_problems(pod, container, where)
    yield from container_security(pod, container, f"{where}.securityContext")


def _ports(ports: list[ContainerPort], where: str) -> Iterator[str]:
    names: set[str] = set()
    for index, port in enumerate(ports):
        field = f"{where}[{index}]"
        if not is_port(port.container_port) or (port.host_port and not is_port(port.host_port)):
            yield f"{field}: expected ports between 1 and 65535"
        yield from one_of(port.protocol, ("TCP", "UDP", "SCTP"), f"{field}.protocol")
        if port.name and not is_port_name(port.name):
            yield f"{field}.name: expected up to 15 of a-z, 0-9 and -, with a letter, got {port.name[:64]!r}"
        elif port.name and port.name in names:
            yield f"{field}.name: {port.name!r} is already the name of another port"
        names.add(port.name)


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
    if container.volume_devices:
        yield f"{where}.volumeDevices: {NO_API}"


def _mount(mount: VolumeMount, field: str, *, privileged: bool) -> Iterator[str]:
    if mount.sub_path and mount.sub_path_expr:
        yield f"{field}.subPathExpr: not beside subPath"
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
            yield f"{field}.recursiveReadOnly: only with readOnly"
        if propagation not in (None, "None"):
            yield f"{field}.recursiveReadOnly: not with mountPropagation {propagation}"


def _privileged(container: Container) -> bool:
    return bool(container.security_context and container.security_context.privileged)


def _restart_rules(container: Container, where: str) -> Iterator[str]:
    rules = container.restart_policy_rules or []
    if container.restart_policy is None and rules:
        yield f"{where}.restartPolicy: must specify restartPolicy when restart rules are used"
    if len(rules) > 20:
        yield f"{where}.restartPolicyRules: expected at most 20, got {len(rules)}"
    for index, rule in enumerate(rules):
        field = f"{where}.restartPolicyRules[{index}]"
        yield from one_of(rule.action, ("Restart", "RestartAllContainers"), f"{field}.action")
        if rule.exit_codes is None:
            yield f"{field}.exitCodes: must be specified"
            continue
        yield from one_of(rule.exit_codes.operator, ("In", "NotIn"), f"{field}.exitCodes.operator")
        if len(rule.exit_codes.values or []) > 255:
            yield f"{field}.exitCodes.values: expected at most 255"
