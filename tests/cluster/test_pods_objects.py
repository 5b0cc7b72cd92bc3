"""Pods that need their cluster's objects, on the test server, and on a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiError
from tests.cluster.control_plane import ControlPlane, Object, Plane, shown
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

NAMESPACE = "/api/v1/namespaces/default"


async def make(plane: Plane, kind: str, name: str, **fields: Any) -> Object:
    """An object that an earlier test may have left is made anew."""
    try:
        await plane.admin.delete(f"{NAMESPACE}/{kind}/{name}", {"gracePeriodSeconds": 0})
    except ApiError as error:
        if error.code != 404:
            raise
    return await plane.admin.create(f"{NAMESPACE}/{kind}", {"metadata": {"name": name}, **fields}, Object)


async def run(plane: Plane, name: str, spec: Object) -> None:
    """A pod of the node; the server may refuse one whose service account it does not know yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await make(plane, "pods", name, spec={"nodeName": "n1", **spec})
                return
            except ApiError as error:
                if error.code != 403:
                    raise
                await asyncio.sleep(0.1)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def gone(plane: Plane, name: str) -> None:
    async def missing() -> bool:
        listed = await plane.admin.get(f"{NAMESPACE}/pods", Object)
        return all(pod["metadata"]["name"] != name for pod in listed["items"])

    await plane.admin.delete(f"{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 1})
    await eventually(missing)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


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


def mounting(source: Object, **spec: Any) -> Object:
    """A pod that mounts one volume at /v."""
    container = {"name": "c", "image": "busybox:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return {"containers": [container], "volumes": [{"name": "v", **source}], **spec}


def waiting(pod: Object) -> Object:
    """Why its container waits."""
    states = [each["state"] for each in pod.get("status", {}).get("containerStatuses", ())]
    found: Object = states[0].get("waiting", {}) if states else {}
    return found


async def said(plane: Plane, pod: str, text: str) -> None:
    """An event of the pod has this text."""

    async def heard() -> bool:
        events = await plane.admin.get(f"{NAMESPACE}/events", Object)
        return any(
            event["involvedObject"]["name"] == pod and event["message"] == text for event in events["items"]
        )

    await eventually(heard)


async def test_what_is_missing_is_waited_for_unless_it_may_be_missing(
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
    await said(plane, "no-secret", f'{failed}secret "later" not found')
    await said(plane, "no-key", f"{failed}references non-existent secret key: nothing")
    wanted = {"reason": "CreateContainerConfigError", "message": 'configmap "gone" not found'}
    await shown(plane.admin, f"{NAMESPACE}/pods/no-map", lambda pod: waiting(pod) == wanted)
    await make(plane, "secrets", "later", data={"k": encoded("1")})
    await shown(plane.admin, f"{NAMESPACE}/pods/no-secret", is_ready)
    for name in ("no-secret", "no-key", "no-map", "optional"):
        await gone(plane, name)
