"""Pods that the agent encodes as protobuf mean to a real API server what their JSON means."""

from __future__ import annotations

import asyncio
import base64
import copy
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.api.protobuf.pods import encode_pod_document
from engine.cluster.client import ApiClient
from engine.cluster.kubeconfig import load_kubeconfig
from tests.cluster.control_plane import ADMIN_TOKEN, ControlPlane, Object
from tests.waiting import PATIENCE

PROTOBUF = "application/vnd.kubernetes.protobuf"
PROBE = {"initialDelaySeconds": 1, "timeoutSeconds": 2, "periodSeconds": 3, "failureThreshold": 4}
LABELS = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "k", "operator": "In", "values": ["v", "w"]}],
}
TERM = {"labelSelector": LABELS, "topologyKey": "zone", "namespaces": ["n"], "namespaceSelector": LABELS}
NODES = {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}
VOLUMES: list[Object] = [
    {"configMap": {"name": "m", "items": [{"key": "k", "path": "p", "mode": 256}], "optional": True}},
    {"secret": {"secretName": "s", "defaultMode": 420, "optional": False}},
    {"emptyDir": {"medium": "Memory", "sizeLimit": "1500Mi"}},
    {"hostPath": {"path": "/x", "type": "DirectoryOrCreate"}},
    {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
    {"nfs": {"server": "s", "path": "/p", "readOnly": True}},
    {"csi": {"driver": "d", "readOnly": True, "volumeAttributes": {"b": "2", "a": "1"}}},
    {"image": {"reference": "i", "pullPolicy": "Always"}},
    {
        "iscsi": {
            "targetPortal": "1.2.3.4",
            "iqn": "iqn.2001-04.com.example:a",
            "lun": 3,
            "portals": ["1.2.3.5"],
        }
    },
    {"fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}},
    {
        "ephemeral": {
            "volumeClaimTemplate": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "",
                    "volumeMode": "Block",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        }
    },
    {
        "projected": {
            "defaultMode": 0,
            "sources": [
                {"serviceAccountToken": {"audience": "a", "expirationSeconds": 3600, "path": "t"}},
                {
                    "downwardAPI": {
                        "items": [
                            {"path": "n", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
                            {
                                "path": "r",
                                "resourceFieldRef": {
                                    "containerName": "c",
                                    "resource": "limits.cpu",
                                    "divisor": "1m",
                                },
                            },
                        ]
                    }
                },
                {"clusterTrustBundle": {"signerName": "e.com/s", "labelSelector": LABELS, "path": "b"}},
                {
                    "podCertificate": {
                        "signerName": "e.com/s",
                        "keyType": "ED25519",
                        "keyPath": "k",
                        "maxExpirationSeconds": 3600,
                        "userAnnotations": {"e.com/a": "b"},
                    }
                },
            ],
        }
    },
]
CONTAINER: Object = {
    "name": "c",
    "image": "i",
    "command": ["a", "b"],
    "args": ["ü"],
    "workingDir": "/w",
    "tty": True,
    "stdin": True,
    "stdinOnce": True,
    "imagePullPolicy": "Never",
    "terminationMessagePath": "/dev/t",
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "restartPolicy": "OnFailure",
    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 137]}}],
    "ports": [{"name": "p", "hostPort": 80, "containerPort": 8080, "protocol": "UDP", "hostIP": "10.0.0.1"}],
    "env": [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k", "optional": True}}},
        {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ],
    "envFrom": [
        {"prefix": "P_", "configMapRef": {"name": "m", "optional": False}},
        {"secretRef": {"name": "s"}},
    ],
    "resources": {
        "limits": {"cpu": "1500m", "memory": "1Gi"},
        "requests": {"cpu": "1", "memory": "512Mi"},
        "claims": [{"name": "d", "request": "r"}],
    },
    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
    "volumeMounts": [
        {
            "name": "v3",
            "mountPath": "/m",
            "readOnly": True,
            "subPathExpr": "$(A)",
            "recursiveReadOnly": "IfPossible",
        }
    ],
    "livenessProbe": {
        **PROBE,
        "terminationGracePeriodSeconds": 9,
        "httpGet": {
            "path": "/h",
            "port": "p",
            "host": "h",
            "scheme": "HTTPS",
            "httpHeaders": [{"name": "a", "value": "b"}],
        },
    },
    "readinessProbe": {**PROBE, "successThreshold": 5, "tcpSocket": {"port": 8080, "host": "h"}},
    "startupProbe": {**PROBE, "grpc": {"port": 9, "service": "s"}},
    "lifecycle": {"postStart": {"exec": {"command": ["x"]}}, "preStop": {"sleep": {"seconds": 3}}},
    "securityContext": {
        "capabilities": {"add": ["A"], "drop": ["ALL"]},
        "privileged": False,
        "runAsUser": 0,
        "runAsGroup": 7,
        "runAsNonRoot": False,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": True,
        "procMount": "Default",
        "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "l"},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "p"},
        "appArmorProfile": {"type": "RuntimeDefault"},
    },
}
SPEC: Object = {
    "containers": [CONTAINER],
    "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
    "volumes": [{"name": f"v{number}", **source} for number, source in enumerate(VOLUMES)],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 5,
    "activeDeadlineSeconds": 60,
    "dnsPolicy": "None",
    "nodeSelector": {"b": "2", "a": "1"},
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "nodeName": "n",
    "shareProcessNamespace": True,
    "hostUsers": True,
    "hostname": "h",
    "subdomain": "s",
    "setHostnameAsFQDN": True,
    "schedulerName": "x",
    "imagePullSecrets": [{"name": "q"}],
    "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}],
    "tolerations": [
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": -1}
    ],
    "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["s"], "options": [{"name": "n", "value": "2"}]},
    "readinessGates": [{"conditionType": "e.com/c"}],
    "enableServiceLinks": False,
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
    "os": {"name": "linux"},
    "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}],
    "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "z",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": LABELS,
            "minDomains": 2,
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Ignore",
        }
    ],
    "securityContext": {
        "runAsUser": 1,
        "runAsGroup": 2,
        "fsGroup": 3,
        "supplementalGroups": [4, 5],
        "fsGroupChangePolicy": "Always",
        "supplementalGroupsPolicy": "Merge",
        "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}],
        "seLinuxChangePolicy": "Recursive",
    },
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NODES]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "preference": NODES}],
        },
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 3,
                    "podAffinityTerm": {**TERM, "matchLabelKeys": ["x"], "mismatchLabelKeys": ["y"]},
                }
            ]
        },
    },
}
METADATA: Object = {
    "name": "p",
    "namespace": "default",
    "labels": {"b": "2", "a": ""},
    "annotations": {"e.com/a": "ü\n"},
    "finalizers": ["e.com/f"],
    "ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "blockOwnerDeletion": False}
    ],
}


def unknown(document: Object) -> bytes:
    """Return the envelope of an object (runtime.Unknown)."""
    pod = encode_pod_document(document)
    kind = b"\x0a\x02v1\x12\x03Pod"
    size = len(pod).to_bytes(1, "big") if len(pod) < 128 else bytes((len(pod) & 0x7F | 0x80, len(pod) >> 7))
    return b"k8s\0" + b"\x0a" + bytes((len(kind),)) + kind + b"\x12" + size + pod


def post(plane: ControlPlane, body: bytes, content: str) -> Any:
    """Create a pod without storing it, and return what the server would have stored."""
    cluster = load_kubeconfig(plane.admin).cluster
    authority = base64.b64decode(cluster.certificate_authority_data).decode()
    request = urllib.request.Request(
        f"{cluster.server}/api/v1/namespaces/default/pods?dryRun=All",
        data=body,
        headers={
            "Authorization": f"Bearer {ADMIN_TOKEN}",
            "Content-Type": content,
            "Accept": "application/json",
        },
    )
    context = ssl.create_default_context(cadata=authority)
    try:
        with urllib.request.urlopen(request, context=context, timeout=PATIENCE) as answer:
            return msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def without_what_differs(pod: Object) -> Object:
    """Leave out what two creations of the same pod do not have in common."""
    found = copy.deepcopy(pod)
    for field in ("uid", "creationTimestamp", "managedFields", "resourceVersion"):
        found["metadata"].pop(field, None)
    return found


async def test_a_pod_with_every_kind_of_field_is_the_same_in_both_forms(
    real: ControlPlane, connect: Callable[[Path], ApiClient]
) -> None:
    admin = connect(real.admin)
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    if not (await admin.get(accounts, Object))["items"]:
        await admin.create(accounts, {"metadata": {"name": "default"}}, Object)
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": METADATA, "spec": SPEC}
    await asyncio.sleep(1)
    by_json = await asyncio.to_thread(post, real, msgspec.json.encode(document), "application/json")
    by_protobuf = await asyncio.to_thread(post, real, unknown(document), PROTOBUF)
    assert without_what_differs(by_protobuf) == without_what_differs(by_json)
    again = await asyncio.to_thread(post, real, unknown({**by_json, "metadata": METADATA}), PROTOBUF)
    assert again["spec"] == by_json["spec"]
