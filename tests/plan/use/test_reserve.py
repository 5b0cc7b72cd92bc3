"""reserve: what nodes should reserve, fitted to what they used outside of their pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api.errors import InvalidInput
from engine.plan import load_snapshot
from engine.plan.answers.answer import Answer
from engine.plan.questions.reserve import ReserveParameters, reserve
from tests.plan.use.sized_cluster import GI, MI, TIMES, SizedCluster, at_peak

WORST = TIMES.text(100)


def cluster(outside: Any = 1 * GI, cores: Any = 0.2, *, slices: bool = True) -> SizedCluster:
    """Return two nodes of 16 GiB with a pod of 2 GiB and one core each; n2 uses less outside of pods."""
    made = SizedCluster()
    for name in ("n1", "n2"):
        made.node(name, **{"node.kubernetes.io/instance-type": "large"})
    made.use(made.pods("Deployment shop/web", ["n1", "n2"], {"memory": "1Gi"}), 2 * GI, 1.0)
    for name, part in (("n1", 1.0), ("n2", 0.5)):
        made.node_use(name, np.multiply(outside, part) + 2 * GI, np.multiply(cores, part) + 1.0)
        if slices:
            made.node_use(name, 2 * GI, 1.0, "pods")
            made.node_use(name, np.multiply(outside, part / 4), np.multiply(cores, part / 4), "system")
    return made


def asked(made: SizedCluster, tmp_path: Path, **parameters: Any) -> Answer:
    path, history = made.write(tmp_path)
    return reserve(load_snapshot([str(path)]), ReserveParameters(history=str(history), **parameters))


def values(answer: Answer, decision: str = "reserve") -> dict[str, int]:
    listed = answer.table.to_pylist()
    return {row["object"]: row["amount"] for row in listed if row["decision"] == decision}


def test_reserves_cover_the_largest_use_outside_of_pods(tmp_path):
    found = values(asked(cluster(at_peak(1 * GI, 1200 * MI, 100)), tmp_path, margin=0))
    kube, system = found["large: kubeReserved memory"], found["large: systemReserved memory"]
    # Values of a history are at most 0.026 % off, and results are rounded up to 10 MiB.
    assert 1200 * MI * 0.999 <= kube + system <= 1220 * MI
    assert 300 * MI * 0.999 <= system <= 320 * MI


def test_a_percentile_leaves_rare_moments_out_and_says_how_many(tmp_path):
    answer = asked(cluster(at_peak(1 * GI, 4 * GI, 100)), tmp_path, margin=0, memory_percentile=99)
    assert (
        sum(value for name, value in values(answer).items() if "memory" in name and "Hard" not in name)
        < 1100 * MI
    )
    assert any("; 2 values above" in row["reason"] for row in answer.table.to_pylist())


def test_a_margin_is_added(tmp_path):
    plain, more = (values(asked(cluster(), tmp_path, margin=margin)) for margin in (0, 50))
    assert more["large: kubeReserved cpu"] >= plain["large: kubeReserved cpu"] * 1.4


def test_without_slices_the_sum_of_the_pods_counts_and_all_goes_to_the_kubelet(tmp_path):
    answer = asked(cluster(slices=False), tmp_path, margin=0)
    found = values(answer)
    assert "large: systemReserved memory" not in found
    assert found["large: kubeReserved memory"] == pytest.approx(1 * GI, rel=0.02)
    assert (
        answer.notes["nodes without a record of all pods' cgroup: the sum over their pods counts instead"]
        == 2
    )
    assert "system.slice is not recorded: all goes to kubeReserved" in answer.notes


def test_the_threshold_follows_the_largest_rise(tmp_path):
    found = values(asked(cluster(at_peak(1 * GI, 1500 * MI, 100)), tmp_path))
    assert found["large: evictionHard memory.available"] == pytest.approx(476 * MI, rel=0.05)
    assert values(asked(cluster(), tmp_path))["large: evictionHard memory.available"] == 100 * MI
    capped = values(asked(cluster(at_peak(1 * GI, 10 * GI, 100)), tmp_path))
    assert capped["large: evictionHard memory.available"] == 16 * GI // 10


def test_max_pods_follow_the_use_of_pods(tmp_path):
    (count,) = values(asked(cluster(), tmp_path), "max-pods").values()
    # 16 GiB less 1 GiB outside and 100 MiB, by 2 GiB.
    assert count == 7


def test_pods_that_cost_memory_outside_lower_max_pods(tmp_path):
    made = SizedCluster()
    for number, pods in ((1, 1), (2, 4)):
        made.node(f"n{number}")
        made.use(
            made.pods(f"Deployment shop/a{number}", [f"n{number}"] * pods, {"memory": "1Gi"}), 1 * GI, 0.1
        )
        made.node_use(f"n{number}", (1 + 0.5 * pods + pods) * GI, 1.0)
        made.node_use(f"n{number}", pods * GI, 0.1 * pods, "pods")
    answer = asked(made, tmp_path)
    # 16 GiB less 1 GiB and 100 MiB, by 1 GiB and the half that each pod adds.
    assert list(values(answer, "max-pods").values()) == [9]
    assert any("512" in row["reason"] for row in answer.table.to_pylist() if row["decision"] == "max-pods")


def test_nodes_that_reserve_too_little_are_named_with_the_moment(tmp_path):
    made = cluster(at_peak(1 * GI, 2 * GI, 100))
    for one in made.objects[:2]:
        one["status"]["allocatable"] = {"cpu": "3500m", "memory": f"{16 * 1024 - 1536}Mi", "pods": "110"}
    answer = asked(made, tmp_path)
    short = [row for row in answer.table.to_pylist() if row["decision"] == "under-reserved"]
    assert [(row["node"], row["object"]) for row in short] == [("n1", "memory")]
    assert short[0]["amount"] == pytest.approx(512 * MI, rel=0.02)
    assert WORST in short[0]["reason"]
    assert short[0]["reason"].endswith("1 moments above")
    assert answer.headline.endswith("1 of 2 nodes used more memory and 0 more cpu than they reserve today.")


def test_types_are_fitted_apart_and_missing_nodes_are_counted(tmp_path):
    made = cluster()
    made.node("n3", **{"node.kubernetes.io/instance-type": "small"})
    made.node_use("n3", 3 * GI, 0.1)
    made.node("n4")
    answer = asked(made, tmp_path)
    assert {name.partition(":")[0] for name in values(answer)} == {"large", "small"}
    assert answer.notes["nodes without a record of their own memory, which are left out"] == 1


def test_gaps_are_left_out(tmp_path):
    holed = np.full(TIMES.count, float(GI))
    holed[50:] = np.nan
    assert "large: kubeReserved memory" in values(asked(cluster(holed), tmp_path))


def test_a_history_without_nodes_is_refused(tmp_path):
    made = SizedCluster()
    made.node("n1")
    made.use(made.pods("Deployment shop/web", ["n1"], {"memory": "1Gi"}), GI, 1.0)
    with pytest.raises(InvalidInput, match="has no memory of the snapshot's nodes"):
        asked(made, tmp_path)


def test_the_command_answers_in_ci(run_plan: Callable[..., Any], tmp_path):
    path, history = cluster().write(tmp_path)
    done = run_plan("reserve", "--history", str(history), str(path), "--json", "--fail-on", "under-reserved")
    assert done.returncode == 1
    assert json.loads(done.stdout)["headline"].startswith("large: reserve ")
    assert run_plan("reserve", str(path)).returncode == 2


@pytest.mark.parametrize("more", [0, 1])
def test_a_node_without_a_moment_with_its_pods_is_noted(more, tmp_path):
    made, early = SizedCluster(), np.arange(TIMES.count) < 100
    for number, name in enumerate(("n1", "n2")):
        made.node(name, **{"node.kubernetes.io/instance-type": "large"})
        labels = made.pods(f"Deployment shop/{name}", [name] * (1 + number * more), {"memory": "1Gi"})
        made.use(labels, 1 * GI, 0.5)
        apart = number == 0
        made.node_use(name, np.where(early, 5.0 * GI, np.nan) if apart else 5 * GI, 1.0)
        made.node_use(name, np.where(early, np.nan, 2.0 * GI) if apart else 2 * GI, 0.5, "pods")
    answer = asked(made, tmp_path, margin=0)
    assert answer.notes["nodes whose memory is never recorded at the same moment as that of their pods"] == 1
    # 16 GiB less the threshold of 100 MiB and the 3 GiB of the other node, in pods of 1 GiB.
    assert values(answer, "max-pods") == {"large: maxPods": 12}


def test_of_nodes_of_several_sizes_the_smallest_counts(tmp_path):
    made = SizedCluster()
    for name, memory in (("n1", "64Gi"), ("n2", "8Gi")):
        made.node(name, memory=memory, pool="web")
        made.use(made.pods(f"Deployment shop/{name}", [name], {"memory": "1Gi"}), 1 * GI, 0.5)
        made.node_use(name, 2 * GI, 1.0)
    answer = asked(made, tmp_path, margin=0, group_by="pool")
    # 8 GiB less the threshold of 100 MiB and 1 GiB outside of pods.
    assert values(answer, "max-pods") == {"web: maxPods": 6}
    assert any(text.startswith("web: nodes with more memory") for text in answer.notes)
