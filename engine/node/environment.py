"""Environment, command and downward-API values of a container. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.api.errors import InvalidInput
from engine.api.pod import Container, EnvVarSource, Pod, ResourceFieldSelector
from engine.api.quantity import Quantity
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, is_hugepage

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` by its value if there is one; `$$` is a dollar sign."""
    if "$" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def references(text: str) -> set[str]:
    """The names that `expand` looks up."""
    return {match[2] for match in _REFERENCE.finditer(text) if match[1] != "$"}


def container_environment(
    pod: Pod,
    container: Container,
    *,
    pod_ips: tuple[str, ...],
    host_ip: str,
    allocatable: Mapping[str, Quantity],
) -> dict[str, str]:
    """Variables in order; each may refer to those before it. Raises `InvalidInput`."""
    variables: dict[str, str] = {}
    if container.env_from:
        raise InvalidInput("envFrom: config maps and secrets are not supported yet", subject=pod.full_name)
    for variable in container.env or []:
        if variable.value_from is not None:
            value = _from_source(pod, container, variable.value_from, pod_ips, host_ip, allocatable)
        else:
            value = expand(variable.value, variables)
        variables[variable.name] = value
    return variables


def _from_source(
    pod: Pod,
    container: Container,
    source: EnvVarSource,
    pod_ips: tuple[str, ...],
    host_ip: str,
    allocatable: Mapping[str, Quantity],
) -> str:
    if source.field_ref is not None:
        return field_value(pod, source.field_ref.field_path, pod_ips=pod_ips, host_ip=host_ip)
    if source.resource_field_ref is not None:
        return resource_value(pod, source.resource_field_ref, container, allocatable)
    raise InvalidInput(
        "valueFrom: config maps, secrets and files are not supported yet", subject=pod.full_name
    )


def field_value(pod: Pod, path: str, *, pod_ips: tuple[str, ...] = (), host_ip: str = "") -> str:
    """A pod field as the downward API gives it. Raises `InvalidInput` for one that it has not."""
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
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "status.podIP": pod_ips[0] if pod_ips else "",
        "status.podIPs": ",".join(pod_ips),
    }
    if path not in values:
        raise InvalidInput(f"fieldPath {path!r} is not one that the downward API has", subject=pod.full_name)
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
    """A request or limit in units of the divisor, rounded up; a missing limit is what the node has."""
    named = selector.container_name
    if named:
        container = next((c for c in pod.all_containers if c.name == named), None)
    if container is None:
        raise InvalidInput(f"there is no container {named!r}", subject=pod.full_name)
    kind, _, resource = selector.resource.partition(".")
    known = resource in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_hugepage(resource)
    if kind not in ("limits", "requests") or not known:
        raise InvalidInput(
            f"resource {selector.resource!r} is not one that the downward API has", subject=pod.full_name
        )
    amounts = container.limits if kind == "limits" else container.requests
    quantity = amounts.get(resource)
    if quantity is None:
        quantity = allocatable.get(resource, Quantity()) if kind == "limits" else Quantity()
    divisor = selector.divisor or Quantity.from_value(1)
    if divisor.nano <= 0:
        divisor = Quantity.from_value(1)
    if resource == CPU:
        return str(-(-quantity.milli // divisor.milli))
    return str(-(-quantity.value // divisor.value))
