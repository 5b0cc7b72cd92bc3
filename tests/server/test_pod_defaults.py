"""`/pods` shows specs with the defaults of an API server, as a kubelet v1.36 does."""

from __future__ import annotations

import json

from engine.api.documents import parse_pods
from engine.node.sources.static_pods import static_pod
from engine.server.routes import pod_list

MANIFEST = b"""
apiVersion: v1
kind: Pod
metadata: {name: rich}
spec:
  initContainers: [{name: i, image: "x:1"}]
  containers:
  - name: c
    image: "x:1"
    ports: [{containerPort: 80}]
    env:
    - {name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    readinessProbe: {grpc: {port: 80}}
    livenessProbe: {httpGet: {port: 80}}
    startupProbe: {tcpSocket: {port: 80}, failureThreshold: 9, timeoutSeconds: 3}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  volumes:
  - name: d
    downwardAPI: {items: [{path: r, resourceFieldRef: {containerName: c, resource: limits.cpu}}]}
  - name: p
    projected: {sources: [{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}]}
  - {name: h, hostPath: {path: /tmp}}
"""
HTTP = {"path": "/", "port": 80, "scheme": "HTTP"}
TIMES = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
FIELD = {"apiVersion": "v1", "fieldPath": "metadata.name"}
AMOUNT = {"resource": "limits.cpu", "divisor": "0"}
LAST_WORDS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}


def test_specs_are_shown_with_their_defaults():
    manifest = parse_pods(MANIFEST, "m")[0][0]
    pod = static_pod(manifest, node_name="n1", origin="m", seen_at=1)
    shown = json.loads(b"".join(pod_list([pod])))["items"][0]["spec"]
    common = {"image": "x:1", "imagePullPolicy": "IfNotPresent", "resources": {}, **LAST_WORDS}
    assert shown == {
        "volumes": [
            {
                "name": "d",
                "downwardAPI": {
                    "items": [{"path": "r", "resourceFieldRef": {"containerName": "c", **AMOUNT}}],
                    "defaultMode": 0o644,
                },
            },
            {
                "name": "p",
                "projected": {
                    "sources": [{"downwardAPI": {"items": [{"path": "a", "fieldRef": FIELD}]}}],
                    "defaultMode": 0o644,
                },
            },
            {"name": "h", "hostPath": {"path": "/tmp", "type": ""}},
        ],
        "initContainers": [{"name": "i", **common}],
        "containers": [
            {
                "name": "c",
                **common,
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [
                    {"name": "A", "valueFrom": {"fieldRef": FIELD}},
                    {"name": "B", "valueFrom": {"resourceFieldRef": AMOUNT}},
                ],
                "readinessProbe": {"grpc": {"port": 80, "service": ""}, **TIMES},
                "livenessProbe": {"httpGet": HTTP, **TIMES},
                "startupProbe": {
                    "tcpSocket": {"port": 80},
                    **TIMES,
                    "failureThreshold": 9,
                    "timeoutSeconds": 3,
                },
                "lifecycle": {"preStop": {"httpGet": HTTP}},
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "nodeName": "n1",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "enableServiceLinks": True,
    }
