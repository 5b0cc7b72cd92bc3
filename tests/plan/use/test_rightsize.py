"""New requests and their consequences in the recorded time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api.errors import InvalidInput
from engine.plan import FaultLog
from engine.plan.answers.answer import Answer
from engine.plan.questions.rightsize import RightsizeParameters, rightsize
from engine.plan.rightsizing.pressure import shared_out
from engine.plan.rightsizing.recommended import ContainerAmounts, read_recommended
from engine.plan.rightsizing.workloads import Workload, Workloads
from tests.plan.use.sized_cluster import GI, MI, TIMES, SizedCluster, at_peak

NODES = ["n1", "n2", "n3", "n4"]


@pytest.fixture
def cluster() -> SizedCluster:
    """Four nodes of 4 CPUs and 16 GiB, each with two pods of a generous deployment."""
    made = SizedCluster()
    for name in NODES:
        made.node(name)
    web = made.pods("Deployment shop/web", NODES * 2, {"cpu": "1", "memory": "4Gi"})
    made.use(web, 500 * MI, 0.2)
    return made


def ask(cluster: SizedCluster, directory: Path, **parameters: Any) -> Answer:
    snapshot = cluster.snapshot(directory)
    parameters.setdefault("history", str(directory / "use.arrow"))
    return rightsize(snapshot, RightsizeParameters(**parameters))


def rows(answer: Answer, decision: str) -> list[dict[str, Any]]:
    return [row for row in answer.table.to_pylist() if row["decision"] == decision]


def test_requests_follow_use_and_nodes_become_removable(cluster: SizedCluster, tmp_path: Path) -> None:
    answer = ask(cluster, tmp_path)
    lowered = rows(answer, "lowers")
    assert {row["object"] for row in lowered} == {"Deployment shop/web: app"}
    cpu, memory = lowered
    assert cpu["reason"] == "cpu 1 → 230m: p95 of 2,304 values of 8 pods, plus 15 %"
    assert cpu["amount"] == 230 - 1000
    assert memory["reason"].startswith("memory 4Gi → 575Mi: the maximum of 2,304 values of 8 pods")
    # Eight pods of 1 CPU and 4 GiB need two nodes today; of 231m and 576 MiB one is enough.
    assert len(rows(answer, "removable")) == 3
    assert answer.headline == (
        "1 node fewer: the new requests need 1 of 4 nodes, today's need 2. 0 pods at risk."
    )
    moved = rows(answer, "move")
    assert len(moved) == 6
    assert len({row["reason"] for row in moved}) == 1
    assert not rows(answer, "evict") + rows(answer, "oom-kill") + rows(answer, "squeeze")


def test_pods_that_peak_together_are_evicted_where_they_are_packed(
    cluster: SizedCluster, tmp_path: Path
) -> None:
    batch = cluster.pods("Deployment shop/batch", NODES, {"cpu": "100m", "memory": "6Gi"})
    cluster.use(batch, at_peak(GI, 5 * GI, 100, 101), 0.1)
    safe = ask(cluster, tmp_path)
    assert not rows(safe, "evict")
    bold = ask(cluster, tmp_path, memory_percentile=50.0, memory_margin=0.0)
    [pressure] = rows(bold, "pressure")
    assert pressure["amount"] == 2
    assert TIMES.text(100) in pressure["reason"]
    evicted = rows(bold, "evict")
    # 4 × 5 GiB and 8 × 500 MiB exceed 16 GiB by more than one batch pod.
    assert [row["object"] for row in evicted] == batch[: len(evicted)]
    assert len(evicted) == 2
    assert all(row["node"] == pressure["node"] for row in evicted)
    assert f"uses 5Gi on {TIMES.text(100)}" in evicted[0]["reason"].replace("4.999Gi", "5Gi")
    assert bold.headline.endswith("2 pods at risk (2 evicted).")


def test_a_node_whose_use_outside_of_pods_is_recorded_has_less_for_pods(
    cluster: SizedCluster, tmp_path: Path
) -> None:
    from engine.plan.history.codes import encode

    for name in NODES:
        row = cluster.history.row(("node-memory", name, "", "", ""))
        row[:] = encode(np.full(TIMES.count, 2 * 500 * MI + 13.0 * GI))
    answer = ask(cluster, tmp_path)
    # 8 × 500 MiB on one node, of which 13 GiB are used by the system.
    assert len(rows(answer, "pressure")) == 1
    assert rows(answer, "evict")


def test_a_higher_threshold_does_not_raise_the_limit_of_all_pods(tmp_path: Path) -> None:
    cluster = SizedCluster()
    cluster.node("n1")
    cluster.objects[-1]["status"]["allocatable"] = {"cpu": "4", "memory": "12Gi", "pods": "110"}
    pods = cluster.pods("Deployment shop/web", ["n1", "n1"], {"cpu": "1", "memory": "4Gi"})
    cluster.use(pods, 5 * GI, 0.2)
    cluster.node_use("n1", 10 * GI)
    assert not rows(ask(cluster, tmp_path), "evict")
    # Of 12.1 GiB for all pods, 2.1 GiB are left.
    pressed = ask(cluster, tmp_path, changes={"evictionHard": {"memory.available": "3Gi"}})
    assert len(rows(pressed, "pressure")) == len(rows(pressed, "evict")) == 1


def test_limits_below_use_kill_and_throttle(cluster: SizedCluster, tmp_path: Path) -> None:
    limited = cluster.pods("StatefulSet shop/db", ["n1", "n2"], {"cpu": "2", "memory": "4Gi"},
                           {"cpu": "4", "memory": "8Gi"})  # fmt: skip
    cluster.use(limited[:1], at_peak(GI, 5 * GI, 7), at_peak(0.5, 3.0, 7, 8, 9))
    cluster.use(limited[1:], GI, 0.5)
    kept = ask(cluster, tmp_path, memory_percentile=90.0)
    assert not rows(kept, "oom-kill") + rows(kept, "throttle")
    scaled = ask(cluster, tmp_path, memory_percentile=90.0, limits="scale")
    [killed], [throttled] = rows(scaled, "oom-kill"), rows(scaled, "throttle")
    assert (killed["object"], killed["amount"]) == ("shop/db-0", 1)
    assert TIMES.text(7) in killed["reason"]
    assert (throttled["object"], throttled["amount"]) == ("shop/db-0", 3)
    assert "1 OOM-killed" in scaled.headline


def test_a_container_at_its_limit_is_not_above_it(tmp_path: Path) -> None:
    cluster = SizedCluster()
    cluster.node("n1")
    pods = cluster.pods("StatefulSet shop/db", ["n1"], {"cpu": "2", "memory": "1Gi"}, {"memory": "1000Mi"})
    cluster.use(pods, 1000 * MI, 0.5)
    answer = ask(cluster, tmp_path, memory_floor="0", memory_margin=0.0)
    assert not rows(answer, "oom-kill")


def test_recorded_oom_kills_raise_the_request(cluster: SizedCluster, tmp_path: Path) -> None:
    from engine.plan.history.codes import encode

    pods = cluster.pods("Deployment shop/api", ["n1"], {"cpu": "1", "memory": "1Gi"}, {"memory": "1Gi"})
    cluster.use(pods, GI, 0.5)
    name = pods[0].partition("/")[2]
    row = cluster.history.row(("ooms", "", "shop", name, "app"))
    row[:] = encode(at_peak(0, 1, 5, 80))
    answer = ask(cluster, tmp_path)
    [killed] = rows(answer, "oom-recorded")
    assert killed["object"] == "Deployment shop/api: app"
    assert killed["amount"] == 2
    [raised] = [row for row in rows(answer, "raises") if row["unit"] == "bytes"]
    # 20 percent more than it used, as the vertical pod autoscaler has it; the limit is raised with it.
    assert raised["amount"] == pytest.approx(0.2 * GI, rel=0.01)
    assert "raised after 2 OOM kills" in raised["reason"]


def test_pods_that_need_more_cpu_than_there_is_are_squeezed(tmp_path: Path) -> None:
    cluster = SizedCluster()
    for name in NODES:
        cluster.node(name)
    busy = cluster.pods("Deployment shop/busy", NODES, {"cpu": "3", "memory": "1Gi"})
    cluster.use(busy, GI, at_peak(0.5, 3.0, 50))
    calm = cluster.pods("Deployment shop/calm", ["n1"], {"cpu": "1", "memory": "1Gi"})
    cluster.use(calm, GI, 0.5)
    answer = ask(cluster, tmp_path, cpu_percentile=50.0)
    squeezed = rows(answer, "squeeze")
    assert {row["object"] for row in squeezed} == set(busy)
    assert TIMES.text(50) in squeezed[0]["reason"]
    assert "4 squeezed" in answer.headline


def test_past_pods_and_pods_without_a_record_count(cluster: SizedCluster, tmp_path: Path) -> None:
    young = cluster.pods("Deployment shop/young", ["n1"], {"cpu": "1", "memory": "1Gi"})
    half = np.where(np.arange(TIMES.count) < 200, np.nan, float(GI))
    cluster.use(young, half, half * 0 + 0.3)
    # A pod of the same deployment before a rollout, which is not in the snapshot any more.
    cluster.use(["shop/young-5c9f7d7b8-abcde"], at_peak(GI, 3 * GI, 10), 0.3)
    cluster.pods("Deployment shop/unknown", ["n2"], {"cpu": "1", "memory": "1Gi"})
    answer = ask(cluster, tmp_path)
    [memory] = [row for row in rows(answer, "raises") if row["unit"] == "bytes"]
    assert memory["object"] == "Deployment shop/young: app"
    assert "→ 3.449Gi" in memory["reason"]
    assert "376 values of 2 pods" in memory["reason"]
    kept = [row for row in rows(answer, "keeps") if "unknown" in row["object"]]
    assert all("0 recorded values are too few (--min-values 100)" in row["reason"] for row in kept)
    assert answer.notes["pods without recorded memory, taken to use their request"] == 1


def test_nodes_are_needed_for_a_reason(cluster: SizedCluster, tmp_path: Path) -> None:
    cluster.pods("Pod shop/single", ["n1"], {"cpu": "10m", "memory": "10Mi"})
    cluster.pods("StatefulSet shop/etcd", ["n2"], {"cpu": "10m", "memory": "10Mi"})
    cluster.objects.append(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
         "metadata": {"name": "etcd", "namespace": "shop"},
         "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "etcd"}}}}
    )  # fmt: skip
    cluster.pods("Deployment shop/pinned", ["n3"], {"cpu": "10m", "memory": "10Mi"},
                 nodeSelector={"kubernetes.io/hostname": "n3"})  # fmt: skip
    answer = ask(cluster, tmp_path)
    needed = {row["node"]: row["reason"] for row in rows(answer, "needed")}
    assert needed["n1"] == "shop/single has no controller that would create it again"
    assert needed["n2"] == "shop/etcd-0 may not be disrupted: its budget allows none"
    assert "excluded by node selector or affinity" in needed["n3"]
    assert [row["node"] for row in rows(answer, "removable")] == ["n4"]


def test_a_control_plane_and_a_cordoned_node_are_no_candidates(tmp_path: Path) -> None:
    cluster = SizedCluster()
    cluster.node("cp", node_role_kubernetes_io__control_plane="")
    cluster.objects[-1]["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    cluster.node("off")
    cluster.objects[-1]["spec"]["unschedulable"] = True
    cluster.node("n1")
    pods = cluster.pods("Deployment shop/web", ["n1"], {"cpu": "1", "memory": "1Gi"})
    cluster.use(pods, GI, 0.1)
    answer = ask(cluster, tmp_path)
    assert {row["node"] for row in rows(answer, "removable")} <= {"n1"}


def test_prices_say_what_is_saved(tmp_path: Path) -> None:
    cluster = SizedCluster()
    for name in NODES:
        cluster.node(name)
        cluster.objects[-1]["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "m5.xlarge"
    web = cluster.pods("Deployment shop/web", NODES * 2, {"cpu": "1", "memory": "4Gi"})
    cluster.use(web, 500 * MI, 0.2)
    answer = ask(cluster, tmp_path, prices={"m5.xlarge": 140.5})
    assert "The nodes cost 140.50 less" in answer.headline
    answer = ask(cluster, tmp_path, prices={"m5.large": 70})
    assert "instance types without a price: m5.xlarge" in answer.notes


def test_prices_say_how_much_more_larger_requests_cost(tmp_path: Path) -> None:
    cluster = SizedCluster()
    for name in NODES:
        cluster.node(name)
        cluster.objects[-1]["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "m5.xlarge"
    web = cluster.pods("Deployment shop/web", NODES, {"cpu": "100m", "memory": "64Mi"})
    cluster.use(web, 9 * GI, 0.2)
    answer = ask(cluster, tmp_path, prices={"m5.xlarge": 100})
    assert f"The nodes cost {100 * (len(NODES) - 1)}.00 more" in answer.headline


VPA = {
    "apiVersion": "v1", "kind": "List",
    "items": [
        {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
         "metadata": {"name": "web", "namespace": "shop"},
         "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
         "status": {"recommendation": {"containerRecommendations": [
             {"containerName": "app", "target": {"cpu": "250m", "memory": "629145600"}}]}}},
        {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
         "metadata": {"name": "new", "namespace": "shop"},
         "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "new"}}},
    ],
}  # fmt: skip
KRR = {
    "scans": [
        {"object": {"name": "web", "container": "app", "namespace": "shop", "kind": "Deployment"},
         "recommended": {"requests": {"cpu": {"value": 0.25}, "memory": {"value": 629145600}},
                         "limits": {"cpu": {"value": None}, "memory": {"value": "?"}}}},
    ],
}  # fmt: skip
CSV = "namespace,workload,container,cpu,memory\nshop,web,app,250m,600Mi\nshop,gone,app,1,1Gi\n"
YAML = "workload: web\nnamespace: shop\ncontainer: app\ncpu: 250m\nmemory: 600Mi\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("vpa.json", json.dumps(VPA)), ("krr.json", json.dumps(KRR)), ("own.csv", CSV), ("own.yaml", YAML)],
)
def test_recommendations_of_other_tools(name: str, text: str, cluster: SizedCluster, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    answer = ask(cluster, tmp_path, recommendations=str(file))
    lowered = rows(answer, "lowers")
    assert [row["reason"] for row in lowered] == [
        f"cpu 1 → 250m: recommended by {name}", f"memory 4Gi → 600Mi: recommended by {name}"
    ]  # fmt: skip
    assert "1 node fewer" in answer.headline
    if name == "vpa.json":
        assert any(
            "shop/new: status.recommendation: has no recommendation yet" in note for note in answer.notes
        )
    if name == "own.csv":
        assert any("recommendations that match no container (shop/gone: app" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workload: a\n", "missing required field `container`"),
        ("workload: a\ncontainer: b\ncpu: fast\n", "b: cpu"),
        ("workload: a\ncontainer: b\nmemory: -1\n", "b: memory: -1 is out of range"),
        ("workload: a\ncontainer: b\nmem: 1\n", "unknown field `mem`"),
    ],
)
def test_a_recommendation_that_cannot_be_used_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"own\.yaml") as caught:
        read_recommended(str(file), FaultLog())
    assert said in str(caught.value)


def test_recommended_limits_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("workload: a\ncontainer: b\ncpu_limit: 2\nmemory_limit: 1Gi\n")
    [found] = read_recommended(str(file), FaultLog())
    assert found.amounts == ContainerAmounts(None, None, 2000, GI)


def test_workloads_of_pods(tmp_path: Path) -> None:
    cluster = SizedCluster()
    cluster.node("n1")
    for owner in (
        "Deployment a/web",
        "DaemonSet a/agent",
        "StatefulSet a/db",
        "CronJob a/backup-28394820",
        "Pod a/x",
    ):
        cluster.pods(owner, ["n1"], {"cpu": "1m"})
    workloads = Workloads(cluster.snapshot(tmp_path))
    assert [str(one) for one in workloads.all] == [
        "Deployment a/web", "DaemonSet a/agent", "StatefulSet a/db", "CronJob a/backup", "Pod a/x"
    ]  # fmt: skip
    for pod, kind, name in (
        ("web-6f5d8c7b9-x2x4z", "Deployment", "web"), ("agent-abcde", "DaemonSet", "agent"),
        ("db-7", "StatefulSet", "db"), ("backup-28394821-abcde", "CronJob", "backup"),
    ):  # fmt: skip
        assert workloads.of_past("a", pod) == workloads.row(Workload(kind, "a", name)), pod
    assert workloads.of_past("b", "db-7") == -1
    assert workloads.of_past("a", "other-7") == -1


def test_contended_cpu_is_shared_by_weight() -> None:
    got = shared_out(np.array([1.0, 4.0, 4.0]), np.array([1.0, 1.0, 3.0]), 5.0)
    np.testing.assert_allclose(got, [1.0, 1.0, 3.0])
    # What the first does not need goes to the others by weight.
    got = shared_out(np.array([0.2, 4.0, 4.0]), np.array([1.0, 1.0, 3.0]), 5.0)
    np.testing.assert_allclose(got, [0.2, 1.2, 3.6])
    np.testing.assert_allclose(shared_out(np.array([1.0, 1.0]), np.array([1.0, 1.0]), 5.0), [1, 1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--history: name the recorded use, or give recommendations"),
        (["--history", "/nowhere"], "/nowhere: there is no such file"),
        (["--history", "{history}", "--cpu-floor", "few"], "--cpu-floor"),
        (["--history", "{history}", "--memory-percentile", "0"], "--memory-percentile"),
        (["--history", "{history}", "--limits", "none"], "--limits"),
        (["--recommendations", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_the_command_names_what_is_wrong_with_sizes(
    arguments: list[str], said: str, cluster: SizedCluster, run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    files = cluster.write(tmp_path)
    done = run_plan("rightsize", *(text.format(history=files[1]) for text in arguments), str(files[0]))
    assert done.returncode != 0
    assert said in done.stderr.decode()


def test_the_command_prints_the_sentence_and_fails_on_request(
    cluster: SizedCluster, run_plan: Callable[..., Any], tmp_path: Path
) -> None:
    files = cluster.write(tmp_path)
    asked = ("rightsize", "--history", str(files[1]), str(files[0]))
    done = run_plan(*asked, "--explain")
    assert done.returncode == 0, done.stderr
    assert b"1 node fewer" in done.stdout
    done = run_plan(*asked, "--json")
    assert json.loads(done.stdout)["headline"].startswith("1 node fewer")
    assert run_plan(*asked, "--fail-on", "evict,oom-kill").returncode == 0
    done = run_plan(*asked, "--fail-on", "needed")
    assert done.returncode == 1
    assert b"failed: 1 rows of needed" in done.stderr
    report = tmp_path / "report.html"
    assert run_plan(*asked, "-o", str(report)).returncode == 0
    assert "1 node fewer" in report.read_text()
