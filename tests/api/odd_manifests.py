"""Manifests with one odd value each, for every field of a v1.36 PodSpec and of its metadata.

A field is tried with each of `VALUES` and of its own in `ALSO`. The rest of the manifest is as little as
makes a kubelet read the field.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIELDS = (Path(__file__).parents[1] / "project" / "data" / "pod_spec_fields.txt").read_text().split()
METADATA = [
    *("name", "generateName", "namespace", "labels", "annotations", "finalizers[]", "generation"),
    *(f"ownerReferences[].{name}" for name in ("apiVersion", "kind", "name", "uid", "controller")),
    *(f"managedFields[].{name}" for name in ("operation", "fieldsType", "manager", "subresource")),
]

VALUES: list[Any] = [
    *("", "x", "X", "x_y", "a b", "a.b", "a.b/c", "-x", "x-", "..x", "../x", "/x", "/x/../y", "é", "x" * 64),
    *(
        "x" * 254,
        "10.0.0.1",
        "01.0.0.1",
        "::1",
        "::ffff:1.2.3.4",
        "fe80::1%eth0",
        "default",
        "c",
        "v",
        "500m",
    ),
    *(0, 1, 2, -1, 101, 512, 70000, 2**31 - 1, 2**31, 2**53, 1.5, 1.0, True, False, None),
    *([], ["x"], ["a b"], [1], {}, {"a": "b"}, {"a b": "c"}, {"a": "b c"}, {"cpu": "1"}, {"memory": "-1"}),
    *({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "3Mi", "cpu": "1"}, {"example.com/x": "1500m"}),
    *({"example.com/x": "1"}, {"kubernetes.io/x": "1"}, {"storage": "1"}, {"pods": "1"}, {"cpu": 1}),
]
_SIGNALS = ("SIGTERM", "SIGRTMIN+15", "SIGRTMIN+16", "SIGFOO", "sigterm")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "in")
_RESOURCES = ("limits.cpu", "requests.memory", "limits.ephemeral-storage", "limits.hugepages-2Mi", "cpu")
_FIELD_PATHS = (
    *("metadata.name", "metadata.labels", "metadata.annotations", "metadata.labels['a']", "metadata.uid"),
    *("metadata.annotations['A b']", "metadata.name['a']", "spec.nodeName", "spec.host", "status.podIPs"),
    *("spec.restartPolicy", "status.phase", "spec.serviceAccountName", "metadata.labels['a/b/c']"),
)
_AMOUNTS: tuple[Any, ...] = (
    {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
    {"memory": "64Mi", "hugepages-1Gi": "0"},
    {"cpu": "1", "hugepages-": "0"},
    {"cpu": "1", "hugepages-0": "0"},
    {"cpu": "1", "hugepages-x": "1"},
    {"requests.example.com/x": "1"},
    {"ephemeral-storage": "1Gi"},
    {"cpu": "0.0001"},
    {"cpu": ""},
)
ALSO: dict[str, tuple[Any, ...]] = {
    r".*imagePullPolicy|.*pullPolicy": ("Always", "IfNotPresent", "Never", "always"),
    r".*terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    r"restartPolicy|.*\[\]\.restartPolicy": (
        "Always",
        "OnFailure",
        "Never",
        "NotRequired",
        "RestartContainer",
    ),
    r".*resizePolicy\[\]\.resourceName": ("cpu", "memory", "ephemeral-storage"),
    r".*\.action": ("Restart", "RestartAllContainers", "Stop"),
    r".*\.operator": _OPERATORS,
    r".*\.protocol": ("TCP", "UDP", "SCTP", "tcp"),
    r".*\.scheme": ("HTTP", "HTTPS", "http"),
    r".*\.fieldPath": _FIELD_PATHS,
    r".*\.apiVersion": ("v1", "v2", "apps/v1", "a/b/c", "apps/"),
    r".*\.resource": _RESOURCES,
    r".*\.divisor": ("1", "1m", "1Mi", "1k", "1000m", "0", "3", "1024"),
    r".*\.stopSignal": _SIGNALS,
    r".*\.mountPropagation": ("None", "HostToContainer", "Bidirectional"),
    r".*\.recursiveReadOnly": ("Disabled", "IfPossible", "Enabled"),
    r".*\.procMount": ("Default", "Unmasked"),
    r".*rofile\.type": ("Localhost", "RuntimeDefault", "Unconfined", "runtime/default"),
    r".*\.localhostProfile": ("a/b", " a", "x" * 4096),
    r".*\.add\[\]": ("NET_ADMIN", "CAP_SYS_ADMIN"),
    r".*\.supplementalGroupsPolicy": ("Merge", "Strict"),
    r".*\.fsGroupChangePolicy": ("Always", "OnRootMismatch"),
    r".*\.seLinuxChangePolicy": ("Recursive", "MountOption"),
    r".*\.sysctls\[\]\.name": ("net.ipv4.tcp_syncookies", "net/ipv4/conf/eth0.1/x", "a..b", "net.*", "a/"),
    r".*\.hostPath\.type": ("Directory", "DirectoryOrCreate", "File", "Socket", "CharDevice", "directory"),
    r".*\.medium": ("Memory", "HugePages", "HugePages-2Mi", "Disk"),
    r".*\.sizeLimit": ("1Gi", "-1", "x", "0"),
    r"dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None", "none"),
    r"preemptionPolicy": ("PreemptLowerPriority", "Never"),
    r"tolerations\[\]\.effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    r".*\.whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    r".*sPolicy|.*yPolicy": ("Honor", "Ignore"),
    r"os\.name": ("linux", "windows", "Linux"),
    r".*\.searches\[\]": (".", "a_b.c.", "_a.b", "a_", "__a", "a..b"),
    r".*(overhead|limits|requests)": _AMOUNTS,
    r".*\.runAsUserName": ("a\\b", "DOM.x\\user", "a\\b\\c", "us/er", ". .", "a\nb", "x" * 104, "x" * 105),
    r".*[pP]ort": ("web", "web-", "1a", "80", "a--b", "a" * 16),
    r".*Name|.*\.name": ("Content-Type", "a=b", "é=", "a" * 63),
    r"finalizers\[\]": ("kubernetes", "orphan", "foregroundDeletion", "a.b/c", "A.b/c"),
    r"annotations": (
        {"controller.kubernetes.io/pod-deletion-cost": "+1"},
        {"controller.kubernetes.io/pod-deletion-cost": "-1"},
        {"controller.kubernetes.io/pod-deletion-cost": "2147483648"},
        {"seccomp.security.alpha.kubernetes.io/pod": "docker/default"},
        {"seccomp.security.alpha.kubernetes.io/pod": "localhost/../x"},
        {"container.seccomp.security.alpha.kubernetes.io/c": "foo"},
        {"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"},
        {"container.apparmor.security.beta.kubernetes.io/d": "runtime/default"},
        {"container.apparmor.security.beta.kubernetes.io/c": "docker/default"},
        {"scheduler.alpha.kubernetes.io/tolerations": "[]"},
        {"scheduler.alpha.kubernetes.io/tolerations": '[{"operator": "Equal"}]'},
        {"scheduler.alpha.kubernetes.io/tolerations": "x"},
        {"A.B/C": "anything goes"},
        {"a": "x" * (256 * 1024)},
    ),
    r"managedFields\[\]\.operation": ("Apply", "Update", "apply"),
    r"managedFields\[\]\.fieldsType": ("FieldsV1", "FieldsV2"),
    r"managedFields\[\]\.manager": ("x" * 129, "a\tb"),
    r"managedFields\[\]\.subresource": ("x" * 257,),
    r"ownerReferences\[\]\.kind": ("Event",),
}
_PROBE = {"exec": {"command": ["x"]}}
_NEEDED: dict[str, dict[str, Any]] = {
    r"volumes\[\]": {"name": "v"},
    r"containers\[\]|ephemeralContainers\[\]": {"name": "c", "image": "i"},
    r".*\.hostPath": {"path": "/a"},
    r".*\.image": {"reference": "i"},
    r".*\.items\[\]": {"path": "f", "key": "k", "fieldRef": {"fieldPath": "metadata.name"}},
    r".*\.fieldRef": {"fieldPath": "metadata.name"},
    r".*\.resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"},
    r".*KeyRef": {"name": "n", "key": "k"},
    r".*\.fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"},
    r".*\.nfs": {"server": "s", "path": "/p"},
    r".*\.iscsi": {"targetPortal": "1.2.3.4", "iqn": "iqn.2001-04.com.example:a", "lun": 0},
    r".*\.ports\[\]": {"containerPort": 80},
    r".*\.env\[\]": {"name": "A"},
    r".*\.resizePolicy\[\]": {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    r".*\.restartPolicyRules\[\]": {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
    r".*\.exitCodes": {"operator": "In"},
    r".*\.volumeMounts\[\]": {"name": "v", "mountPath": "/m"},
    r".*\.volumeDevices\[\]": {"name": "v", "devicePath": "/dev/x"},
    r".*\.httpGet": {"port": 80},
    r".*\.tcpSocket|.*\.grpc": {"port": 80},
    r".*\.httpHeaders\[\]": {"name": "h"},
    r".*Profile": {"type": "Localhost", "localhostProfile": "a"},
    r".*\.sysctls\[\]": {"name": "kernel.sem"},
    r".*\.matchExpressions\[\]|.*\.matchFields\[\]": {
        "key": "metadata.name",
        "operator": "In",
        "values": ["x"],
    },
    r".*\.preferredDuringSchedulingIgnoredDuringExecution\[\]": {"weight": 1},
    r".*od(Anti)?Affinity\.requiredDuringSchedulingIgnoredDuringExecution\[\]": {"topologyKey": "k"},
    r".*\.podAffinityTerm": {"topologyKey": "k"},
    r"tolerations\[\]": {"key": "k"},
    r"hostAliases\[\]": {"ip": "1.2.3.4"},
    r".*\.options\[\]": {"name": "n"},
    r"topologySpreadConstraints\[\]": {
        "maxSkew": 1,
        "topologyKey": "k",
        "whenUnsatisfiable": "DoNotSchedule",
    },
    r"resourceClaims\[\]": {"name": "n"},
    r"ownerReferences\[\]": {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"},
    r"managedFields\[\]": {"operation": "Apply"},
}


PATHS = [*(f"spec.{field}" for field in FIELDS), *(f"metadata.{field}" for field in METADATA)]


def values(field: str) -> list[Any]:
    """Return the values that tests try in a field; `field` is its path without `metadata.` or `spec.`."""
    return [*VALUES, *(value for shape, also in ALSO.items() if re.fullmatch(shape, field) for value in also)]


def manifests(path: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each value that tests try in a field, and its manifest. `path` begins with `metadata.` or
    `spec.`."""
    part, _, field = path.partition(".")
    for value in values(field):
        yield value, _manifest(field, value, of_spec=part == "spec")


def _manifest(field: str, value: Any, *, of_spec: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
    metadata: dict[str, Any] = {"name": "p"}
    here: Any = spec if of_spec else metadata
    path = ""
    parts = field.split(".")
    for position, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        name, listed, last = part.removesuffix("[]"), part.endswith("[]"), position == len(parts) - 1
        if last:
            here[name] = [copy.deepcopy(value)] if listed else copy.deepcopy(value)
        elif listed:
            here[name] = here.get(name) or [{}]
            here = here[name][0]
        else:
            here = here.setdefault(name, {})
        if not last:
            _complete(here, path, parts[position + 1 :])
    if "volumeMounts[]" in field or "volumeDevices[]" in field or "fileKeyRef" in field:
        spec.setdefault("volumes", [{"name": "v", "emptyDir": {}}])
    if ".stopSignal" in field:
        spec["os"] = {"name": "linux"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _complete(here: dict[str, Any], path: str, rest: list[str]) -> None:
    """Add the fields that an object at `path` needs beside the one that is tried."""
    for shape, needed in _NEEDED.items():
        if re.fullmatch(shape, path):
            for name, value in needed.items():
                here.setdefault(name, copy.deepcopy(value))
    following = rest[0].removesuffix("[]")
    if path.endswith("Probe") and following not in ("exec", "httpGet", "tcpSocket", "grpc"):
        here.update(copy.deepcopy(_PROBE))
    if path.endswith(".items[]") and following == "resourceFieldRef":
        del here["fieldRef"]
    if path == "containers[]" and following == "restartPolicyRules":
        here["restartPolicy"] = "Never"
    if path.endswith("[]") and following in ("matchLabelKeys", "mismatchLabelKeys"):
        here["labelSelector"] = {}
