"""Pods that need their cluster's objects, on the test server, and on a real one where KUBE_BIN says so."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, Object, Plane, shown
from tests.cluster.objects import (
    NAMESPACE,
    encoded,
    gone,
    is_ready,
    make,
    mounting,
    run,
    wait_for_event,
    waiting,
)
from tests.waiting import eventually

pytestmark = pytest.mark.root


async def test_pods_of_a_cluster_get_what_they_name_and_see_it_change(
    plane: Plane, start: Callable[[Path], Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "configmaps", "kube-root-ca.crt", data={"ca.crt": "its certificate"})
    await make(plane, "configmaps", "m", data={"a": "1"})
    await make(plane, "secrets", "s", data={"b": encoded("2")})
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"configMap": {"name": "m"}},
        {"secret": {"name": "s"}},
    ]
    access = {"name": "access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "c",
        "image": "busybox:1",
        "envFrom": [{"secretRef": {"name": "s"}}],
        "volumeMounts": [access],
    }
    volumes = [{"name": "access", "projected": {"sources": sources}}]
    await run(plane, "web", {"containers": [container], "volumes": volumes})
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/web", is_ready)
    pods = tmp_path / "root/pods"
    path = pods / pod["metadata"]["uid"] / "volumes/kubernetes.io~projected/access"
    files = {name: (path / name).read_text() for name in ("ca.crt", "a", "b")}
    assert files == {"ca.crt": "its certificate", "a": "1", "b": "2"}
    token = (path / "token").read_text()
    if request.node.callspec.params["plane"] == "kube-apiserver":
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        assert claims["kubernetes.io"]["pod"] == {"name": "web", "uid": pod["metadata"]["uid"]}
    await plane.admin.patch(f"{NAMESPACE}/secrets/s", {"data": {"b": encoded("3")}}, Object)
    await eventually(lambda: (path / "b").read_text() == "3")
    assert (path / "token").read_text() == token
    await gone(plane, "web")
    assert list(pods.iterdir()) == []
    if request.node.callspec.params["plane"] == "kube-apiserver":
        control_plane: ControlPlane = request.getfixturevalue("real")
        assert control_plane.refused("system:node:n1") == []


async def test_missing_objects_are_awaited_unless_optional(
    plane: Plane, start: Callable[[Path], Any], tmp_path: Path
) -> None:
    """In a kubelet's words; who needs nothing of it starts."""
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "secrets", "fixed", data={"k": encoded("1")}, immutable=True)
    without = {"automountServiceAccountToken": False}
    failed = 'MountVolume.SetUp failed for volume "v" : '
    await run(plane, "no-secret", mounting({"secret": {"secretName": "later"}}, **without))
    key = {"secretName": "fixed", "items": [{"key": "nothing", "path": "p"}]}
    await run(plane, "no-key", mounting({"secret": key}, **without))
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k"}}}
    await run(
        plane, "no-map", {"containers": [{"name": "c", "image": "busybox:1", "env": [variable]}], **without}
    )
    sources = [{"secret": {"name": "gone", "optional": True}}, {"secret": {"name": "fixed"}}]
    await run(plane, "optional", mounting({"projected": {"sources": sources}}, **without))
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/optional", is_ready)
    path = tmp_path / "root/pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~projected/v"
    assert sorted(each.name for each in path.iterdir() if not each.name.startswith("..")) == ["k"]
    await wait_for_event(plane, "no-secret", f'{failed}secret "later" not found')
    await wait_for_event(plane, "no-key", f"{failed}references non-existent secret key: nothing")
    wanted = {"reason": "CreateContainerConfigError", "message": 'configmap "gone" not found'}
    await shown(plane.admin, f"{NAMESPACE}/pods/no-map", lambda pod: waiting(pod) == wanted)
    await make(plane, "secrets", "later", data={"k": encoded("1")})
    await shown(plane.admin, f"{NAMESPACE}/pods/no-secret", is_ready)
    for name in ("no-secret", "no-key", "no-map", "optional"):
        await gone(plane, name)


async def test_an_immutable_object_is_no_longer_watched(
    plane: Plane, start: Callable[[Path], Any], tmp_path: Path
) -> None:
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "secrets", "fixed", data={"s": encoded("1")}, immutable=True)
    await make(plane, "configmaps", "fixed", data={"m": "1"}, immutable=True)
    await make(plane, "secrets", "to-be-fixed", data={"t": encoded("1")})
    sources = [
        {"secret": {"name": "fixed"}},
        {"configMap": {"name": "fixed"}},
        {"secret": {"name": "to-be-fixed"}},
    ]
    without = {"automountServiceAccountToken": False}
    await run(plane, "p", mounting({"projected": {"sources": sources}}, **without))
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/p", is_ready)
    path = tmp_path / "root/pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~projected/v"

    def watched() -> set[str]:
        watches = plane.watched_by_node()
        return {selector for path, selector in watches if path.endswith(("/secrets", "/configmaps"))}

    await eventually(lambda: watched() == {"metadata.name=to-be-fixed"})
    last = {"data": {"t": encoded("2")}, "immutable": True}
    await plane.admin.patch(f"{NAMESPACE}/secrets/to-be-fixed", last, Object)
    await eventually(lambda: (path / "t").read_text() == "2")
    await eventually(lambda: watched() == set())
    assert [(path / name).read_text() for name in ("s", "m")] == ["1", "1"]
    await gone(plane, "p")
