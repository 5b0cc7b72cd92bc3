"""Computes the environment, command and downward API values of a container. Pure."""

from __future__ import annotations

import logging
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from engine.api.errors import InvalidInput
from engine.api.objects.cluster_objects import ConfigMap, Secret, Service
from engine.api.pod import Container, EnvVarSource, Pod, ResourceFieldSelector
from engine.api.qos import is_static
from engine.api.quantity import Quantity
from engine.api.references import FileKeySelector
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, is_hugepage, supports_pod_level
from engine.node.spec.env_file import EnvFile, value_of

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

log = logging.getLogger("kubengine.pods")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value if there is one; `$$` is a dollar sign."""
    if "$" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def references(text: str) -> set[str]:
    """Return the names that `expand` looks up."""
    return {match[2] for match in _REFERENCE.finditer(text) if match[1] != "$"}


class EnvSources(msgspec.Struct, frozen=True):
    """Hold the sources of a container's environment besides its spec.

    They are the pod's addresses, the node's allocatable, the cluster objects that the container refers to,
    the services (None: not known yet), and files in the pod's volumes by volume and path.
    """

    pod_ips: tuple[str, ...]
    host_ips: tuple[str, ...]
    allocatable: Mapping[str, Quantity]
    services: Sequence[Service] | None = ()
    config_maps: Mapping[str, ConfigMap] = msgspec.field(default_factory=dict)
    secrets: Mapping[str, Secret] = msgspec.field(default_factory=dict)
    files: Mapping[tuple[str, str], EnvFile] = msgspec.field(default_factory=dict)


def container_environment(pod: Pod, container: Container, given: EnvSources) -> dict[str, str]:
    """Compute the variables in order: those of `envFrom`, the container's own, and those of services.

    The container's own variables may refer to earlier ones and to services. An object that is not in `given`
    is missing, which only an optional reference allows. Raises `InvalidInput`.
    """
    # Variables of services are fixed for the life of a container, so it must not start without them. Static
    # pods start without an API server.
    if given.services is None and not is_static(pod):
        raise InvalidInput("services have not yet been read at least once, cannot construct envvars")
    linked = bool(pod.spec.enable_service_links)
    links = service_variables(given.services or (), pod.metadata.namespace, linked)
    variables = _from_whole_objects(container, given)
    for variable in container.env or []:
        if variable.value or variable.value_from is None:
            value: str | None = expand(variable.value, ChainMap(variables, links))
        else:
            value = _from_source(pod, container, variable.value_from, given)
        if value is not None:
            variables[variable.name] = value
    # A variable of the container replaces one of a service, and keeps its place behind all of them.
    return {**links, **variables} if links else variables


def _from_whole_objects(container: Container, given: EnvSources) -> dict[str, str]:
    variables: dict[str, str] = {}
    for source in container.env_from or []:
        if source.config_map_ref is not None:
            config_map = given.config_maps.get(source.config_map_ref.name)
            texts = (config_map and config_map.data) or {}
        elif source.secret_ref is not None:
            secret = given.secrets.get(source.secret_ref.name)
            texts = {key: _text(value) for key, value in ((secret and secret.data) or {}).items()}
        else:
            continue
        variables |= {source.prefix + key: texts[key] for key in sorted(texts)}
    return variables


def _from_source(pod: Pod, container: Container, source: EnvVarSource, given: EnvSources) -> str | None:
    """Resolve `valueFrom`; return None for an optional value that does not exist."""
    namespace = pod.metadata.namespace
    if source.field_ref is not None:
        path = source.field_ref.field_path
        return field_value(pod, path, pod_ips=given.pod_ips, host_ips=given.host_ips)
    if source.resource_field_ref is not None:
        return resource_value(pod, source.resource_field_ref, container, given.allocatable)
    if source.config_map_key_ref is not None:
        wanted = source.config_map_key_ref
        config_map = given.config_maps.get(wanted.name)
        text = ((config_map and config_map.data) or {}).get(wanted.key)
        if text is None and not wanted.optional:
            raise InvalidInput(f"couldn't find key {wanted.key} in ConfigMap {namespace}/{wanted.name}")
        return text
    if source.secret_key_ref is not None:
        wanted = source.secret_key_ref
        secret = given.secrets.get(wanted.name)
        value = ((secret and secret.data) or {}).get(wanted.key)
        if value is None and not wanted.optional:
            raise InvalidInput(f"couldn't find key {wanted.key} in Secret {namespace}/{wanted.name}")
        return None if value is None else _text(value)
    if source.file_key_ref is not None:
        return _from_file(pod, source.file_key_ref, given)
    raise InvalidInput("valueFrom: unknown source", subject=pod.full_name)


def _from_file(pod: Pod, wanted: FileKeySelector, given: EnvSources) -> str | None:
    """Read a variable from a file. An empty value counts as missing; only the variable may be optional, not
    the file (kubelet v1.36).

    Errors in the file are only logged, because its text belongs to the containers.
    """
    file = given.files.get((wanted.volume_name, wanted.path))
    if file is None:
        raise InvalidInput(f'cannot find the volume "{wanted.volume_name}" referenced by FileKeyRef')
    unusable = InvalidInput("couldn't parse env file")
    if file.text is None:
        raise unusable
    try:
        value = value_of(file.text, wanted.key.encode())
    except InvalidInput as error:
        log.error("pod %s: %s: %s", pod.full_name, file.path, error)
        raise unusable from error
    if not value and not wanted.optional:
        raise InvalidInput(f'environment variable key "{wanted.key}" not found in file "{file.path}"')
    return _text(value) if value else None


def _text(value: bytes) -> str:
    """Decode bytes; bytes that are not UTF-8 become surrogates, which the runtime receives as the original
    bytes.
    """
    return value.decode(errors="surrogateescape")


def field_value(pod: Pod, path: str, *, pod_ips: tuple[str, ...] = (), host_ips: tuple[str, ...] = ()) -> str:
    """Return a pod field for the downward API. Raises `InvalidInput` for an unknown field."""
    match = _SUBSCRIPT.fullmatch(path)
    if match is not None:
        texts: dict[str, str] = getattr(pod.metadata, match[1]) or {}
        return texts.get(match[2], "")
    meta = pod.metadata
    values = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.host": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ips[0] if host_ips else "",
        "status.hostIPs": ",".join(host_ips),
        "status.podIP": pod_ips[0] if pod_ips else "",
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in values:
        raise InvalidInput(f"fieldPath {path!r} is not supported by the downward API", subject=pod.full_name)
    return values[path]


def _lines(values: Mapping[str, str] | None) -> str:
    escaped = {
        key: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for key, value in (values or {}).items()
    }
    return "\n".join(f'{key}="{escaped[key]}"' for key in sorted(escaped))


def resource_value(
    pod: Pod,
    selector: ResourceFieldSelector,
    container: Container | None,
    allocatable: Mapping[str, Quantity],
) -> str:
    """Return a request or limit in units of the divisor, rounded up; without one, `default_limit` or nothing.

    Source: kubelet v1.36 `kubelet_resources` and `api/v1/resource`.
    """
    named = selector.container_name
    if named:
        container = next((c for c in pod.all_containers if c.name == named), None)
    if container is None:
        raise InvalidInput(f"there is no container {named!r}", subject=pod.full_name)
    kind, _, resource = selector.resource.partition(".")
    known = resource in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_hugepage(resource)
    if kind not in ("limits", "requests") or not known:
        raise InvalidInput(
            f"resource {selector.resource!r} is not supported by the downward API", subject=pod.full_name
        )
    amounts = container.limits if kind == "limits" else container.requests
    quantity = amounts.get(resource, Quantity())
    if kind == "limits" and not quantity:
        quantity = default_limit(pod, resource, allocatable)
    divisor = selector.divisor or Quantity.from_value(1)
    if divisor.nano <= 0:
        divisor = Quantity.from_value(1)
    if resource == CPU:
        return str(-(-quantity.milli // divisor.milli))
    return str(-(-quantity.value // divisor.value))


def default_limit(pod: Pod, resource: str, allocatable: Mapping[str, Quantity]) -> Quantity:
    """Return what a container without a limit may use: its pod's limit, or else all that the node has.

    Huge pages are limited to what a container requests.
    """
    if is_hugepage(resource):
        return Quantity()
    of_node = allocatable.get(resource, Quantity())
    if pod.spec.resources is None or not supports_pod_level(resource) or resource not in allocatable:
        return of_node
    return (pod.spec.resources.limits or {}).get(resource) or of_node


_NO_ADDRESS: Final = ("", "None")
_API_SERVER: Final = ("default", "kubernetes")


def service_variables(services: Iterable[Service], namespace: str, links: bool) -> dict[str, str]:
    """Return the variables of the API server for every pod, and with `links` those of the
    namespace's services.
    """
    chosen: dict[str, Service] = {}
    for service in services:
        meta = service.metadata
        if service.spec.cluster_ip in _NO_ADDRESS or not service.spec.ports:
            continue
        if (meta.namespace, meta.name) == _API_SERVER:
            # A service `kubernetes` of the pod's own namespace takes precedence.
            chosen.setdefault(meta.name, service)
        elif links and meta.namespace == namespace:
            chosen[meta.name] = service
    return {name: value for key in sorted(chosen) for name, value in _variables(chosen[key])}


def _variables(service: Service) -> Iterator[tuple[str, str]]:
    address, ports = service.spec.cluster_ip, service.spec.ports or []
    prefix = _variable_name(service.metadata.name)
    yield f"{prefix}_SERVICE_HOST", address
    yield f"{prefix}_SERVICE_PORT", str(ports[0].port)
    for port in ports:
        if port.name:
            yield f"{prefix}_SERVICE_PORT_{_variable_name(port.name)}", str(port.port)
    host = f"[{address}]" if ":" in address else address
    for index, port in enumerate(ports):
        protocol = (port.protocol or "TCP").lower()
        url = f"{protocol}://{host}:{port.port}"
        if index == 0:
            yield f"{prefix}_PORT", url
        of_port = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        yield of_port, url
        yield f"{of_port}_PROTO", protocol
        yield f"{of_port}_PORT", str(port.port)
        yield f"{of_port}_ADDR", address


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()
