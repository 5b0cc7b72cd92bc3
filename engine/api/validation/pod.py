"""The pod as a whole: metadata, life time, names and DNS, what only an API server has; all parts together."""

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
    address,
    dns_label,
    dns_subdomain,
    in_range,
    labels,
    one_of,
    qualified_name,
)
from engine.api.validation.placement import placement_problems
from engine.api.validation.resources import overhead_problems, pod_resources
from engine.api.validation.security import pod_security
from engine.api.validation.volumes import volume_problems
from engine.api.validation.windows import os_problems

_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*|-0[0-9]*")
_LARGEST_ANNOTATIONS = 256 * 1024
_LONGEST_MANAGER, _LONGEST_SUBRESOURCE = 128, 256
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"
_PLAIN_FINALIZERS: Final = ("kubernetes", _ORPHAN, _FOREGROUND)
_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None", "")
_SEARCH_LABEL = r"_?[a-z0-9](?:[-a-z0-9_]*[a-z0-9])?"
_SEARCH = re.compile(rf"{_SEARCH_LABEL}(?:\.{_SEARCH_LABEL})*")
_LONGEST_HOSTNAME = 64
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 32, 2048


def network_problems(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    for name, text in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if text:
            yield from dns_label(text, f"spec.{name}")
    yield from _hostname_override(pod)
    for index, alias in enumerate(spec.host_aliases or []):
        where = f"spec.hostAliases[{index}]"
        yield from address(alias.ip, f"{where}.ip")
        for number, hostname in enumerate(alias.hostnames or []):
            yield from dns_subdomain(hostname, f"{where}.hostnames[{number}]")
    yield from one_of(spec.dns_policy, _POLICIES, "spec.dnsPolicy")
    yield from _dns_config(pod)


def _hostname_override(pod: Pod) -> Iterator[str]:
    spec, field = pod.spec, "spec.hostnameOverride"
    name = spec.hostname_override
    if name is None:
        return
    if spec.set_hostname_as_fqdn:
        yield f"{field}: must not be set with setHostnameAsFQDN"
    if spec.host_network:
        yield f"{field}: must not be set with hostNetwork"
    if len(name) > _LONGEST_HOSTNAME:
        yield f"{field}: expected at most {_LONGEST_HOSTNAME} characters, got {len(name)}"
    yield from dns_subdomain(name, field)


def _dns_config(pod: Pod) -> Iterator[str]:
    config, where = pod.spec.dns_config, "spec.dnsConfig"
    servers = (config and config.nameservers) or []
    if pod.spec.dns_policy == "None" and not servers:
        yield f"{where}.nameservers: expected at least one with dnsPolicy None"
    if config is None:
        return
    if len(servers) > _MOST_NAMESERVERS:
        yield f"{where}.nameservers: expected at most {_MOST_NAMESERVERS}, got {len(servers)}"
    for index, server in enumerate(servers):
        yield from address(server, f"{where}.nameservers[{index}]")
    searches = config.searches or []
    if len(searches) > _MOST_SEARCHES or len(" ".join(searches)) > _LONGEST_SEARCHES:
        yield f"{where}.searches: at most {_MOST_SEARCHES} with {_LONGEST_SEARCHES} characters in total"
    for index, search in enumerate(searches):
        # A final dot makes a domain absolute; the dot alone is the root (KEP-4427).
        name = search.removesuffix(".")
        if search != "." and (len(name) > 253 or _SEARCH.fullmatch(name) is None):
            yield f"{where}.searches[{index}]: expected a domain, got {search[:64]!r}"
    for index, option in enumerate(config.options or []):
        if not option.name:
            yield f"{where}.options[{index}]: expected a name"


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
    # Validation is on the way of every pod that starts: most give few fields, and skip most checks.
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
    # A manifest with this annotation represents a pod of an API server, which has a service account.
    # Recorded pods of an API server are read by the same checks, and have a service account.
    if pod.annotations.get(SOURCE_ANNOTATION) == "api":
        return
    if spec.service_account_name or spec.service_account:
        yield f"spec.serviceAccountName: {NO_API}"
    if any(secret.name for secret in spec.image_pull_secrets or ()):
        yield f"spec.imagePullSecrets: {NO_API}"


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
        # Unlike a label's, the case of an annotation's key does not matter (`ValidateAnnotations`).
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
    # `BannedOwners` of apimachinery: an Event expires by itself, and would take what it owns with it.
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
