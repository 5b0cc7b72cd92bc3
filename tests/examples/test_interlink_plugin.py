"""The interLink plugin over the wire: the requests of interLink's API server, in its own spelling."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Pod, convert
from engine.api.qos import is_critical
from engine.runtime.hollow import HollowRuntime
from tests.examples.loading import example
from tests.waiting import eventually

interlink = example("interlink_plugin")
CONFIG = {
    "resolv_conf": "",
    "enable_server": False,
    "cgroups_per_qos": False,
    "enforce_node_allocatable": [],
    "eviction_hard": {"memory.available": "0%"},
}
Document = dict[str, Any]


def pod(name: str = "job", **spec: Any) -> Document:
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "IfNotPresent",
        **spec.pop("main", {}),
    }
    metadata = {"name": name, "namespace": "science", "uid": f"uid-{name}", "resourceVersion": "7"}
    grace = {"terminationGracePeriodSeconds": 1}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": "virtual", **grace, **spec}}


class Client:
    """Speak as interLink's API server does."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, method: str, path: str, value: Any = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, value)

    def _ask(self, method: str, path: str, value: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, json.dumps(value) if value is not None else None)
            response = connection.getresponse()
            body = response.read()
            plain = response.getheader("Content-Type") == "text/plain"
            return response.status, body.decode() if plain else json.loads(body)
        finally:
            connection.close()


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="il-") as directory:
        yield Path(directory)


@pytest.fixture
async def runtime(short: Path) -> AsyncIterator[HollowRuntime]:
    async with HollowRuntime(short / "cri.sock") as running:
        yield running


@pytest.fixture
async def plugin(short: Path, runtime: HollowRuntime) -> AsyncIterator[Any]:
    made = interlink.InterLinkPlugin(short / "root", str(short / "cri.sock"), **CONFIG)
    await made.start()
    yield made
    await made.node.remove_all_pods()
    await made.node.stop()


@pytest.fixture
async def client(plugin: Any) -> AsyncIterator[Client]:
    server = interlink.PluginServer(plugin, port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Client(server.server_port)
    await asyncio.to_thread(server.shutdown)
    thread.join()
    server.server_close()


async def state(client: Client, wanted: Document) -> Document:
    code, answer = await client.ask("GET", "/status", [wanted])
    assert code == 200
    return answer[0]["containers"][0]["state"] if answer and answer[0]["containers"] else {}


async def until(client: Client, wanted: Document, key: str) -> Document:
    for _ in range(1200):
        found = await state(client, wanted)
        if key in found:
            break
        await asyncio.sleep(0.05)
    return found[key]


async def test_a_pod_is_created_runs_ends_and_is_deleted(
    client: Client, plugin: Any, runtime: HollowRuntime
) -> None:
    sent = pod(restartPolicy="Never")
    code, answer = await client.ask("POST", "/create", {"pod": sent, "container": []})
    assert (code, answer) == (200, {"PodUID": "uid-job", "PodJID": "science/job"})
    await until(client, sent, "running")
    assert (await client.ask("POST", "/create", {"pod": sent, "container": []}))[
        0
    ] == 200  # it repeats itself
    (status,) = (await client.ask("GET", "/status", [sent]))[1]
    assert {name: status[name] for name in ("name", "namespace", "UID")} == {
        "name": "job",
        "namespace": "science",
        "UID": "uid-job",
    }
    container = plugin.node.pods()[0].status.container_statuses[0].container_id.partition("://")[2]
    runtime.end_container(container, exit_code=3, reason="Error")
    assert (await until(client, sent, "terminated"))["exitCode"] == 3
    assert (await client.ask("POST", "/delete", sent))[0] == 200
    await eventually(lambda: plugin.node.pods() == [])
    assert await client.ask("GET", "/status", [sent]) == (200, [])


async def test_its_log_is_returned(client: Client, plugin: Any, short: Path) -> None:
    sent = pod()
    await client.ask("POST", "/create", {"pod": sent, "container": []})
    await until(client, sent, "running")
    directory = short / f"root/logs/science_job_{plugin.node.pods()[0].metadata.uid}/main"
    directory.mkdir(parents=True, exist_ok=True)  # the hollow runtime writes no logs
    lines = [f"2026-01-01T00:00:0{number}Z stdout F line {number}\n" for number in range(3)]
    (directory / "0.log").write_text("".join(lines))
    wanted = {"Namespace": "science", "PodName": "job", "PodUID": "uid-job", "ContainerName": "main"}
    assert await client.ask("GET", "/getLogs", wanted) == (200, "line 0\nline 1\nline 2\n")
    tail = {**wanted, "Opts": {"Tail": 1, "Bytes": 0, "Timestamps": False, "Follow": False}}
    assert await client.ask("GET", "/getLogs", tail) == (200, "line 2\n")
    assert (await client.ask("GET", "/getLogs", {**wanted, "ContainerName": "other"}))[0] == 400


async def test_contents_that_interlink_sends_become_directories(
    client: Client, plugin: Any, short: Path
) -> None:
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    sent = pod(volumes=volumes, main={"volumeMounts": mounts})
    secret = {
        "metadata": {"name": "keys"},
        "type": "Opaque",
        "data": {"k": base64.b64encode(b"\0\1").decode()},
    }
    contents = {
        "name": "main",
        "configMaps": [{"metadata": {"name": "settings"}, "data": {"a.ini": "x=1"}}],
        "secrets": [secret],
    }
    await client.ask("POST", "/create", {"pod": sent, "container": [contents]})
    await until(client, sent, "running")
    kept = short / "root/volumes/uid-job"
    assert (kept / "settings/a.ini").read_text() == "x=1"
    assert (kept / "keys/k").read_bytes() == b"\0\1"
    await client.ask("POST", "/delete", sent)
    assert not kept.exists()


async def test_what_the_machine_cannot_provide_is_refused_with_a_reason(client: Client, plugin: Any) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
    code, answer = await client.ask("POST", "/create", {"pod": pod(volumes=volumes), "container": []})
    assert code == 400
    assert "job: volume data: persistentVolumeClaim is not available outside" in answer["detail"]
    sent = pod("big", main={"resources": {"requests": {"cpu": "100k"}}})
    await client.ask("POST", "/create", {"pod": sent, "container": []})
    rejected = await until(client, sent, "terminated")
    assert "cpu" in rejected["message"]


async def test_a_ping_reports_what_the_virtual_node_offers(client: Client, plugin: Any) -> None:
    code, answer = await client.ask("GET", "/status")
    assert (code, answer["status"]) == (200, "ok")
    assert int(answer["resources"]["pods"]) > 0
    assert (await client.ask("GET", "/nothing"))[0] == 404


def test_a_manifest_keeps_nothing_that_only_the_cluster_knows() -> None:
    sent = pod(serviceAccountName="robot", tolerations=[{"operator": "Exists"}], dnsPolicy="Default")
    manifest = interlink.local_pod(sent, {})
    assert set(manifest["metadata"]) == {"name", "namespace", "annotations"}
    assert not is_critical(convert(manifest, Pod, "job")), "or it would never be evicted"
    assert manifest["spec"].keys().isdisjoint(interlink.CLUSTER_FIELDS)
    assert manifest["spec"]["dnsPolicy"] == "Default"
    assert sent["spec"]["nodeName"] == "virtual", "the caller's document stays as it was"
