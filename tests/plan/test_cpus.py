"""Which nodes still take pods with exclusive CPUs: the answer follows the node's own policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.checkpoint import encode as encode_cpus
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.checkpoint import encode as encode_memory
from engine.memorymanager.state import MemoryState, NodeMemory, unused
from engine.plan.questions.cpus import CpusParameters, check_cpus, cpus
from engine.plan.reading.load import load_snapshot
from engine.plan.snapshot.columnar_file import write_snapshot
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import FaultLog

GI = 2**30


def node(name: str, cpu: int = 16, memory: int = 16) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": f"{memory}Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def machine(cpus: int = 16, nodes: int = 2, threads: int = 1) -> list[dict[str, int]]:
    """Return CPUs in cores of `threads` and in NUMA nodes of equal size, each of which is a socket."""
    cores = cpus // threads
    return [
        {
            "cpu": cpu,
            "core": cpu % cores,
            "cache": cpu % cores * nodes // cores,
            "socket": cpu % cores * nodes // cores,
            "node": cpu % cores * nodes // cores,
        }
        for cpu in range(cpus)
    ]


def described(processors: list[dict[str, int]], held: str = "", reserved: str = "0") -> dict[str, Any]:
    """Return the output of `kubengine cpus --json` as an object."""
    containers = [{"pod": "d/p", "podUID": "u", "container": "c", "cpus": held}] if held else []
    return {"policy": "static", "reserved": reserved, "processors": processors, "containers": containers}


def snapshot_of(path: Path, documents: dict[str, Any]) -> Snapshot:
    """Read documents by file name; a file of bytes is written as it is."""
    for name, document in documents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        (path / name).write_bytes(data)
    faults = FaultLog()
    found = load_snapshot([str(path / name) for name in documents], faults=faults)
    assert faults.total == 0, faults.kept
    return found


def answers(snapshot: Snapshot, **given: Any) -> list[tuple[str, str, int]]:
    """Return the rows after `free`, as (node, decision, amount)."""
    given.setdefault("requests", {"cpu": "4", "memory": "1Gi"})
    parameters = CpusParameters(**given)
    check_cpus(snapshot, parameters)
    table = cpus(snapshot, parameters).table.to_pylist()
    return [(row["node"], row["decision"], row["amount"]) for row in table if row["decision"] != "free"]


def test_a_single_numa_node_is_needed_and_fragmentation_is_counted(tmp_path: Path) -> None:
    """7 + 5 CPUs are free: two pods of four fit, a third would if the held ones were on one NUMA node."""
    snapshot = snapshot_of(tmp_path, {"n.json": node("n"), "n.cpus.json": described(machine(), held="8-10")})
    assert answers(snapshot, policy="none", pods=4) == [("n", "takes", 3), ("n", "lacks", 1)]
    single = answers(snapshot, policy="single-numa-node", pods=4)
    assert single == [("n", "takes", 2), ("n", "misaligned", 1), ("n", "lacks", 1)]
    restricted = answers(snapshot, policy="restricted", pods=3)
    assert restricted == [("n", "takes", 2), ("n", "misaligned", 1)]


def test_pods_too_large_for_an_empty_machine_are_not_fragmentation(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, {"n.json": node("n"), "n.cpus.json": described(machine())})
    given = {"requests": {"cpu": "9", "memory": "1Gi"}, "policy": "single-numa-node"}
    assert answers(snapshot, **given) == [("n", "lacks", 1)]
    options = {"cpu_options": {"full-pcpus-only": "true"}, "requests": {"cpu": "3", "memory": "1Gi"}}
    threads = snapshot_of(
        tmp_path, {"t.json": node("t"), "t.cpus.json": described(machine(threads=2), reserved="0,8")}
    )
    (row,) = [
        r for r in cpus(threads, CpusParameters(**options)).table.to_pylist() if r["decision"] != "free"
    ]
    assert row["decision"] == "lacks"
    assert "not multiple cpus per core = 2" in row["reason"]


def test_the_scope_pod_places_all_containers_together(tmp_path: Path) -> None:
    amounts = {"cpu": "5", "memory": "1Gi"}
    containers = [
        {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}} for name in "ab"
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": containers},
    }
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    snapshot = snapshot_of(tmp_path, {"n.json": node("n"), "n.cpus.json": described(machine())})
    given = {"file": str(tmp_path / "pod.json"), "requests": {}, "policy": "single-numa-node"}
    assert answers(snapshot, **given, scope="container") == [("n", "takes", 1)]
    assert answers(snapshot, **given, scope="pod") == [("n", "lacks", 1)]


def test_memory_of_numa_nodes_and_the_files_of_a_kubelet_count(tmp_path: Path) -> None:
    """`lscpu` and both state files of a kubelet describe a node as well as the agent does."""
    state = MemoryState(unused([NodeMemory(0, 8 * GI), NodeMemory(1, 8 * GI)], {}))
    state.use((0,), "memory", 7 * GI)
    lscpu = {
        "cpus": [
            {"cpu": one["cpu"], "core": one["core"], "socket": one["socket"], "node": one["node"],
             "l1d:l1i:l2:l3": f"{one['core']}:{one['core']}:{one['core']}:{one['node']}", "online": True}
            for one in machine()
        ]
    }  # fmt: skip
    config = {
        "topologyManagerPolicy": "single-numa-node",
        "reservedSystemCPUs": "0",
        "cpuManagerPolicy": "static",
    }
    snapshot = snapshot_of(
        tmp_path,
        {
            "n.json": node("n"),
            "n/configz.json": {"kubeletconfig": config},
            "n/lscpu.json": lscpu,
            "n/cpu_manager_state": encode_cpus(CpuCheckpoint("static", "0-7,10-15", {"u": {"c": "8-9"}})),
            "n/memory_manager_state": encode_memory(MemoryCheckpoint("Static", state.nodes)),
        },
    )
    given = {"requests": {"cpu": "2", "memory": "2Gi"}, "pods": 4}
    assert answers(snapshot, **given) == [("n", "takes", 3), ("n", "misaligned", 1)]
    write_snapshot(snapshot, tmp_path / "c.kes")
    assert answers(load_snapshot([str(tmp_path / "c.kes")]), **given) == [
        ("n", "takes", 3),
        ("n", "misaligned", 1),
    ]
    assert answers(snapshot, **given, policy="none") == [("n", "takes", 4)]


def test_nodes_that_are_not_known_well_enough_say_what_is_missing(tmp_path: Path) -> None:
    snapshot = snapshot_of(
        tmp_path,
        {
            "a.json": node("a"),
            "b.json": node("b"),
            "b.lscpu.json": {"cpus": [{"cpu": "0", "core": "0", "socket": "0", "node": "-"}]},
        },
    )
    answer = cpus(snapshot, CpusParameters(requests={"cpu": "1", "memory": "1Gi"}))
    reasons = {row["node"]: row["reason"] for row in answer.table.to_pylist()}
    assert "add the output of kubengine cpus --json" in reasons["a"]
    assert "add its cpu_manager_state" in reasons["b"]
    assert answer.notes["nodes whose topology or exclusive CPUs are not known"] == 2


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ({"requests": {"cpu": "1500m", "memory": "1Gi"}}, "requests"),
        ({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "4"}}, "requests"),
        ({"requests": {"cpu": "2", "memory": "1Gi"}, "cpu_options": {"no-such": "true"}}, "cpu_options"),
        ({"requests": {"cpu": "2", "memory": "1Gi"}, "reserved_cpus": "x"}, "reserved_cpus"),
    ],
)
def test_questions_that_cannot_be_answered(tmp_path: Path, given: dict[str, Any], subject: str) -> None:
    snapshot = snapshot_of(tmp_path, {"n.json": node("n")})
    with pytest.raises(InvalidInput) as failure:
        check_cpus(snapshot, CpusParameters(**given))
    assert failure.value.subject == subject


def test_processors_that_are_no_machine_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text(json.dumps(node("n")))
    (tmp_path / "n.cpus.json").write_text(json.dumps(described([machine()[0], machine()[0]])))
    faults = FaultLog()
    load_snapshot([str(tmp_path / "n.json"), str(tmp_path / "n.cpus.json")], faults=faults)
    assert "lists a CPU twice" in faults.kept[0].problem
