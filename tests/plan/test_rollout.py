"""A rollout of a configuration: what the planner says is what the agent's own decisions give."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from engine.admission import NodeAllocations, decide
from engine.api.config import CrashLoopBackOffConfig, KubeletConfiguration, MemorySwapConfig
from engine.api.duration import Duration
from engine.api.encoding.json_text import json_encoder
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.plan import Snapshot, load_snapshot
from engine.plan.answers.answer import Answer
from engine.plan.cluster import Cluster, ask
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.questions.rollout import RolloutParameters, rollout
from engine.plan.snapshot.node_cpus import PINNING, PROCESSORS
from engine.plan.snapshot.objects import node_object, pods_of_node

Rows = dict[str, list[dict[str, Any]]]


def asked(snapshot: Snapshot, **changes: Any) -> Answer:
    return rollout(snapshot, RolloutParameters(changes=changes))


def by_decision(answer: Answer, node: str = "") -> Rows:
    found: Rows = defaultdict(list)
    for row in answer.table.to_pylist():
        if not node or row["node"] == node:
            found[row["decision"]].append(row)
    return found


def with_configurations(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """Return the snapshot with this configuration on every node."""
    text = json_encoder(str)(KubeletConfiguration(**fields)).decode()
    nodes = pa.table(snapshot.nodes.select(snapshot.nodes.column_names))
    at = nodes.column_names.index("config")
    texts = pa.array([text] * snapshot.node_count, pa.large_string())
    return replace(snapshot, nodes=nodes.set_column(at, "config", texts))


def left_of(capacity: dict[str, Quantity], fields: dict[str, Any]) -> dict[str, Quantity]:
    """Return the allocatable that the changed fields leave; the default threshold is 100Mi of memory."""
    if "maxPods" in fields:
        return {"pods": Quantity.from_value(fields["maxPods"])}
    if "systemReserved" in fields:
        left = capacity["memory"] - Quantity.parse("20Gi") - Quantity.parse("100Mi")
        return {"memory": max(left, Quantity(0))}
    return {"cpu": max(capacity["cpu"] - Quantity.parse("6"), Quantity(0))}


@pytest.mark.parametrize("fields", [
    {"maxPods": 30}, {"systemReserved": {"memory": "20Gi"}}, {"kubeReserved": {"cpu": "6"}},
])  # fmt: skip
def test_pods_are_refused_as_a_node_that_starts_would_refuse_them(cluster: Snapshot, fields) -> None:
    found = by_decision(asked(cluster, **fields))
    refused = {(row["node"], row["object"]): row["reason"] for row in found["refuse"]}
    assert refused
    expected = {}
    for number, name in enumerate(cluster.node_names):
        about = node_object(cluster, number)
        left = {**about.allocatable, **left_of(about.status.capacity or {}, fields)}
        status = msgspec.structs.replace(about.status, allocatable=left)
        there = NodeAllocations(msgspec.structs.replace(about, status=status))
        order = pods_of_node(cluster, number)
        order.sort(key=lambda pod: str(pod.metadata.creation_timestamp or ""))
        for pod in order:
            verdict = decide(there, pod)
            if not verdict.admit:
                expected[name, pod.full_name] = f"{verdict.reason}: {verdict.message}"
                continue
            for uid in verdict.victims:
                there.remove(uid)
            there.add(pod)
    assert refused == expected


def test_the_same_configuration_changes_nothing(cluster: Snapshot) -> None:
    found = by_decision(asked(with_configurations(cluster, max_pods=110), maxPods=110))
    assert set(found) == {"unaffected"}
    assert {row["reason"] for row in found["unaffected"]} == {"no field changes"}


def test_only_evictions_that_the_change_causes_are_named(cluster: Snapshot) -> None:
    hard = {"memory.available": "60%"}
    found = by_decision(asked(cluster, evictionHard=hard))
    before = by_decision(evict(cluster, EvictParameters()))["evict"]
    after = by_decision(evict(cluster, EvictParameters(changes={"evictionHard": hard})))["evict"]
    refused = {row["object"] for row in (*found["refuse"], *found["victim"])}
    told = [(row["node"], row["object"]) for row in found["evict"]]
    expected = [(row["node"], row["object"]) for row in after if row["object"] not in refused]
    assert told
    assert not before
    assert told == expected
    again = by_decision(asked(with_configurations(cluster, eviction_hard=hard), evictionHard=hard))
    assert set(again) == {"unaffected"}


def test_a_node_that_is_affected_counts_each_pod_once(cluster: Snapshot) -> None:
    answer = asked(cluster, maxPods=30, evictionHard={"memory.available": "60%"})
    for name in cluster.node_names:
        mine = by_decision(answer, name)
        ended = [row["object"] for kind in ("refuse", "victim", "evict") for row in mine[kind]]
        assert len(ended) == len(set(ended))
        (verdict,) = mine["affected"] or mine["unaffected"]
        assert verdict["amount"] == len(ended)
        for kind, said in (("refuse", "refused"), ("evict", "evicted")):
            assert (f"{len(mine[kind])} {said}" in verdict["reason"]) == bool(mine[kind])


def test_another_cgroup_driver_restarts_every_pod(cluster: Snapshot) -> None:
    found = by_decision(asked(cluster, cgroupDriver="systemd"))
    assert len(found["restart"]) == cluster.placed
    assert {row["decision"] for row in asked(cluster, cgroupDriver="cgroupfs").table.to_pylist()} == {
        "unaffected"
    }


def test_values_of_cgroups_that_change_are_counted_by_file(cluster: Snapshot) -> None:
    before = with_configurations(cluster, pod_pids_limit=500)
    found = by_decision(asked(before, podPidsLimit=200))
    assert {row["object"] for row in found["resize"]} == {"pids.max"}
    assert {row["reason"] for row in found["resize"]} == {"pids.max: 500 processes → 200 processes"}
    assert sum(row["amount"] for row in found["resize"]) == cluster.placed
    gated = by_decision(asked(cluster, featureGates={"MemoryQoS": True}))["resize"]
    assert {row["object"] for row in gated} == {"memory.high"}
    assert all(row["reason"].startswith("memory.high: not set → ") for row in gated)


def test_the_limit_of_all_pods_follows_the_reservations(cluster: Snapshot) -> None:
    found = by_decision(asked(cluster, systemReserved={"memory": "2Gi"}))
    capacity = cluster.allocatable("memory", "capacity").tolist()
    assert [row["amount"] for row in found["limit"]] == [size - 2 * 1024**3 for size in capacity]
    assert by_decision(asked(cluster, systemReserved={"cpu": "1"}))["limit"] == []


@pytest.mark.parametrize(("held", "stops"), [("4-5", 0), ("2-5", 1), (None, 1)])
def test_reserved_cpus_matter_where_pods_have_them(cluster: Snapshot, held, stops) -> None:
    one = with_configurations(cluster.shard(0, 1), cpu_manager_policy="static", reserved_system_cpus="0")
    nodes = one.nodes
    if held is not None:
        texts = pa.array([json.dumps({"reserved": "0", "exclusive": held})], pa.large_string())
        nodes = nodes.append_column(PINNING, texts)
        nodes = nodes.append_column(PROCESSORS, pa.array([""], pa.large_string()))
    answer = asked(replace(one, nodes=nodes), reservedSystemCPUs="0-3")
    assert len(by_decision(answer)["refuses-to-start"]) == stops
    assert len(by_decision(answer)["affected"]) == stops


def test_a_field_that_the_file_does_not_set_falls_back(cluster: Snapshot, tmp_path: Path) -> None:
    following = tmp_path / "next.yaml"
    following.write_text("kind: KubeletConfiguration\nmaxPods: 100\nlogging: {format: json}\n")
    before = with_configurations(
        cluster.shard(0, 1), cgroup_driver="systemd", pod_pids_limit=9, memory_swap=MemorySwapConfig(),
        crash_loop_back_off=CrashLoopBackOffConfig(Duration(300)),
        image_pull_credentials_verification_policy="NeverVerifyPreloadedImages",
    )  # fmt: skip
    found = by_decision(rollout(before, RolloutParameters(config=str(following))))
    assert [row["object"] for row in found["changes"]] == ["maxPods", "logging.format"]
    # The others have the defaults that a kubelet shows.
    fallen = {row["object"] for row in found["falls-back"]}
    assert fallen == {"cgroupDriver", "podPidsLimit", "containerRuntimeEndpoint"}
    assert not found["restart"]
    assert found["resize"]


def test_another_policy_refuses_to_start(cluster: Snapshot) -> None:
    found = by_decision(asked(cluster.shard(0, 1), cpuManagerPolicy="static", reservedSystemCPUs="0"))
    assert [row["object"] for row in found["refuses-to-start"]] == ["cpuManagerPolicy", "reservedSystemCPUs"]
    assert found["affected"][0]["reason"].startswith("the kubelet does not start")


def test_shards_give_the_same_rows(cluster: Snapshot) -> None:
    parameters = RolloutParameters(changes={"maxPods": 30, "podPidsLimit": 99})
    whole = ask(Cluster(cluster), "rollout", parameters)
    parts = ask(Cluster(cluster), "rollout", parameters, shard_pods=100)
    assert whole.table.to_pylist() == parts.table.to_pylist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name the next configuration"),
        ({"changes": {"maxPod": 3}}, "no such field in KubeletConfiguration"),
        ({"changes": {"imageGCLowThresholdPercent": 99}}, "LowThresholdPercent"),
    ],
)
def test_a_configuration_with_which_no_kubelet_starts_is_an_error(cluster: Snapshot, given, said) -> None:
    with pytest.raises(InvalidInput, match=said):
        rollout(cluster, RolloutParameters(**given))


def test_a_pipeline_reads_the_exit_status_and_the_report(
    run_plan, cluster_file: Path, tmp_path: Path
) -> None:
    following = tmp_path / "next.yaml"
    following.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 30\n"
    )
    report = tmp_path / "report.html"
    line = ["rollout", "--config", str(following), str(cluster_file), "--explain", "--fail-on", "affected"]
    done = run_plan(*line, "-o", str(report))
    assert done.returncode == 1
    assert b"failed: 24 rows of affected" in done.stderr
    assert b"is refused when the kubelet of node-00000 starts: OutOfpods" in done.stdout
    page = report.read_text()
    assert "On 24 nodes pods are affected" in page
    assert "pods are refused" in page
    assert run_plan(*line[:-1], "refuses-to-start", "-o", str(report)).returncode == 0


def small_node(directory: Path, *pods: tuple[str, int, str, int], cpu: str = "4", **stats: Any) -> Snapshot:
    """Return a node with pods: each a name, a priority, its request of CPU, and its use of memory in MiB."""
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status}
    ]
    used = []
    for second, (name, priority, request, use) in enumerate(pods):
        container = {"name": "c", "resources": {"requests": {"cpu": request}}}
        meta = {"name": name, "namespace": "shop", "uid": name,
                "creationTimestamp": f"2026-01-01T00:00:{second:02d}Z"}  # fmt: skip
        documents.append(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Running"},
             "spec": {"nodeName": "n", "priority": priority, "containers": [container]}}
        )  # fmt: skip
        used.append({"podRef": {"name": name, "namespace": "shop"}, "memory": {"workingSetBytes": use << 20}})
    if stats:
        documents.append({"node": {"nodeName": "n", **stats}, "pods": used})
    (directory / "cluster.json").write_text("\n".join(map(json.dumps, documents)))
    return load_snapshot([str(directory)])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("reserved", "evicted"), [("0", []), ("1500Mi", ["shop/big"]), ("3Gi", ["shop/big"])]
)
def test_evictions_follow_a_limit_of_all_pods_that_statistics_show(
    reserved: str, evicted: list[str], known: bool, tmp_path: Path
) -> None:
    if known:
        configz = {"kubeletconfig": {"kubeReserved": {"memory": "1Gi"}}}
        (tmp_path / "nodes" / "n").mkdir(parents=True)
        (tmp_path / "nodes" / "n" / "configz.json").write_text(json.dumps(configz))
    pods_of_node = {"availableBytes": 1 << 30, "workingSetBytes": 6 << 30}
    snapshot = small_node(
        tmp_path, ("big", 0, "1", 4096), ("small", 0, "1", 2048),
        memory={"availableBytes": 2 << 30, "workingSetBytes": 6 << 30},
        systemContainers=[{"name": "pods", "memory": pods_of_node}],
    )  # fmt: skip
    found = by_decision(asked(snapshot, systemReserved={"memory": reserved}))
    # 1 GiB less is left of the configuration that is known.
    if not known and reserved == "1500Mi":
        evicted = []
    assert [row["object"] for row in found["evict"]] == evicted


def test_a_pod_that_would_be_preempted_today_is_not_refused_by_the_change(tmp_path: Path) -> None:
    snapshot = small_node(
        tmp_path, ("first", 0, "1", 0), ("second", 0, "500m", 0), ("critical", 2_000_000_000, "1", 0), cpu="2"
    )
    # The critical pod preempts `second` today, which leaves nothing for `second` after the change.
    found = by_decision(asked(snapshot, systemReserved={"cpu": "700m"}))
    assert [(row["object"], row["reason"]) for row in found["victim"]] == [
        ("shop/first", "for the critical pod shop/critical")
    ]
    assert not found["refuse"]
