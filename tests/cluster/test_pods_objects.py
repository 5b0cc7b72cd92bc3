"""Pods that need their cluster's objects, on the test server, and on a real one where KUBE_BIN says so."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiClient, ApiError
from engine.testing.apiserver import ApiServer
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


async def test_an_object_that_can_change_no_more_is_watched_no_more(
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


async def test_what_a_node_may_not_read_holds_the_pod_up_until_it_may(
    server: ApiServer, connect: Callable[[Path], ApiClient], start: Callable[[Path], Any]
) -> None:
    """A server's authorizer may learn of a pod later than its node does."""
    plane = Plane(server.kubeconfig("system:node:n1"), connect(server.kubeconfig("admin")), server)
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "secrets", "s", data={"k": encoded("1")})
    await make(plane, "configmaps", "m", data={"k": "1"})
    server.fail(403, path="/(secrets|configmaps)", user="system:node:n1", times=None)
    without = {"automountServiceAccountToken": False}
    await run(plane, "secret", mounting({"secret": {"secretName": "s"}}, **without))
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    main = {"name": "c", "image": "busybox:1", "env": [variable]}
    await run(plane, "variable", {"containers": [main], **without})
    late = "cache: timed out waiting for the condition"
    await said(plane, "secret", f'MountVolume.SetUp failed for volume "v" : failed to sync secret {late}')
    wanted = {"reason": "CreateContainerConfigError", "message": f"failed to sync configmap {late}"}
    await shown(plane.admin, f"{NAMESPACE}/pods/variable", lambda pod: waiting(pod) == wanted)
    server.heal()
    for name in ("secret", "variable"):
        await shown(plane.admin, f"{NAMESPACE}/pods/{name}", is_ready)
        await gone(plane, name)
