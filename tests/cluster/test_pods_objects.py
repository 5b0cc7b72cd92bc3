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
