"""The test API server answers as kube-apiserver does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import MERGE, ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.testing.apiserver import ApiServer

PODS = "/api/v1/namespaces/default/pods"
POD = {"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}
Object = dict[str, Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    config = load_kubeconfig(server.kubeconfig("admin"))
    made = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
    yield made
    made.close()


async def test_objects_are_made_read_changed_and_removed(client: ApiClient):
    made = await client.create(PODS, POD, Object)
    assert made["metadata"]["uid"]
    assert made["status"] == {"phase": "Pending"}
    assert (await client.get(f"{PODS}/web", Object)) == made
    with pytest.raises(ApiError) as again:
        await client.create(PODS, POD, Object)
    assert (again.value.code, again.value.reason) == (409, "AlreadyExists")
    changed = await client.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}}, Object, form=MERGE)
    assert changed["metadata"]["labels"] == {"a": "b"}
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    with pytest.raises(ApiError) as stale:
        await client.update(f"{PODS}/web", made, Object)
    assert (stale.value.code, stale.value.reason) == (409, "Conflict")
    await client.delete(f"{PODS}/web", {"gracePeriodSeconds": 0})
    with pytest.raises(ApiError) as gone:
        await client.get(f"{PODS}/web", Object)
    assert (gone.value.code, gone.value.reason) == (404, "NotFound")


async def test_status_changes_only_through_its_subresource(client: ApiClient):
    made = await client.create(PODS, POD, Object)
    patched = await client.patch(f"{PODS}/web", {"status": {"phase": "Running"}}, Object)
    assert patched == made
    patch = {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"x": 1}, "status": {"phase": "Running"}}
    updated = await client.patch(f"{PODS}/web/status", patch, Object)
    assert (updated["status"]["phase"], updated["spec"]) == ("Running", made["spec"])
    patch["metadata"]["uid"] = "another"
    with pytest.raises(ApiError) as other:
        await client.patch(f"{PODS}/web/status", patch, Object)
    assert other.value.code == 409


async def test_a_pod_is_deleted_in_two_steps_and_its_grace_only_shrinks(server: ApiServer, client: ApiClient):
    made = await client.create(PODS, POD, Object)
    for asked, grace in ((None, 30), (40, 30), (5, 5)):
        await client.delete(f"{PODS}/web", {} if asked is None else {"gracePeriodSeconds": asked})
        assert server.get(f"{PODS}/web")["metadata"]["deletionGracePeriodSeconds"] == grace
    with pytest.raises(ApiError) as other:
        await client.delete(f"{PODS}/web", {"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}})
    assert other.value.code == 409
    own = {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}}
    await client.delete(f"{PODS}/web", own)
    assert server.list("/api/v1/pods") == []


async def test_a_list_is_selected_by_fields_and_namespace(server: ApiServer, client: ApiClient):
    for namespace, name, node in (("default", "a", "n1"), ("default", "b", "n2"), ("other", "c", "n1")):
        pod = {"metadata": {"name": name}, "spec": {"nodeName": node}}
        server.create(f"/api/v1/namespaces/{namespace}/pods", pod)

    async def names(path: str, selector: str) -> list[str]:
        listed = await client.get(path, Object, {"fieldSelector": selector})
        return [item["metadata"]["name"] for item in listed["items"]]

    assert await names("/api/v1/pods", "spec.nodeName=n1") == ["a", "c"]
    assert await names(PODS, "spec.nodeName=n1") == ["a"]
    assert await names(PODS, "spec.nodeName!=n1,metadata.name=b") == ["b"]


async def test_requests_are_written_down_with_their_user(server: ApiServer, client: ApiClient):
    with pytest.raises(ApiError):
        await client.get(f"{PODS}/web", Object)
    seen = server.requests[-1]
    assert (seen.method, seen.path, seen.user, seen.status) == ("GET", f"{PODS}/web", "admin", 404)
