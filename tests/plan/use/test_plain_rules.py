"""reserve and rightsize over random clusters, computed again by the documented rules in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.plan import load_snapshot
from engine.plan.history.codes import decode, encode
from engine.plan.questions.reserve import ReserveParameters, reserve
from engine.plan.questions.rightsize import RightsizeParameters, rightsize
from tests.plan.use.sized_cluster import GI, MI, TIMES, SizedCluster

CASES = 60
TYPE = "node.kubernetes.io/instance-type"
MEMORY_STEP, CPU_STEP = 10 * MI, 10


def recorded(values: np.ndarray) -> np.ndarray:
    """Return float64[moments]: the values as a history has them."""
    return np.asarray(decode(encode(values)), np.float64)


def made_up(random: np.random.Generator, usual: float, spread: float = 0.3, gaps: float = 0.1) -> np.ndarray:
    """Return float64[moments] around `usual`, with missing moments in some."""
    values = usual * (1 + spread * random.standard_normal(TIMES.count)).clip(0, 3)
    if random.random() < 0.3:
        values[random.random(TIMES.count) < gaps] = np.nan
    return recorded(values)


@dataclass
class Made:
    """Hold a random cluster, and what is known of it: by node the type, the memory and CPU (milli-CPU)
    outside of pods and of the system, today's reserves, the memory, and the largest memory of each pod.
    """

    cluster: SizedCluster = field(default_factory=SizedCluster)
    types: dict[str, str] = field(default_factory=dict)
    outside: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    system: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    today: dict[tuple[str, str], int] = field(default_factory=dict)
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    pods: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def nodes_with_use(seed: int) -> Made:
    random, made = np.random.default_rng(seed), Made()
    for number in range(int(random.integers(1, 6))):
        name = f"n{number}"
        made.types[name] = str(random.choice(["small", "large"]))
        made.cluster.node(name, cpu="8", memory="16Gi", **{TYPE: made.types[name]})
        reserves = {"memory": int(random.integers(0, 3000)) * MI, "cpu": int(random.integers(0, 600))}
        status = made.cluster.objects[-1]["status"]
        status["allocatable"] = status["allocatable"] | {
            "memory": str(16 * GI - reserves["memory"]),
            "cpu": f"{8000 - reserves['cpu']}m",
        }
        made.today |= {(name, measure): value for measure, value in reserves.items()}
        summed = {"memory": np.zeros(TIMES.count), "cpu": np.zeros(TIMES.count)}
        for pod in range(int(random.integers(0, 5))):
            labels = made.cluster.pods(
                f"Deployment shop/{name}-{pod}", [name], {"cpu": "100m", "memory": "64Mi"}
            )
            use = {"memory": made_up(random, random.uniform(0.05, 2) * GI, gaps=0),
                   "cpu": made_up(random, random.uniform(0.05, 1), gaps=0)}  # fmt: skip
            made.cluster.use(labels, use["memory"], use["cpu"])
            summed["memory"] += use["memory"]
            summed["cpu"] += recorded(use["cpu"] * 1e6)
            made.pods[name].append(float(use["memory"].max()))
        other = {
            "memory": made_up(random, random.uniform(0.2, 3) * GI),
            "cpu": made_up(random, random.uniform(0.05, 0.8)) * 1e6,
        }
        whole = {measure: recorded(summed[measure] + other[measure]) for measure in summed}
        _record(made, name, "node", whole)
        inside = {measure: recorded(values) for measure, values in summed.items()}
        if random.random() < 0.6:
            _record(made, name, "pods", inside)
            summed = inside
        made.memory[name] = whole["memory"]
        for measure, less in summed.items():
            unit = 1000 if measure == "cpu" else 1
            made.outside[name, measure] = np.maximum(whole[measure] - less, 0) / unit
        if random.random() < 0.6:
            part = {measure: recorded(values * random.uniform(0.1, 0.6)) for measure, values in other.items()}
            _record(made, name, "system", part)
            made.system |= {(name, "memory"): part["memory"], (name, "cpu"): part["cpu"] / 1000}
    return made


def _record(made: Made, name: str, part: str, values: dict[str, np.ndarray]) -> None:
    for measure, amounts in values.items():
        made.cluster.history.row((f"{part}-{measure}", name, "", "", ""))[:] = encode(amounts)


def percentile(values: np.ndarray, percent: float) -> float:
    """Return a percentile by linear interpolation between the two values around it."""
    ordered = sorted(values[~np.isnan(values)])
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def rounded_up(value: float, step: int) -> set[int]:
    """Return the multiple of a step that is not less; both that single precision may give next to one."""
    return {math.ceil(value * (1 + error) / step) * step for error in (-1e-6, 0, 1e-6)}


@pytest.mark.parametrize("seed", range(CASES))
def test_reserves_are_those_of_the_rules(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(1000 + seed)
    made = nodes_with_use(seed)
    percents = {"cpu": float(random.integers(50, 101)), "memory": float(random.integers(50, 101))}
    margin = float(random.integers(0, 40))
    path, history = made.cluster.write(tmp_path)
    answer = reserve(
        load_snapshot([str(path)]),
        ReserveParameters(history=str(history), cpu_percentile=percents["cpu"],
                          memory_percentile=percents["memory"], margin=margin),
    )  # fmt: skip
    rows = answer.table.to_pylist()
    amounts = {row["object"]: row["amount"] for row in rows if row["decision"] in ("reserve", "max-pods")}
    for kind in set(made.types.values()):
        nodes = [name for name, own in made.types.items() if own == kind]
        for measure, step in (("memory", MEMORY_STEP), ("cpu", CPU_STEP)):
            factor = 1 + margin / 100
            values = np.concatenate([made.outside[name, measure] for name in nodes])
            total = percentile(values, percents[measure]) * factor
            parts = [made.system[name, measure] for name in nodes if (name, measure) in made.system]
            system = percentile(np.concatenate(parts), percents[measure]) * factor if parts else 0.0
            found = [
                amounts.get(f"{kind}: {name} {measure}", 0) for name in ("kubeReserved", "systemReserved")
            ]
            assert sum(found) in rounded_up(total, step)
            assert found[1] in {min(one, sum(found)) for one in rounded_up(system, step)}
        rise = max(np.nanmax(np.diff(made.memory[name]), initial=0) for name in nodes)
        threshold = amounts[f"{kind}: evictionHard memory.available"]
        allowed = rounded_up(rise, MEMORY_STEP)
        assert threshold in {max(100 * MI, min(one, 16 * GI // 10)) for one in allowed}
        assert amounts.get(f"{kind}: maxPods") == most_pods(made, nodes, threshold)
    _compare_nodes(made, rows)


def most_pods(made: Made, nodes: list[str], threshold: int) -> Any:
    """Return how many pods of the usual size fit next to what is outside of pods; None without pods."""
    sizes = [size for name in nodes for size in made.pods[name]]
    if not sizes:
        return None
    worst = [float(np.nanmax(made.outside[name, "memory"])) for name in nodes]
    counts = [len(made.pods[name]) for name in nodes]
    slope, base = 0.0, max(worst)
    if len(set(counts)) > 1:
        middle, mean = sum(counts) / len(counts), sum(worst) / len(worst)
        found = sum((x - middle) * (y - mean) for x, y in zip(counts, worst, strict=True)) / sum(
            (x - middle) ** 2 for x in counts
        )
        if found > 0:
            slope, base = found, max(mean - found * middle, 0.0)
    usual = sum(sizes) / len(sizes)
    return pytest.approx(max(math.floor((16 * GI - threshold - base) / (usual + slope)), 0), abs=1)


def _compare_nodes(made: Made, rows: list[dict[str, Any]]) -> None:
    found = {
        (row["node"], row["object"]): (row["decision"], row["amount"])
        for row in rows
        if row["decision"] in ("reserved", "under-reserved")
    }
    assert found.keys() == made.outside.keys()
    for key, values in made.outside.items():
        worst, today = float(np.nanmax(values)), made.today[key]
        decision, amount = found[key]
        if abs(worst - today) > 1e-6 * worst + 1:
            assert decision == ("under-reserved" if worst > today else "reserved")
        assert amount == pytest.approx(abs(worst - today), rel=1e-5, abs=1e-6 * worst + 1)


@dataclass
class Container:
    """Hold a workload of one container: its requests and limits (milli-CPU, bytes), recorded use by pod, and
    how many moments have an OOM kill.
    """

    now: dict[str, int]
    limits: dict[str, int]
    use: dict[str, dict[str, np.ndarray]]
    kills: int = 0


def workloads_with_use(seed: int, cluster: SizedCluster) -> dict[str, Container]:
    random = np.random.default_rng(seed)
    for number in range(3):
        cluster.node(f"n{number}")
    found = {}
    for number in range(int(random.integers(1, 5))):
        now = {"cpu": int(random.integers(1, 2000)), "memory": int(random.integers(16, 2000)) * MI}
        limits = {
            name: int(value * random.uniform(1, 2)) for name, value in now.items() if random.random() < 0.6
        }
        text = {name: f"{value}m" if name == "cpu" else str(value) for name, value in now.items()}
        most = {name: f"{value}m" if name == "cpu" else str(value) for name, value in limits.items()}
        nodes = [f"n{one}" for one in random.integers(0, 3, random.integers(1, 4))]
        one = Container(now, limits, {})
        for label in cluster.pods(f"Deployment shop/w{number}", nodes, text, most):
            use = {
                "memory": made_up(random, random.uniform(0.2, 1.5) * now["memory"]),
                "cpu": made_up(random, random.uniform(0.2, 1.5) * now["cpu"] / 1000),
            }
            if random.random() < 0.15:
                use = {
                    name: np.where(np.arange(TIMES.count) < 40, values, np.nan)
                    for name, values in use.items()
                }
            cluster.use([label], use["memory"], use["cpu"])
            one.use[label] = {"memory": use["memory"], "cpu": recorded(use["cpu"] * 1e6)}
            kills = np.where(random.random(TIMES.count) < (0.01 if random.random() < 0.3 else 0), 1.0, 0.0)
            if kills.any():
                namespace, _, name = label.partition("/")
                cluster.history.row(("ooms", "", namespace, name, "app"))[:] = encode(kills)
                one.kills += int(kills.sum())
        found[f"Deployment shop/w{number}"] = one
    return found


def nearest_rank(values: list[float], percent: float) -> float:
    """Return the smallest value which this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def sized(one: Container, percents: dict[str, float], margin: float, least: int) -> dict[str, int]:
    """Return the new requests of a container, in milli-CPU and bytes."""
    found = dict(one.now)
    for name in ("cpu", "memory"):
        values = [value for use in one.use.values() for value in use[name].tolist() if not math.isnan(value)]
        if len(values) < least:
            continue
        use = nearest_rank(values, percents[name])
        needed = use * (1 + margin / 100)
        if name == "cpu":
            found[name] = max(math.ceil(needed / 1000), 10)
            continue
        if one.kills:
            needed = max(needed, use * 1.2, use + 100 * MI)
        found[name] = max(math.ceil(needed / MI) * MI, 32 * MI)
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_new_requests_and_what_is_above_the_limits_are_those_of_the_rules(seed: int, tmp_path: Path) -> None:
    random, cluster = np.random.default_rng(2000 + seed), SizedCluster()
    known = workloads_with_use(seed, cluster)
    percents = {"cpu": float(random.integers(1, 101)), "memory": float(random.integers(1, 101))}
    margin, least, limits = (
        float(random.integers(0, 40)),
        int(random.integers(1, 300)),
        str(random.choice(["keep", "scale", "requests"])),
    )
    path, history = cluster.write(tmp_path)
    parameters = RightsizeParameters(
        history=str(history), cpu_percentile=percents["cpu"], memory_percentile=percents["memory"],
        cpu_margin=margin, memory_margin=margin, min_values=least, limits=limits,  # type: ignore[arg-type]
    )  # fmt: skip
    rows = rightsize(load_snapshot([str(path)]), parameters).table.to_pylist()
    changes = {
        (row["object"].rpartition(":")[0], row["unit"]): row["amount"]
        for row in rows
        if row["decision"] in ("lowers", "raises", "keeps")
    }
    expected_above = set()
    for name, one in known.items():
        after = sized(one, percents, margin, least)
        assert changes[name, "milli-CPU"] == after["cpu"] - one.now["cpu"]
        assert changes[name, "bytes"] == after["memory"] - one.now["memory"]
        killed = [
            row["amount"] for row in rows if row["decision"] == "oom-recorded" and name in row["object"]
        ]
        assert killed == ([one.kills] if one.kills else [])
        for measure, decision, unit in (("memory", "oom-kill", 1), ("cpu", "throttle", 1000)):
            limit = new_limit(one, after, measure, limits)
            for label, use in one.use.items():
                times = int((use[measure] > limit * unit * (1 + 3e-4)).sum()) if limit is not None else 0
                if times:
                    expected_above.add((decision, label, times))
    above = {
        (row["decision"], row["object"], row["amount"])
        for row in rows
        if row["decision"] in ("oom-kill", "throttle")
    }
    assert above == expected_above


def new_limit(one: Container, after: dict[str, int], measure: str, rule: str) -> int | None:
    """Return a limit by `--limits`, at least the new request; None for no limit."""
    limit = one.limits.get(measure)
    if rule == "requests":
        limit = after["memory"] if measure == "memory" else None
    elif rule == "scale" and limit is not None:
        limit = math.ceil(limit * after[measure] / one.now[measure])
    return None if limit is None else max(limit, after[measure])
