"""Write a snapshot as `kubectl get … -o json` would print it: one List, written as a stream.

Documents hold what a snapshot knows, and the other fields that real ones have, so that they are as large and
as deep as real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from engine.api.encoding.json_text import encode_json
from engine.api.qos import MIRROR_ANNOTATION, SOURCE_ANNOTATION
from engine.api.timestamps import rfc3339
from engine.plan.snapshot.columns import EPHEMERAL_CLAIM, TEMPLATE_CLAIM, Snapshot
from engine.plan.snapshot.inline_volumes import INLINE_VOLUME, inline_source
from engine.plan.snapshot.lazy_table import whole
from engine.tables import HAS_PRIORITY, MIRROR, QOS_NAMES, STATIC

BATCH = 4096
_ITEM = b"\n        "
_TOKEN = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
_POD_NAME = {"apiVersion": "v1", "fieldPath": "metadata.name"}
_TOLERATIONS = [
    {"effect": "NoExecute", "key": f"node.kubernetes.io/{k}", "operator": "Exists", "tolerationSeconds": 300}
    for k in ("not-ready", "unreachable")
]
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def write_list(snapshot: Snapshot, file: BinaryIO, *, pretty: bool = True) -> None:
    """Write a `v1` List of the nodes, then the pods, the priority classes, claims, volumes and
    dynamic resources."""
    file.write(b'{\n    "apiVersion": "v1",\n    "items": [')
    separator = b""
    for document in documents(snapshot):
        encoded = encode_json(document)
        if pretty:
            encoded = msgspec.json.format(encoded, indent=4).replace(b"\n", _ITEM)
        file.write(separator + _ITEM + encoded)
        separator = b","
    file.write(b'\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n')


def documents(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield every object as plain data; amounts keep their original text."""
    for text, name in zip(snapshot.nodes["document"].to_pylist(), snapshot.node_names, strict=True):
        if text:
            plain = msgspec.json.decode(text)
            plain["status"] |= {
                "nodeInfo": {
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                    "kubeletVersion": "v1.32.10",
                },
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            }
            yield {
                "apiVersion": "v1",
                "kind": "Node",
                **plain,
                "metadata": {"uid": f"n-{name}"} | plain["metadata"],
            }
    specs = [msgspec.json.decode(text) for text in snapshot.templates["spec"].to_pylist()]
    names = snapshot.node_names
    pods = whole(snapshot.pods)
    for start in range(0, pods.num_rows, BATCH):
        for row in pods.slice(start, BATCH).to_pylist():
            yield _pod(row, specs[row["template"]], names)
    for row in snapshot.priority_classes.to_pylist():
        meta = {"name": row["name"]}
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": meta,
            "value": row["value"],
        }
    yield from _storage(snapshot)
    for row in snapshot.dynamic_resources.to_pylist():
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": row["kind"],
            **msgspec.json.decode(row["document"]),
        }


def _storage(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the claims, the known volumes, and how many volumes nodes attach."""
    for row in snapshot.volumes.to_pylist():
        meta = {"name": row["claim"], "namespace": row["namespace"]}
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": {"volumeName": row["volume"]},
        }
        if row["volume"] and row["node_affinity"] is not None:
            required = msgspec.json.decode(row["node_affinity"])
            spec = {"nodeAffinity": {"required": required}} if required is not None else {}
            if row.get("driver"):
                spec["csi"] = {"driver": row["driver"], "volumeHandle": row["handle"]}
            yield {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": row["volume"]},
                "spec": spec,
            }
    limits: dict[str, list[dict[str, Any]]] = {}
    for row in snapshot.attach_limits.to_pylist():
        driver = {"name": row["driver"], "nodeID": row["node"], "allocatable": {"count": row["limit"]}}
        limits.setdefault(row["node"], []).append(driver)
    for node, drivers in limits.items():
        yield {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node},
            "spec": {"drivers": drivers},
        }


def _pod(row: dict[str, Any], template: dict[str, Any], nodes: list[str]) -> dict[str, Any]:
    created = rfc3339(row["created"])
    kind, _, owner = row["owner"].partition("/")
    meta: dict[str, Any] = {
        "annotations": {"prometheus.io/port": "8080", "prometheus.io/scrape": "true"} | _source(row["flags"]),
        "creationTimestamp": created,
        "generateName": f"{owner}-",
        "labels": msgspec.json.decode(row["labels"] or "{}"),
        "name": row["name"],
        "namespace": row["namespace"],
        "resourceVersion": "123456789",
        "uid": row["uid"],
    }
    if owner:
        reference = {"apiVersion": "apps/v1", "blockOwnerDeletion": True, "controller": True, "kind": kind}
        meta["ownerReferences"] = [reference | {"name": owner, "uid": f"o-{owner}"}]
    token = f"kube-api-access-{row['uid'][:5]}"
    containers = [_container(container, token) for container in template["containers"]]
    spec: dict[str, Any] = template | {
        "containers": containers,
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": template.get("tolerations", _TOLERATIONS),
        "volumes": [
            {"name": token, "projected": {"defaultMode": 420, "sources": [{"configMap": {"name": "ca"}}]}},
            *(
                _claimed(number, row["name"], claim)
                for number, claim in enumerate((row.get("claims") or "").split())
            ),
        ],
    }
    claims = (row.get("device_claims") or "").split()
    if claims:
        spec["resourceClaims"] = [_device_claim(number, name) for number, name in enumerate(claims)]
    if row["node"] >= 0:
        spec["nodeName"] = nodes[row["node"]]
    if row["flags"] & HAS_PRIORITY:
        spec["priority"] = row["priority"]
    status = {
        "conditions": [
            {"lastProbeTime": None, "lastTransitionTime": created, "status": "True", "type": name}
            for name in _CONDITIONS
        ],
        "containerStatuses": [
            {
                "containerID": f"containerd://{row['uid']}", "image": c["image"],
                "imageID": f"sha256:{c['name']}",
                "lastState": {}, "name": c["name"], "ready": True, "restartCount": 0, "started": True,
                "state": {"running": {"startedAt": created}},
            }
            for c in containers
        ],
        "hostIP": "10.0.0.1",
        "phase": row["phase"],
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "qosClass": QOS_NAMES[row["qos"]],
        "startTime": created,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _claimed(number: int, pod: str, claim: str) -> dict[str, Any]:
    """Return the volume of a claim. That of an ephemeral one is named after the pod, unless names have been
    replaced.
    """
    if claim.startswith(INLINE_VOLUME):
        return {"name": f"claim-{number}", **inline_source(claim)}
    name = claim.removeprefix(EPHEMERAL_CLAIM)
    if name != claim and name.startswith(f"{pod}-"):
        return {"name": name.removeprefix(f"{pod}-"), "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    return {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": name}}


def _device_claim(number: int, name: str) -> dict[str, str]:
    kind = "resourceClaimTemplateName" if name.startswith(TEMPLATE_CLAIM) else "resourceClaimName"
    return {"name": f"devices-{number}", kind: name.removeprefix(TEMPLATE_CLAIM)}


def _source(flags: int) -> dict[str, str]:
    source = {SOURCE_ANNOTATION: "file"} if flags & STATIC else {}
    return source | ({MIRROR_ANNOTATION: "mirror"} if flags & MIRROR else {})


def _container(container: dict[str, Any], token: str) -> dict[str, Any]:
    return container | {
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": _POD_NAME}}],
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": {
            "failureThreshold": 3, "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": token} | _TOKEN],
    }  # fmt: skip
