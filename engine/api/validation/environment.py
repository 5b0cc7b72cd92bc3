"""Environment variables, and the references to fields and resources that downward volumes share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from engine.api.pod import Container, EnvVar, ObjectFieldSelector, ResourceFieldSelector, Volume
from engine.api.references import FileKeySelector
from engine.api.resources import is_qualified_name
from engine.api.validation.names import NO_API, dns_label, is_environment_name, no_backsteps

_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_ENV_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.host",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
FILE_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
)
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_SIZES = {"1", *(f"1{unit}" for unit in ("k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}


def environment_problems(container: Container, volumes: Mapping[str, Volume], where: str) -> Iterator[str]:
    for index, source in enumerate(container.env_from or []):
        field = f"{where}.envFrom[{index}]"
        # RelaxedEnvironmentVariableValidation (KEP-4369): no longer only identifiers of C.
        if source.prefix and not is_environment_name(source.prefix):
            yield f"{field}.prefix: expected printable ASCII without '=', got {source.prefix[:64]!r}"
        if (source.config_map_ref is None) == (source.secret_ref is None):
            yield f"{field}: expected exactly one of configMapRef and secretRef"
        else:
            yield f"{field}: {NO_API}"
    for index, variable in enumerate(container.env or []):
        yield from _variable(variable, volumes, f"{where}.env[{index}]")


def _variable(variable: EnvVar, volumes: Mapping[str, Volume], field: str) -> Iterator[str]:
    if not is_environment_name(variable.name):
        yield f"{field}.name: expected printable ASCII without '=', got {variable.name[:64]!r}"
    source = variable.value_from
    if source is None:
        return
    given = [
        one
        for one in (
            source.field_ref,
            source.resource_field_ref,
            source.config_map_key_ref,
            source.secret_key_ref,
            source.file_key_ref,
        )
        if one is not None
    ]
    if variable.value and given:
        yield f"{field}.valueFrom: must not be set together with value"
    elif source.config_map_key_ref is not None or source.secret_key_ref is not None:
        yield f"{field}.valueFrom: {NO_API}"
    elif len(given) != 1:
        expected = "exactly one of fieldRef, resourceFieldRef and fileKeyRef"
        yield f"{field}.valueFrom: expected {expected}, got {len(given)}"
    if source.field_ref is not None:
        yield from field_reference(source.field_ref, _ENV_FIELDS, f"{field}.valueFrom.fieldRef")
    if source.resource_field_ref is not None:
        yield from resource_reference(source.resource_field_ref, f"{field}.valueFrom.resourceFieldRef")
    if source.file_key_ref is not None:
        yield from _file_reference(source.file_key_ref, volumes, f"{field}.valueFrom.fileKeyRef")


def _file_reference(reference: FileKeySelector, volumes: Mapping[str, Volume], where: str) -> Iterator[str]:
    if not is_environment_name(reference.key):
        yield f"{where}.key: expected printable ASCII without '=', got {reference.key[:64]!r}"
    if not reference.path:
        yield f"{where}.path: expected a path"
    yield from no_backsteps(reference.path, f"{where}.path")
    yield from dns_label(reference.volume_name, f"{where}.volumeName")
    volume = volumes.get(reference.volume_name)
    if volume is None or volume.empty_dir is None:
        yield f"{where}.volumeName: there is no emptyDir volume {reference.volume_name[:64]!r}"


def field_reference(reference: ObjectFieldSelector, known: Collection[str], where: str) -> Iterator[str]:
    """Check a field reference; `known` are the paths that need no subscript."""
    if reference.api_version not in ("", "v1"):
        yield f"{where}.apiVersion: expected v1, got {reference.api_version[:64]!r}"
    path = reference.field_path
    subscripted = _SUBSCRIPT.fullmatch(path)
    if subscripted is None:
        if path not in known:
            yield f"{where}.fieldPath: expected one of {', '.join(known)}; got {path[:64]!r}"
        return
    kind, key = subscripted.groups()
    # In the keys of annotations case does not matter (`ValidateAnnotations`).
    if not is_qualified_name(key.lower() if kind == "metadata.annotations" else key):
        yield f"{where}.fieldPath: {key[:64]!r} is not a name of labels or annotations"


def resource_reference(
    reference: ResourceFieldSelector, where: str, *, of_volume: bool = False
) -> Iterator[str]:
    if of_volume and not reference.container_name:
        yield f"{where}.containerName: expected a container's name"
    kind, _, resource = reference.resource.partition(".")
    huge = resource.startswith("hugepages-")
    if kind not in ("limits", "requests") or (resource not in _RESOURCES and not huge):
        expected = "limits. or requests. and cpu, memory, ephemeral-storage or hugepages-SIZE"
        yield f"{where}.resource: expected {expected}, got {reference.resource[:64]!r}"
    divisor = reference.divisor
    # A divisor of 0 is an unset one. The list is closed: `2Mi` is a quantity, but not a unit.
    if divisor is not None and divisor and str(divisor) not in ({"1m", "1"} if resource == "cpu" else _SIZES):
        yield f"{where}.divisor: expected a unit such as 1, 1m (cpu) or 1Mi, got {str(divisor)[:64]!r}"
