"""What an API server would have filled in or rounded."""

from __future__ import annotations

from engine.api.defaults import apply_defaults
from engine.api.documents import parse_pods
from engine.api.struct import to_builtins


def test_amounts_finer_than_a_thousandth_are_rounded_up_wherever_they_stand():
    text = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  overhead: {cpu: 100u}
  resources: {requests: {cpu: 1.5m}}
  initContainers: [{name: i, resources: {limits: {cpu: 1n}}}]
  containers:
  - {name: c, resources: {requests: {cpu: "0.0001", memory: 1500m}, limits: {cpu: 1500u, memory: 1Gi}}}
"""
    (pod,), _ = parse_pods(text.encode(), "a.yaml")
    apply_defaults(pod)
    spec = to_builtins(pod.spec)
    assert spec["overhead"] == {"cpu": "1m"}
    assert spec["resources"] == {"requests": {"cpu": "2m"}}
    assert spec["initContainers"][0]["resources"] == {"requests": {"cpu": "1m"}, "limits": {"cpu": "1m"}}
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1m", "memory": "1500m"},
        "limits": {"cpu": "2m", "memory": "1Gi"},
    }


def test_a_pods_limit_is_its_request_where_the_containers_request_nothing():
    text = b"""
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  resources: {limits: {cpu: "1", memory: 16Mi}}
  containers:
  - {name: c, resources: {requests: {cpu: 100m}}}
  - {name: d, resources: {requests: {cpu: 200m}}}
"""
    (pod,), _ = parse_pods(text, "a.yaml")
    apply_defaults(pod)
    assert to_builtins(pod.spec)["resources"] == {
        "limits": {"cpu": "1", "memory": "16Mi"},
        "requests": {"cpu": "300m", "memory": "16Mi"},
    }
