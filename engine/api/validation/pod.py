"""The pod as a whole: metadata, life time, what only an API server has; and all parts together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.meta import ManagedFieldsEntry, ObjectMeta, OwnerReference
from engine.api.pod import Pod
from engine.api.qos import SOURCE_ANNOTATION
from engine.api.resources import is_qualified_name
from engine.api.validation.annotations import annotation_problems
from engine.api.validation.containers import BLANK, container_problems, given_fields, uses_security
from engine.api.validation.names import (
    LARGEST_INT32,
    NO_API,
    dns_label,
    dns_subdomain,
    in_range,
    labels,
    one_of,
    qualified_name,
)
from engine.api.validation.network import network_problems
from engine.api.validation.placement import placement_problems
from engine.api.validation.resources import overhead_problems, pod_resources
from engine.api.validation.security import pod_security
from engine.api.validation.volumes import volume_problems
from engine.api.validation.windows import os_problems

CHECKS: Final = (
    (volume_problems, {"volumes"}),
    (pod_resources, {"resources"}),
    (overhead_problems, {"overhead"}),
    (pod_security, {"security_context", "host_users", "share_process_namespace"}),
    (
        network_problems,
        {"hostname", "subdomain", "hostname_override", "host_aliases", "dns_policy", "dns_config"},
    ),
    (
        placement_problems,
        {
            "node_selector", "tolerations", "affinity", "topology_spread_constraints", "scheduling_gates",
            "scheduling_group", "readiness_gates", "priority_class_name", "preemption_policy",
        },
    ),
)  # fmt: skip
"""The checks of fields that most pods do not give, each with the fields without which it finds nothing."""


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
    if spec.runtime_class_name is not None:
        yield from dns_subdomain(spec.runtime_class_name, "spec.runtimeClassName")
    given = given_fields(spec, BLANK.spec)
    for check, fields in CHECKS:
        if not given.isdisjoint(fields):
            yield from check(pod)
    if spec.os is not None or uses_security(pod):
        yield from os_problems(pod)
    if pod.metadata.annotations:
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


_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*|-0[0-9]*")
_LARGEST_ANNOTATIONS = 256 * 1024
_LONGEST_MANAGER, _LONGEST_SUBRESOURCE = 128, 256
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"
_PLAIN_FINALIZERS: Final = ("kubernetes", _ORPHAN, _FOREGROUND)


def metadata_problems(pod: Pod) -> Iterator[str]:
    meta = pod.metadata
    yield from dns_subdomain(meta.name, "metadata.name")
    if meta.generate_name:
        yield from dns_subdomain(_completed(meta.generate_name), "metadata.generateName")
    if meta.namespace:
        yield from dns_label(meta.namespace, "metadata.namespace")
    if meta.uid and _UID.fullmatch(meta.uid) is None:
        yield f"metadata.uid: expected letters, digits, - _ and ., got {meta.uid[:64]!r}"
    if meta.generation < 0:
        yield f"metadata.generation: expected 0 or more, got {meta.generation}"
    yield from labels(meta.labels, "metadata.labels")
    yield from _annotations(pod.annotations)
    yield from _owners(meta)
    yield from _finalizers(meta.finalizers or [])
    for index, entry in enumerate(meta.managed_fields or []):
        yield from _managed(entry, f"metadata.managedFields[{index}]")


def _completed(prefix: str) -> str:
    """Return the prefix as it is checked: a name that the API server completes may end with a dash."""
    return f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix


def _annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    where = "metadata.annotations"
    for name in annotations:
        if not is_qualified_name(name.lower()):
            yield f"{where}: {name[:64]!r} is not an annotation's name"
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > _LARGEST_ANNOTATIONS:
        yield f"{where}: more than {_LARGEST_ANNOTATIONS} bytes"
    cost = annotations.get(_DELETION_COST)
    if cost is not None and (_INTEGER.fullmatch(cost) is None or not -(2**31) <= int(cost[:16]) < 2**31):
        yield f"{where}.{_DELETION_COST}: expected an integer of 32 bits, got {cost[:64]!r}"


def _owners(meta: ObjectMeta) -> Iterator[str]:
    where = "metadata.ownerReferences"
    references = meta.owner_references or []
    for index, owner in enumerate(references):
        yield from _owner(owner, f"{where}[{index}]")
    if sum(owner.controller is True for owner in references) > 1:
        yield f"{where}: only one may be the controller"


def _owner(owner: OwnerReference, field: str) -> Iterator[str]:
    if not _version(owner.api_version):
        yield f"{field}.apiVersion: expected a version such as v1 or apps/v1, got {owner.api_version[:64]!r}"
    for name in ("kind", "name", "uid"):
        if not getattr(owner, name):
            yield f"{field}.{name}: expected a value"
    if (owner.api_version.removeprefix("/"), owner.kind) == ("v1", "Event"):
        yield f"{field}: an Event cannot be an owner"


def _version(api_version: str) -> str:
    """Return the version in `group/version`, or an empty text."""
    group, slash, version = api_version.partition("/")
    return "" if "/" in version else (version if slash else group)


def _finalizers(finalizers: list[str]) -> Iterator[str]:
    where = "metadata.finalizers"
    for index, name in enumerate(finalizers):
        field = f"{where}[{index}]"
        yield from qualified_name(name, field)
        if "/" not in name and name not in _PLAIN_FINALIZERS:
            known = ", ".join(_PLAIN_FINALIZERS)
            yield f"{field}: expected {known} or a name with a domain, got {name[:64]!r}"
    if _ORPHAN in finalizers and _FOREGROUND in finalizers:
        yield f"{where}: {_ORPHAN} and {_FOREGROUND} exclude each other"


def _managed(entry: ManagedFieldsEntry, field: str) -> Iterator[str]:
    yield from one_of(entry.operation, ("Apply", "Update"), f"{field}.operation")
    yield from one_of(entry.fields_type, ("FieldsV1", ""), f"{field}.fieldsType")
    manager = entry.manager
    if len(manager.encode()) > _LONGEST_MANAGER or not manager.isprintable():
        yield f"{field}.manager: expected up to {_LONGEST_MANAGER} printable characters, got {manager[:64]!r}"
    if len(entry.subresource.encode()) > _LONGEST_SUBRESOURCE:
        yield f"{field}.subresource: expected up to {_LONGEST_SUBRESOURCE} bytes"
