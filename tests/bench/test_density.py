"""kube-burner's workload files, rendered and played on the test API server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.bench.burner_jobs import pods_of, read_jobs, variable
from engine.bench.burner_templates import render
from engine.bench.density import DensityOptions, DensityRow, density_table, quantiles, run_density
from engine.testing.apiserver import ApiServer

POD = """
kind: Pod
apiVersion: v1
metadata: {name: "{{.JobName}}-{{.Iteration}}-{{.Replica}}"}
spec:
  affinity: {{.nodes|toJson}}
  containers: [{name: c, image: "{{.image}}"}]
"""
DEPLOYMENT = """
kind: Deployment
apiVersion: apps/v1
metadata: {name: "d-{{.Iteration}}"}
spec: {replicas: 2, template: {spec: {containers: [{name: c, image: one}]}}}
"""
ROUTE = """
kind: Route
apiVersion: route.openshift.io/v1
metadata: {name: r}
"""
JOB = """
global: {gc: {{.GC}}}
jobs:
  - name: dense
    namespace: ns
    jobIterations: {{.JOB_ITERATIONS}}
    qps: 1000
    burst: 1000
    iterationsPerNamespace: 2
    {{ if ne .THRESHOLD 0 }}jobType: delete{{ end }}
    namespaceLabels: {enforce: privileged, sync: false}
    objects:
      - objectTemplate: pod.yml
        replicas: 2
        inputVars: {image: "pause:1", nodes: {{.NODES}}}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    for name, text in (("pod", POD), ("deployment", DEPLOYMENT), ("route", ROUTE), ("job", JOB)):
        (tmp_path / f"{name}.yml").write_text(text)
    return tmp_path / "job.yml"


GIVEN = {"JOB_ITERATIONS": 3, "THRESHOLD": 0, "NODES": '{"a": [1]}'}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a{{.n}}b", "a3b"),
        ("{{ .list | toJson }}", '["x"]'),
        ("{{if gt .n 2}}yes{{else}}no{{end}}", "yes"),
        ("{{if and .n .zero}}yes{{else}}no{{end}}", "no"),
        ("{{if .zero}}{{if .n}}a{{else}}b{{end}}{{else}}c{{end}}", "c"),
        ('{{if eq .word "w"}}{{.word}}{{end}}', "w"),
        ("a \n{{- .n -}}\n b", "a3b"),
        ("{{.yes}}", "true"),
    ],
)
def test_a_template_is_rendered_as_in_go(text: str, expected: str) -> None:
    variables = {"n": 3, "zero": 0, "list": ["x"], "word": "w", "yes": True}
    assert render(text, variables, subject="t") == expected


def test_random_text_has_its_length_and_range() -> None:
    assert len(render("{{randAlphaNum 250}}", {}, subject="t")) == 250
    assert {render("{{randInt 1 3}}", {}, subject="t") for _ in range(200)} == {"1", "2"}


@pytest.mark.parametrize(
    "text", ["{{.gone}}", "{{range .n}}x{{end}}", "{{if .n}}", "{{end}}", "{{.list}}", "{{}}", "{{toJson}}"]
)
def test_unknown_templates_are_refused_with_the_file(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^pod\.yml"):
        render(text, {"n": 1, "list": []}, subject="pod.yml")


def test_a_job_creates_each_iterations_objects_in_order(workload: Path) -> None:
    (job,) = read_jobs(workload, GIVEN)
    assert job.namespaces() == ["ns-0", "ns-1"]
    assert [job.namespace_of(each) for each in range(3)] == ["ns-0", "ns-0", "ns-1"]
    assert job.namespace_labels == {"enforce": "privileged", "sync": "false"}
    first, second = job.objects(1)
    assert [each["metadata"]["name"] for each in (first, second)] == ["dense-1-1", "dense-1-2"]
    assert first["spec"]["affinity"] == {"a": [1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"THRESHOLD": 1}, "jobType delete is not played"),
        ({"JOB_ITERATIONS": None}, "jobIterations, qps or burst"),
    ],
)
def test_a_job_that_cannot_be_played_exactly_is_refused(
    workload: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_jobs(workload, GIVEN | change)


def test_churn_is_refused(workload: Path) -> None:
    workload.write_text(JOB.replace("    qps:", "    churnConfig: {cycles: 1}\n    qps:"))
    with pytest.raises(InvalidInput, match="churn is not played"):
        read_jobs(workload, GIVEN)


def test_the_number_of_pods_of_an_object() -> None:
    def value(kind: str, **spec: Any) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": "x"}, "spec": spec}

    assert [pods_of(value("Pod")), pods_of(value("Deployment", replicas=3))] == [1, 3]
    assert [pods_of(value("StatefulSet")), pods_of(value("Service"))] == [1, 0]
    with pytest.raises(InvalidInput, match="DaemonSet"):
        pods_of(value("DaemonSet"))


def test_a_variable_is_a_scalar_or_its_text() -> None:
    assert [variable("5"), variable("yes"), variable("a b")] == [5, True, "a b"]
    assert variable('{"a": 1}') == '{"a": 1}'


def test_quantiles_are_of_the_nearest_rank() -> None:
    assert quantiles([float(each) for each in range(1, 101)]) == (50.0, 95.0, 99.0)
    assert quantiles([1.0]) == (1.0, 1.0, 1.0)
    assert quantiles([]) == ()


@asynccontextmanager
async def cluster(tmp_path: Path, *, ready: bool = True, ends: bool = True) -> AsyncIterator[ApiServer]:
    """Run an API server whose deployments get pods, which become Ready if `ready`; yield the server.

    If `ends`, the pods of deleted namespaces are deleted.
    """
    async with ApiServer(tmp_path / "api") as server:
        server.documents["/api/v1"] = {"resources": [resource("pods", "Pod"), resource("pods/log", "Pod")]}
        server.documents["/apis/apps/v1"] = {"resources": [resource("deployments", "Deployment")]}
        acting = asyncio.create_task(controllers(server, ready, ends))
        try:
            yield server
        finally:
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting


def resource(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "namespaced": True}


async def controllers(server: ApiServer, ready: bool, ends: bool) -> None:
    """Do what controllers do, until cancelled.

    Namespaces get service accounts, and deployments two pods. Pods become Ready if `ready`.
    If `ends`, the pods of deleted namespaces are deleted.
    """
    while True:
        spaces = {each["metadata"]["name"] for each in server.list("/api/v1/namespaces")}
        for space in spaces:
            with suppress(Exception):
                server.create(
                    f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": "default"}}
                )
        for each in server.list("/apis/apps/v1/deployments"):
            meta = each["metadata"]
            for index in range(2):
                pod = {
                    "metadata": {"name": f"{meta['name']}-{index}"},
                    "spec": each["spec"]["template"]["spec"],
                }
                with suppress(Exception):
                    server.create(f"/api/v1/namespaces/{meta['namespace']}/pods", pod)
        for pod in server.list("/api/v1/pods"):
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if meta["namespace"] not in spaces:
                if ends:
                    server.delete(path, grace=0)
            elif ready and not pod.get("status", {}).get("conditions"):
                conditions = [{"type": "Ready", "status": "True"}]
                server.update(f"{path}/status", {**pod, "status": {"conditions": conditions}})
        for each in server.list("/apis/apps/v1/deployments"):
            if each["metadata"]["namespace"] not in spaces:
                meta = each["metadata"]
                server.delete(f"/apis/apps/v1/namespaces/{meta['namespace']}/deployments/{meta['name']}")
        await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.density.SETTLING_SECONDS", 0.0)


def options(server: ApiServer, workload: Path, **more: Any) -> DensityOptions:
    kubeconfig = server.kubeconfig("admin", organization="system:masters")
    return DensityOptions(
        workload, kubeconfig, os.getpid(), "a", GIVEN, **{"seconds": 0.1, "limit": 60.0, **more}
    )


async def play(server: ApiServer, workload: Path, **more: Any) -> tuple[list[DensityRow], list[str]]:
    messages: list[str] = []
    rows = await asyncio.to_thread(run_density, options(server, workload, **more), messages.append)
    return rows, messages


async def test_pods_are_timed_and_nothing_is_left(workload: Path, tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        (row,), _ = await play(server, workload)
        left = [server.list(f"/api/v1/{kind}") for kind in ("pods", "namespaces")]
    assert (row.job, row.agent, row.pods) == ("dense", "a", 6)
    assert 0 <= row.ready_s[0] <= row.ready_s[2] <= row.wall_s
    assert row.cpu_s > 0
    assert row.rss_mb > 1
    assert left == [[], []]
    assert density_table([row]).splitlines()[-1].startswith("| dense | 6 | a | ")


async def test_pods_of_deployments_count_and_unserved_kinds_are_named(workload: Path, tmp_path: Path) -> None:
    workload.write_text(
        JOB.replace("pod.yml", "deployment.yml").replace("replicas: 2", "replicas: 1")
        + "      - objectTemplate: route.yml\n"
    )
    async with cluster(tmp_path) as server:
        (row,), messages = await play(server, workload, images={"one": "two"})
        created = [json.loads(each.body) for each in server.requests if each.path.endswith("/deployments")]
    assert row.pods == 6
    assert row.left_out == ("Route (route.openshift.io/v1)",)
    assert any("Route" in line for line in messages)
    images = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in created}
    assert images == {"two"}


async def test_pods_that_are_not_ready_in_time_are_counted_and_removed(
    workload: Path, tmp_path: Path
) -> None:
    async with cluster(tmp_path, ready=False) as server:
        with pytest.raises(Unavailable, match="0 of 6 pods are Ready"):
            await play(server, workload, limit=1.0)
        assert server.list("/api/v1/namespaces") == []


async def test_a_deletion_without_end_loses_nothing_of_the_start(workload: Path, tmp_path: Path) -> None:
    async with cluster(tmp_path, ends=False) as server:
        (row,), messages = await play(server, workload, limit=2.0)
    assert row.deleted_s is None
    assert row.ready_s[2] > 0
    assert "  6 of 6 pods are not gone" in messages
    assert "| over the limit |" in density_table([row])


def test_an_agent_that_does_not_run_is_refused(workload: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="agent-pid"):
        run_density(DensityOptions(workload, tmp_path / "none", 2**22 + 1, "a", GIVEN), print)
