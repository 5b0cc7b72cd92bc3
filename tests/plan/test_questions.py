"""Answers equal the agent's own decisions, node by node, on Pod objects rebuilt from the snapshot."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from engine.admission import NodeAllocations, NotEnoughToPreempt, decide
from engine.admission import preempt as preempt_pods
from engine.admission.failures import InsufficientResource
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.struct import decode_hook
from engine.cgroups.formulas.containers import container_resources
from engine.cgroups.formulas.conversion import shares_to_weight
from engine.cgroups.formulas.levels import Contribution, LevelSums
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import pod_values
from engine.cgroups.interface_files import FileRules
from engine.eviction.thresholds import thresholds_from_config
from engine.eviction.usage import PodUsage, rank
from engine.plan import Snapshot, synthesize
from engine.plan.answers.output import summary
from engine.plan.answers.readable import NO_LIMIT, readable
from engine.plan.placement.node_capacity import NodeCapacity
from engine.plan.questions import QUESTIONS
from engine.plan.questions.admit import AdmitParameters, admit
from engine.plan.questions.cgroups import CgroupsParameters, cgroups
from engine.plan.questions.devices import DevicesParameters, devices
from engine.plan.questions.drain import DrainParameters, drain
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.questions.image_gc import ImageGCParameters, image_gc
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.reading.requested_pods import requested_pods
from engine.plan.snapshot.objects import node_object, pods_of_node
from engine.tables import QOS_NAMES, PodTable
from engine.topologymanager.policy import Numa, TopologyPolicy


def rows_of(answer: Any, node: str) -> list[dict[str, Any]]:
    return [row for row in answer.table.to_pylist() if row["node"] == node]


ZONE = {"topology.kubernetes.io/zone": "zone-a"}
ASKED = [
    {"requests": {"cpu": "2", "memory": "4Gi"}, "critical": True},
    {"requests": {"cpu": "200m"}, "critical": True},
    {"requests": {"cpu": "60", "memory": "200Gi"}, "critical": True},
    {"requests": {"cpu": "8", "memory": "8Gi", "ephemeral-storage": "100Gi"}, "critical": True},
    {"requests": {"nvidia.com/gpu": "4", "cpu": "1"}, "critical": True},
    {"requests": {"example.com/unknown": "4", "cpu": "1"}, "critical": True},
    {"requests": {"cpu": "2"}, "priority": 5},
    {"requests": {"cpu": "2"}, "priority": 2_000_001_000},
    {
        "requests": {"cpu": "100m"},
        "critical": True,
        "node_selector": {"topology.kubernetes.io/zone": "zone-a"},
    },
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: ",".join(map(str, a.items())))
def test_preempt_decides_as_the_agent_does(cluster: Snapshot, asked):
    parameters = msgspec.convert(asked, PreemptParameters)
    answer = preempt(cluster, parameters)
    (pod,) = requested_pods(cluster, parameters)
    seen = Counter()
    for node, name in enumerate(cluster.node_names):
        pods = pods_of_node(cluster, node)
        admitted = NodeAllocations(node_object(cluster, node), pods)
        failures = admitted.check(pod)
        mine = rows_of(answer, name)
        verdict = next(row for row in mine if row["decision"] in ("fits", "preempt", "impossible"))
        victims = [row["object"] for row in mine if row["decision"] == "victim"]
        seen[verdict["decision"]] += 1
        if not failures:
            assert verdict["decision"] == "fits"
            continue
        short = [f for f in failures if isinstance(f, InsufficientResource)]
        if not is_critical(pod) or len(short) < len(failures):
            decision = decide(admitted, pod)
            assert verdict["decision"] == "impossible"
            assert verdict["reason"].startswith(decision.reason)
            assert verdict["amount"] == (0 if is_critical(pod) else short[0].missing)
            continue
        chosen = None
        left: tuple[tuple[str, int], ...] = ()
        try:
            chosen = preempt_pods(pods, pod, [(f.resource, f.missing) for f in short])
        except NotEnoughToPreempt as error:
            left = error.short
        if chosen is None:
            assert verdict["decision"] == "impossible"
            assert verdict["reason"].startswith(f"OutOf{left[0][0]}: even after preempting every pod")
            assert verdict["amount"] == left[0][1]
            continue
        by_uid = {p.uid: p.full_name for p in pods}
        assert verdict["decision"] == "preempt"
        assert verdict["reason"] == short[0].reason
        assert victims == [by_uid[uid] for uid in chosen.victims]
        assert verdict["amount"] == len(victims)
    assert sum(seen.values()) == cluster.node_count


@pytest.mark.parametrize("policy", ["kubelet", "priority"])
@pytest.mark.parametrize("asked", [ASKED[0], ASKED[3]], ids=lambda a: ",".join(map(str, a.items())))
def test_the_account_is_the_agents_own(cluster: Snapshot, asked, policy):
    parameters = msgspec.convert({**asked, "policy": policy, "account": True}, PreemptParameters)
    (pod,) = requested_pods(cluster, parameters)
    answer = preempt(cluster, parameters)
    explained = 0
    for node, name in enumerate(cluster.node_names):
        mine = rows_of(answer, name)
        steps = [row["object"] for row in mine if row["decision"] == "step"]
        reasons = {row["object"]: row["reason"] for row in mine if row["decision"] == "passed-over"}
        victims = [row["object"] for row in mine if row["decision"] == "victim"]
        assert sorted(steps) == sorted(victims)
        if not victims:
            continue
        pods = pods_of_node(cluster, node)
        by_uid = {p.uid: p.full_name for p in pods}
        failures = NodeAllocations(node_object(cluster, node), pods).check(pod)
        short = [(f.resource, f.missing) for f in failures if isinstance(f, InsufficientResource)]
        decided = preempt_pods(pods, pod, short, policy=policy)
        assert steps == [by_uid[step.uid] for step in decided.steps()]
        assert reasons == {by_uid[other.uid]: other.why for other in decided.passed_over()}
        explained += 1
    assert explained


def test_the_samples_reach_every_verdict(cluster):
    seen = set()
    for asked in ASKED:
        seen |= set(preempt(cluster, msgspec.convert(asked, PreemptParameters)).table["decision"].to_pylist())
    assert {"fits", "preempt", "impossible", "victim", "frees"} <= seen


@pytest.mark.parametrize("policy", ["priority", "minimal"])
def test_other_policies_are_the_agents(cluster, policy):
    parameters = PreemptParameters(requests={"cpu": "2", "memory": "4Gi"}, critical=True, policy=policy)
    answer = preempt(cluster, parameters)
    (pod,) = requested_pods(cluster, parameters)
    compared = 0
    for node, name in enumerate(cluster.node_names):
        victims = [row["object"] for row in rows_of(answer, name) if row["decision"] == "victim"]
        if victims:
            pods = pods_of_node(cluster, node)
            verdict = decide(
                NodeAllocations(node_object(cluster, node), pods), pod, policy=policy, time_limit=60.0
            )
            by_uid = {p.uid: p.full_name for p in pods}
            assert verdict.preemption is not None
            assert sorted(victims) == sorted(by_uid[uid] for uid in verdict.preemption.victims)
            compared += 1
    assert compared


def test_the_better_policy_never_takes_more_victims(cluster):
    def victims(policy: str) -> int:
        asked = PreemptParameters(requests={"cpu": "2", "memory": "4Gi"}, critical=True, policy=policy)
        return preempt(cluster, asked).table["decision"].to_pylist().count("victim")

    assert victims("minimal") <= victims("kubelet")


@pytest.mark.parametrize(
    "asked", [{"requests": {"cpu": "500m", "memory": "1Gi"}}, {"requests": {"nvidia.com/gpu": "1"}}]
)
def test_admit_counts_pods_that_the_agent_would_admit(cluster, asked):
    parameters = msgspec.convert(asked, AdmitParameters)
    answer = admit(cluster, parameters)
    (pod,) = requested_pods(cluster, parameters)
    for node, name in enumerate(cluster.node_names):
        admitted = NodeAllocations(node_object(cluster, node), pods_of_node(cluster, node))
        count = 0
        while not admitted.check(pod):
            copy = msgspec.structs.replace(
                pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"c{count}")
            )
            admitted.add(copy)
            count += 1
        (row,) = rows_of(answer, name)
        assert row["amount"] == count, name
        assert row["reason"] == admitted.check(pod)[0].reason


@pytest.mark.parametrize(("resource", "starved"), [("memory", "memory"), ("processes", "pids")])
def test_eviction_follows_the_agents_order(cluster, resource, starved):
    asked = EvictParameters(resource=resource, available="1", threshold="90%")
    answer = evict(cluster, asked)
    assert "evict" in answer.table["decision"].to_pylist()
    for node, name in enumerate(cluster.node_names):
        pods = pods_of_node(cluster, node)
        first = int(cluster.offsets[node])
        usage = {}
        for index, pod in enumerate(pods):
            value = cluster.pods[f"usage/{resource}"][first + index].as_py()
            field = {"memory": "memory", "processes": "processes"}[resource]
            usage[pod.uid] = PodUsage(**{field: value})
        order = [pod.full_name for pod, _ in rank(PodTable(), pods, usage, starved) if not is_critical(pod)]
        evicted = [row["object"] for row in rows_of(answer, name) if row["decision"] == "evict"]
        assert evicted == order[: len(evicted)]
        if "stuck" in [row["decision"] for row in rows_of(answer, name)]:
            assert evicted == order


def test_eviction_ends_when_the_threshold_and_its_reclaim_are_covered(cluster):
    changes = {
        "evictionHard": {"memory.available": "2Gi"},
        "evictionMinimumReclaim": {"memory.available": "1Gi"},
    }
    config = msgspec.convert(changes, KubeletConfiguration, dec_hook=decode_hook)
    (threshold,) = [t for t in thresholds_from_config(config) if t.signal == "memory.available"]
    answer = evict(cluster, EvictParameters(available="1536Mi", changes=changes))
    for node, name in enumerate(cluster.node_names):
        capacity = int(cluster.reading("memory_capacity")[node])
        mine = rows_of(answer, name)
        (relieved,) = [row for row in mine if row["decision"] == "relieved"]
        freed = [row["amount"] for row in mine if row["decision"] == "evict"]
        assert 1536 * 2**20 + sum(freed) == relieved["amount"] >= threshold.limit(capacity, reclaimed=True)
        assert 1536 * 2**20 + sum(freed[:-1]) < threshold.limit(capacity, reclaimed=True)


def test_growth_is_exact_and_calm_nodes_keep_their_distance(cluster):
    answer = evict(cluster, EvictParameters(growth="10%", threshold="1Mi"))
    used = cluster.column("usage/memory")
    for node, name in enumerate(cluster.node_names):
        grown = sum(int(u) // 10 for u in used[cluster.offsets[node] : cluster.offsets[node + 1]].tolist())
        (row,) = rows_of(answer, name)
        assert row["decision"] == "calm"
        exact = int(cluster.reading("memory_available")[node]) - 2**20 - grown
        assert abs(row["amount"] - exact) <= 0, (row, exact)


@pytest.mark.parametrize("growth", ["x%", "-5%", "20"])
def test_an_invalid_growth_is_reported(cluster, growth):
    if growth == "20":
        evict(cluster, EvictParameters(growth=growth))
    else:
        with pytest.raises(InvalidInput, match="growth"):
            evict(cluster, EvictParameters(growth=growth))


class _Disk:
    """Stand in for an image store whose removals free space, for `Collection`."""

    def __init__(self, capacity: int, available: int) -> None:
        self.capacity, self.available, self.removed = capacity, available, []

    async def filesystem(self):
        from engine.images.collection import FilesystemReading

        return FilesystemReading(self.capacity, self.available)

    async def remove(self, images, became) -> None:
        for image in images:
            self.removed.append(image.id)
            self.available += image.size
            became.append(None)

    def protected(self, image) -> str:
        return ""


@pytest.mark.parametrize("limits", [(70, 50, 0), (90, 80, 0), (60, 50, 5 * 86400)])
async def test_image_gc_removes_what_the_agent_would(cluster, limits):
    from engine.images.collection import Collection
    from engine.images.policy import ImageGCPolicy
    from engine.images.records import ImageRecords, SeenImage
    from engine.images.report import ImageGCFailure, ImageGCReport

    high, low, max_age = limits
    now = float(cluster.meta["taken_at"])
    answer = image_gc(cluster, ImageGCParameters(high=high, low=low, max_age=max_age))
    policy = ImageGCPolicy(high, low, 120.0, float(max_age))
    images = cluster.images.to_pylist()
    capacity, available = cluster.reading("imagefs_capacity"), cluster.reading("imagefs_available")
    removed_any = 0
    for node, name in enumerate(cluster.node_names):
        mine_ = [image for image in images if image["node"] == node]
        records = ImageRecords()
        used = [image["names"] for image in mine_ if image["in_use"]]
        records.detect([SeenImage(image["names"], image["size"]) for image in mine_], used, now)
        for image in mine_:
            row = records.row(image["names"])
            records.table.columns.first_detected[row] = image["first_detected"]
            records.table.columns.last_used[row] = image["last_used"]
        disk = _Disk(int(capacity[node]), int(available[node]))
        report = ImageGCReport(now, "test")
        with contextlib.suppress(ImageGCFailure):
            await Collection(records, policy, disk, report).garbage_collect(0.0)
        mine = rows_of(answer, name)
        assert [row["object"] for row in mine if row["decision"] == "remove"] == disk.removed
        removed_any += len(disk.removed)
    assert removed_any


def test_image_uses_in_the_history_are_found(cluster, tmp_path):
    removed = image_gc(cluster, ImageGCParameters(high=60, low=40))
    gone = next(row for row in removed.table.to_pylist() if row["decision"] == "remove")
    now = cluster.meta["taken_at"]
    history = tmp_path / "uses.csv"
    uses = [
        ("node", "image", "used_at"),
        (gone["node"], gone["object"], now + 60),
        (gone["node"], "late", now + 2e5),
    ]
    history.write_text("".join(f"{','.join(map(str, use))}\n" for use in uses))
    answer = image_gc(cluster, ImageGCParameters(high=60, low=40, history=str(history)))
    again = [row for row in answer.table.to_pylist() if row["decision"] == "used-again"]
    assert [(row["node"], row["object"]) for row in again] == [(gone["node"], gone["object"])]


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_that_is_not_set_is_not_added_to_others(version: int) -> None:
    answer = cgroups(synthesize(5, 40), CgroupsParameters(version=version, detail=["qos", "containers"]))
    rows = [row for row in answer.table.to_pylist() if row["decision"] != "oom_score_adj"]
    assert {row["unit"] for row in rows if row["amount"] == -1} == {NO_LIMIT}
    limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
    assert {row["unit"] for row in rows if row["decision"] == limit} == {"bytes", NO_LIMIT}
    assert [row for row in rows if row["unit"] == NO_LIMIT and row["amount"] != -1] == []
    totals = [row for row in summary(answer.table).to_pylist() if row["decision"] == limit]
    assert not [text for row in totals if (text := readable(row["amount_sum"], row["unit"])).startswith("-")]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "changes", [{}, {"qosReserved": {"memory": "50%"}, "featureGates": {"MemoryQoS": True}}]
)
def test_cgroup_values_are_the_agents(cluster, version, changes):
    answer = cgroups(
        cluster, CgroupsParameters(version=version, detail=["qos", "pods", "containers"], changes=changes)
    )
    config = msgspec.convert(changes, KubeletConfiguration, dec_hook=decode_hook)
    share = "cpu.weight" if version == 2 else "cpu.shares"
    limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
    for node in range(0, cluster.node_count, 5):
        mine = {(r["object"], r["decision"]): r["amount"] for r in rows_of(answer, cluster.node_names[node])}
        capacity = {n: int(cluster.allocatable(n, "capacity")[node]) for n in ("cpu", "memory")}
        settings = CgroupSettings.resolve(config, capacity, cgroup_v2=version == 2)
        sums = LevelSums()
        for pod in pods_of_node(cluster, node):
            sums.put(pod.uid, Contribution.of(pod))
            values = pod_values(pod, settings.pods)
            wanted = shares_to_weight(values.cpu_shares) if version == 2 else values.cpu_shares
            assert mine[pod.full_name, share] == wanted
            assert mine[pod.full_name, limit] == (-1 if values.memory is None else values.memory)
            for container in pod.all_containers:
                given = container_resources(pod, container, settings.containers)
                name = f"{pod.full_name}:{container.name}"
                assert mine[name, "oom_score_adj"] == given.oom_score_adj
                assert mine[name, "memory.max"] == (given.memory_limit_in_bytes or -1)
        levels = sums.values(settings.levels)
        shares = levels["Burstable"].cpu_shares
        assert mine["kubepods/burstable", share] == (shares_to_weight(shares) if version == 2 else shares)
        reserved = levels["Burstable"].memory
        wanted = -1 if reserved is None else max(reserved, 0) // 4096 * 4096
        assert mine["kubepods/burstable", limit] == wanted


@pytest.mark.parametrize("version", [1, 2])
def test_every_cgroup_file_is_the_agents_where_nodes_are_configured_differently(cluster, version):
    """Whole lists of files, against the functions that the agent calls pod by pod."""
    texts = [
        "{}",
        '{"featureGates":{"MemoryQoS":true},"memoryThrottlingFactor":0.8,"qosReserved":{"memory":"70%"}}',
        '{"featureGates":{"MemoryQoS":true},"memoryReservationPolicy":"TieredReservation"}',
        '{"cpuCFSQuota":false,"podPidsLimit":512,"singleProcessOOMKill":true}',
        '{"featureGates":{"CustomCPUCFSQuotaPeriod":true},"cpuCFSQuotaPeriod":"20ms"}',
    ]
    own = [texts[node % len(texts)] for node in range(cluster.node_count)]
    at = cluster.nodes.schema.get_field_index("config")
    nodes = cluster.nodes.set_column(at, "config", pa.array(own, pa.large_string()))
    cluster = replace(cluster, nodes=nodes)
    answer = cgroups(cluster, CgroupsParameters(version=version, detail=["qos", "pods", "containers"]))
    files = FileRules(version, controllers=frozenset(["cpu", "memory", "pids"]))

    def plain(found: dict[str, str]) -> list[tuple[str, int]]:
        first = [(name, text.split()[0]) for name, text in found.items()]
        return [(name, -1 if text in ("max", "-1") else int(text)) for name, text in first]

    for node in range(0, cluster.node_count, 4):
        mine: dict[str, list[tuple[str, int]]] = {}
        for row in rows_of(answer, cluster.node_names[node]):
            mine.setdefault(row["object"], []).append((row["decision"], row["amount"]))
        config = msgspec.json.decode(own[node], type=KubeletConfiguration, dec_hook=decode_hook)
        capacity = {n: int(cluster.allocatable(n, "capacity")[node]) for n in ("cpu", "memory")}
        capacity |= {"pid": int(pids)} if (pids := cluster.reading("pid_max")[node]) >= 0 else {}
        settings = CgroupSettings.resolve(config, capacity, cgroup_v2=version == 2)
        sums = LevelSums()
        for pod in pods_of_node(cluster, node):
            sums.put(pod.uid, Contribution.of(pod))
            assert mine.pop(pod.full_name) == plain(files.files(pod_values(pod, settings.pods)))
            for container in pod.all_containers:
                given = container_resources(pod, container, settings.containers)
                shares = given.cpu_shares
                assert mine.pop(f"{pod.full_name}:{container.name}") == [
                    ("cpu.weight", shares_to_weight(shares)) if version == 2 else ("cpu.shares", shares),
                    ("cpu.quota", given.cpu_quota or -1),
                    ("memory.max", given.memory_limit_in_bytes or -1),
                    ("oom_score_adj", given.oom_score_adj),
                    *plain(dict(given.unified)),
                ]
        levels = sums.values(settings.levels)
        protected = levels["Guaranteed"].unified
        levels["Guaranteed"] = msgspec.structs.replace(settings.root_values(), unified=protected)
        names = {
            "Guaranteed": "kubepods",
            "Burstable": "kubepods/burstable",
            "BestEffort": "kubepods/besteffort",
        }
        assert mine == {names[level]: plain(files.files(values)) for level, values in levels.items()}


def test_lint_finds_mixed_formulas_and_an_empty_reservation(cluster):
    mixed = CgroupsParameters(detail=["lint"], formula="linear", container_formula="logarithmic")
    reasons = set(cgroups(cluster, mixed).table["reason"].to_pylist())
    assert any("different cpu.weight formulas" in reason for reason in reasons)
    tight = CgroupsParameters(
        detail=["lint"], changes={"qosReserved": {"memory": "100%"}, "kubeReserved": {"memory": "15Gi"}}
    )
    reasons = set(cgroups(cluster, tight).table["reason"].to_pylist())
    assert "the reservation leaves this level no memory" in reasons


def gpu_cluster(free: dict[int, int], held: dict[int, int]) -> Snapshot:
    """Return one node of a synthetic cluster with free and held devices, counted by NUMA node."""
    base = synthesize(60, 10, seed=1)
    node = int(np.flatnonzero(base.allocatable("nvidia.com/gpu") > 0)[0])
    rows = [
        (numa, owner)
        for owner, counts in (("", free), ("u", held))
        for numa, n in counts.items()
        for _ in range(n)
    ]
    devices_ = pa.Table.from_pylist(
        [
            {"node": 0, "resource": "nvidia.com/gpu", "device": f"g{i}", "numa": str(numa), "healthy": True,
             "pod_uid": owner, "container": ""}
            for i, (numa, owner) in enumerate(rows)
        ],
        schema=base.devices.schema,
    )  # fmt: skip
    return replace(base.select(np.array([node])), devices=devices_)


@pytest.mark.parametrize(
    ("policy", "count", "decision", "amount"),
    [
        ("single-numa-node", 2, "fits", 2),
        ("single-numa-node", 4, "fragmented", 5),
        ("restricted", 4, "fragmented", 5),
        ("best-effort", 4, "fits", 1),
        ("none", 4, "fits", 1),
        ("none", 6, "full", 5),
    ],
)
def test_devices_follow_the_topology_policy(policy, count, decision, amount):
    cluster = gpu_cluster(free={0: 3, 1: 2}, held={0: 1, 1: 2})
    answer = devices(cluster, DevicesParameters(counts=[count], policy=policy))
    verdict = answer.table.to_pylist()[1]
    assert (verdict["decision"], verdict["amount"]) == (decision, amount)
    assert TopologyPolicy.from_config(policy, "container", None, Numa((0, 1))).name == policy


def test_drain_moves_within_what_is_free_and_leaves_daemons(cluster):
    answer = drain(cluster, DrainParameters(nodes=["node-00003", "node-00007"], preemption=False))
    capacity = NodeCapacity(cluster)
    by_label = {
        label: row for row, label in enumerate(cluster.pod_labels(np.arange(cluster.placed)).to_pylist())
    }
    index = {name: i for i, name in enumerate(cluster.node_names)}
    moved = stayed = 0
    for row in answer.table.to_pylist():
        if row["decision"] == "move":
            name = row["reason"].removeprefix("to ").partition(" ")[0]
            target = index[name]
            assert name not in ("node-00003", "node-00007")
            pod = by_label[row["object"]]
            capacity.update(
                target, np.array([cluster.per_pod(f"request/{n}")[pod] for n in cluster.resources.names])
            )
            moved += 1
        elif row["decision"] == "stays":
            assert cluster.pods["owner"][by_label[row["object"]]].as_py().startswith("DaemonSet/")
            stayed += 1
    assert moved
    assert stayed == 8
    assert (capacity.free >= 0).all()
    assert (capacity.slots >= 0).all()
    remains = answer.table["decision"].to_pylist().count("remains")
    assert moved + stayed + remains == sum(int(np.diff(cluster.offsets)[i]) for i in (3, 7))


def test_drain_names_the_budget_that_it_breaks(cluster):
    namespace = cluster.pods["namespace"][int(cluster.offsets[3]) + 6].as_py()
    budget = {"namespace": namespace, "name": "all", "min_available": None, "max_unavailable": "0",
              "selector": '{"matchExpressions":[{"key":"app","operator":"Exists"}]}'}  # fmt: skip
    guarded = replace(cluster, budgets=pa.Table.from_pylist([budget], schema=cluster.budgets.schema))
    answer = drain(guarded, DrainParameters(nodes=["node-00003"]))
    broken = [row for row in answer.table.to_pylist() if row["decision"] == "breaks-budget"]
    assert [row["object"] for row in broken] == [f"{namespace}/all"]


def test_every_question_is_described_and_rejects_unknown_parameters():
    for question in QUESTIONS.values():
        assert question.summary.endswith((".", "?"))
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"nonsense": 1}, question.parameters)


@pytest.mark.parametrize(
    "asked", [{}, {"like": "no/such"}, {"requests": {"cpu": "1"}, "priority_class": "none"}]
)
def test_a_missing_pod_option_is_an_error(cluster, asked):
    with pytest.raises(InvalidInput):
        preempt(cluster, msgspec.convert(asked, PreemptParameters))


def test_manifests_are_defaulted_as_an_api_server_would(cluster, tmp_path):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  priorityClassName: system-node-critical\n"
        "  containers: [{name: c, image: x, resources: {limits: {cpu: '1'}}}]\n"
    )
    (pod,) = requested_pods(cluster, PreemptParameters(file=str(manifest)))
    assert isinstance(pod, Pod)
    assert pod.spec.containers[0].requests["cpu"].milli == 1000
    assert pod.spec.priority == 2_000_001_000
    like = cluster.pod_label(0)
    (pod,) = requested_pods(cluster, PreemptParameters(like=like))
    assert QOS_NAMES[int(cluster.column("qos")[0])] == pod.status.qos_class
