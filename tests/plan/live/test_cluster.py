"""Snapshots of running clusters: pages, permissions, contexts, and nodes that do not answer."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.api.errors import InvalidInput, KubengineError
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.plan import FaultLog, Snapshot
from engine.plan.cluster import Cluster, ask
from engine.plan.live import cluster_reader
from engine.plan.live.cluster_reader import read_cluster
from engine.plan.live.contexts import find_context
from engine.plan.questions.drain import DrainParameters
from engine.plan.questions.evict import EvictParameters
from engine.testing.apiserver import ApiServer
from tests.cluster.control_plane import ControlPlane, binaries

ROOT = Path(__file__).parents[3]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/shop/pods"
PROXY = "/api/v1/nodes/{}/proxy/{}"
CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "110"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Three nodes, each with its configuration and statistics, and seven pods on them."""
    async with ApiServer(tmp_path) as running:
        for number in range(3):
            name = f"n{number}"
            status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": []}
            running.create(NODES, {"metadata": {"name": name}, "status": status})
            running.documents[PROXY.format(name, "configz")] = {
                "kubeletconfig": {
                    "kind": "KubeletConfiguration",
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "evictionHard": {"memory.available": f"{number + 1}00Mi"},
                }
            }
            running.documents[PROXY.format(name, "stats/summary")] = {
                "node": {"nodeName": name, "memory": {"availableBytes": 5 << 30, "workingSetBytes": 3 << 30}},
                "pods": [],
            }
        for number in range(7):
            requests = {"cpu": "250m", "memory": "1Gi"}
            spec = {
                "nodeName": f"n{number % 3}",
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            }
            running.create(
                PODS, {"metadata": {"name": f"p{number}"}, "spec": spec, "status": {"phase": "Running"}}
            )
        running.create("/apis/policy/v1/namespaces/shop/poddisruptionbudgets",
                       {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}})  # fmt: skip
        yield running


async def taken(server: ApiServer, faults: FaultLog, **options: Any) -> Snapshot:
    config = load_kubeconfig(server.kubeconfig("reader"))
    return await asyncio.to_thread(read_cluster, config, faults, **options)


async def test_lists_are_read_page_by_page_and_nodes_through_the_proxy(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "PAGE", 3)
    faults, steps = FaultLog(strict=True), []
    snapshot = await taken(server, faults, step=steps.append)
    assert snapshot.nodes["name"].to_pylist() == ["n0", "n1", "n2"]
    assert snapshot.placed == 7
    configurations = map(json.loads, snapshot.nodes["config"].to_pylist())
    assert [config["evictionHard"]["memory.available"] for config in configurations] == [
        "100Mi", "200Mi", "300Mi",
    ]  # fmt: skip
    assert snapshot.nodes["reading/memory_available"].to_pylist() == [5 << 30] * 3
    assert snapshot.budgets["name"].to_pylist() == ["b"]
    assert [seen.params["limit"] for seen in server.requests if seen.path == "/api/v1/pods"] == ["3"] * 3
    assert sum(steps) == pytest.approx(1.0)


async def test_an_expired_page_starts_the_list_over_without_repeating_objects(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "PAGE", 3)
    server.fail(410, path="^/api/v1/pods$", skip=2)
    snapshot = await taken(server, FaultLog(strict=True))
    assert sorted(snapshot.pods["name"].to_pylist()) == [f"p{number}" for number in range(7)]


async def test_a_list_that_expires_again_and_again_is_an_error(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "PAGE", 3)
    server.fail(410, path="^/api/v1/pods$", times=None)
    with pytest.raises(KubengineError, match="Expired"):
        await taken(server, FaultLog())


@pytest.mark.parametrize("tokens", ["one", "many"])
async def test_a_list_without_end_is_refused(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tokens: str
) -> None:
    """A server that gives a page token again, or ever new ones with nothing in the pages."""
    asked: list[str] = []

    def listed(path: Any, params: Any) -> dict[str, Any]:
        asked.append(path)
        token = "again" if tokens == "one" else str(len(asked))
        items = [{"metadata": {"name": f"n{len(asked)}"}}] if tokens == "one" else []
        return {"metadata": {"continue": token}, "items": items}

    monkeypatch.setattr(server, "_list", listed)
    with pytest.raises(KubengineError, match="/api/v1/nodes: the list does not end"):
        await taken(server, FaultLog())
    assert len(asked) <= 20


async def test_more_pages_than_any_cluster_has_are_refused(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "PAGE", 3)
    monkeypatch.setattr(cluster_reader, "MOST_PAGES", 2)
    with pytest.raises(KubengineError, match="/api/v1/pods: the list does not end"):
        await taken(server, FaultLog())


async def test_items_that_are_no_objects_are_faults_of_their_own(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server._list

    def listed(path: Any, params: Any) -> dict[str, Any]:
        page = real(path, params)
        return {**page, "items": [{}, 1, ["a"], None, *page["items"]]}

    monkeypatch.setattr(server, "_list", listed)
    faults = FaultLog()
    snapshot = await taken(server, faults)
    assert snapshot.placed == 7
    assert faults.counts["is not an object"] == 4 * len(cluster_reader.LISTS)


async def test_objects_that_may_not_be_listed_are_reported_once(server: ApiServer) -> None:
    server.fail(403, path="poddisruptionbudgets", times=None)
    server.fail(403, path="/proxy/configz", times=None)
    faults = FaultLog()
    snapshot = await taken(server, faults, parallel=1)
    assert snapshot.placed == 7
    assert faults.counts["cannot list PodDisruptionBudget"] == 1
    for name, asked in (("drain", DrainParameters(nodes=["*"])), ("evict", EvictParameters())):
        notes = ask(Cluster(snapshot), name, asked).note_lines
        assert "could not be listed, and count as none: PodDisruptionBudget" in notes
    assert faults.counts["not permitted to read configz of nodes"] == 1
    assert len([seen for seen in server.requests if seen.path.endswith("configz")]) == 1
    assert snapshot.nodes["reading/memory_available"].to_pylist() == [5 << 30] * 3


async def test_nodes_or_pods_that_may_not_be_listed_are_an_error(server: ApiServer) -> None:
    server.fail(403, path="^/api/v1/pods$", times=None)
    with pytest.raises(KubengineError, match="Forbidden"):
        await taken(server, FaultLog())


async def test_a_node_that_does_not_answer_is_a_fault_of_its_own(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "NODE_SECONDS", 0.5)
    server.fail(None, delay=3.0, path="/nodes/n0/proxy/stats", times=None)
    server.fail(503, path="/nodes/n1/proxy/stats", times=None)
    del server.documents[PROXY.format("n2", "configz")]
    faults = FaultLog()
    snapshot = await taken(server, faults)
    assert snapshot.nodes["reading/memory_available"].to_pylist() == [None, None, 5 << 30]
    assert sorted((fault.subject, fault.field) for fault in faults.kept) == [
        ("Node n0", "stats/summary"), ("Node n1", "stats/summary"), ("Node n2", "configz"),
    ]  # fmt: skip


async def test_without_node_documents_no_node_is_asked(server: ApiServer) -> None:
    snapshot = await taken(server, FaultLog(strict=True), node_documents=False)
    assert snapshot.placed == 7
    assert not [seen for seen in server.requests if "/proxy/" in seen.path]


async def test_the_documented_rights_suffice_on_a_real_api_server(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, binaries()) as plane:
        config = load_kubeconfig(plane.admin)
        admin = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
        role = yaml.safe_load((ROOT / "package/kubectl/planner-reader.yaml").read_text())
        subject = {"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "ClusterRole", "name": role["metadata"]["name"], "apiGroup": subject["apiGroup"]}
        binding = {"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": reference}
        await admin.create(f"{RBAC}/clusterroles", role, dict)
        await admin.create(f"{RBAC}/clusterrolebindings", binding, dict)
        for number in range(3):
            await admin.create(NODES, {"metadata": {"name": f"n{number}"}}, dict)
        admin.close()
        faults = FaultLog()
        reader = load_kubeconfig(plane.kubeconfig_of("reader"))
        snapshot = await asyncio.to_thread(read_cluster, reader, faults)
        assert snapshot.nodes["name"].to_pylist() == ["n0", "n1", "n2"]
        # No kubelet runs behind these nodes, so the server's proxy finds none; nothing else is missing.
        assert {fault.field for fault in faults.kept} == {"configz", "stats/summary"}
        assert plane.refused("reader") == []


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("kubengine", ["plan", "admit", "--kubeconfig", "{}"]),
        ("kubectl-kubengine", ["admit", "--context", "it"]),
        ("kubectl-kubengine", ["admit"]),
    ],
)
async def test_every_question_can_ask_the_running_cluster(
    server: ApiServer, command: str, arguments: list[str]
) -> None:
    config = str(server.kubeconfig("reader"))
    given = [part.format(config) for part in arguments]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / command), *given, "--requests", "cpu=1", "--json",
        env={"PATH": "/usr/bin:/bin", "KUBECONFIG": config, "HOME": "/nonexistent"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert process.returncode == 0, error
    rows = json.loads(out)["rows"]
    assert {row["node"]: row["amount"] for row in rows if row["decision"] == "admits"} == {
        "n0": 3, "n1": 3, "n2": 3,
    }  # fmt: skip


def context(name: str, server: str) -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
        "users": [{"name": name, "user": {"tokenFile": "token"}}],
    }


class TestContexts:
    """Compare `find_context` with kubectl's rules."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        paths = tmp_path / "a" / "config", tmp_path / "b" / "config"
        for path, name in zip(paths, ("first", "second"), strict=True):
            path.parent.mkdir()
            path.write_text(json.dumps(context(name, f"https://{name}:6443")))
        return paths

    def test_files_of_kubeconfig_are_merged_and_paths_start_at_their_own_file(
        self, files: tuple[Path, Path]
    ) -> None:
        environment = {"KUBECONFIG": f"{files[0]}:/does/not/exist:{files[1]}"}
        assert find_context("", "", environment).server.authority == "first:6443"
        second = find_context("", "second", environment)
        assert second.server.authority == "second:6443"
        assert second.user.token_file == str(files[1].parent / "token")
        assert second.cluster.certificate_authority == str(files[1].parent / "ca.crt")

    def test_a_named_file_goes_before_the_environment(self, files: tuple[Path, Path]) -> None:
        found = find_context(str(files[1]), "", {"KUBECONFIG": str(files[0])})
        assert found.server.authority == "second:6443"

    def test_home_is_the_default(self, tmp_path: Path) -> None:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").write_text(json.dumps(context("home", "https://home:6443")))
        assert find_context("", "", {"HOME": str(tmp_path)}).server.authority == "home:6443"

    def test_an_unknown_context_names_the_known_ones(self, files: tuple[Path, Path]) -> None:
        with pytest.raises(InvalidInput, match="there is no 'third'; known: first, second"):
            find_context("", "third", {"KUBECONFIG": f"{files[0]}:{files[1]}"})

    def test_a_pod_uses_its_service_account(self, tmp_path: Path) -> None:
        environment = {
            "KUBERNETES_SERVICE_HOST": "fd00::1",
            "KUBERNETES_SERVICE_PORT": "443",
            "HOME": "/none",
        }
        found = find_context("", "", environment, account=tmp_path)
        assert (found.server.authority, found.user.token_file) == ("[fd00::1]:443", str(tmp_path / "token"))

    def test_without_any_the_searched_files_are_named(self) -> None:
        with pytest.raises(InvalidInput, match=r"no such file: /none/\.kube/config"):
            find_context("", "", {"HOME": "/none"})
