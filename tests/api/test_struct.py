"""The struct base: empty lists and maps are left out as Go leaves them out, at little cost."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import msgspec

from engine.api.documents import parse_pods
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.struct import Struct, forget_empty
from engine.node.sources.static_pods import static_pod

CALLS = 450
"""The budget of Python calls for one further manifest of two containers, in libraries too."""


class _Inner(Struct):
    names: list[str] | None = None


class _Outer(Struct):
    required: list[str]
    absent: dict[str, str] | None = None
    made: list[str] = msgspec.field(default_factory=list)
    texts: list[str] | None = None
    inner: _Inner | None = None
    inners: list[_Inner] | None = None
    text: str = ""


def test_only_empty_values_of_fields_without_another_default_are_forgotten():
    value = _Outer(
        required=[], absent={}, made=[], texts=["a"], inner=_Inner(names=[]), inners=[_Inner(names=[])]
    )
    forget_empty(value)
    assert value == _Outer(required=[], texts=["a"], inner=_Inner(), inners=[_Inner()])


def test_a_required_field_after_an_optional_one_is_not_forgotten():
    class Late(_Inner, kw_only=True):
        required: list[str]

    value = Late(names=[], required=[])
    forget_empty(value)
    assert value == Late(required=[])


def test_a_further_manifest_costs_few_calls():
    """Annotations of a class, for example, are not evaluated for each pod."""
    text = msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {
                "containers": [
                    {
                        "name": name,
                        "image": "registry.local/app:1",
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                        "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
                    }
                    for name in ("a", "b")
                ]
            },
        }
    )
    read(text)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read(text)
    finally:
        sys.setprofile(before)
    assert calls <= CALLS


def read(text: bytes) -> Pod:
    (manifest,), _ = parse_pods(text, "web.yaml")
    return static_pod(
        manifest, node_name="node", origin="web.yaml", seen_at=0, uid_of=lambda pod, digest, new: new()
    )


def test_pods_share_equal_amounts():
    """Each further pod of a node would hold about 1 KB for the same few amounts."""
    assert Quantity.parse("250m") is Quantity.parse("250m")
    assert Quantity.parse("64Mi").in_milli() is Quantity.parse("64Mi")


def test_documents_are_no_work_for_the_garbage_collector():
    """A collection of a node with thousands of pods would visit each of their objects, which hold no
    cycle.
    """
    containers = [{"name": "web", "image": "nginx", "resources": {"limits": {"memory": "64Mi"}}}]
    pod = read(
        msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "web"},
                "spec": {"containers": containers},
            }
        )
    )
    parts = (pod, pod.metadata, pod.spec, *pod.spec.containers, pod.status)
    assert [part for part in parts if gc.is_tracked(part)] == []
