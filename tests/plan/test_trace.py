"""The planner on the public Alibaba GPU cluster trace of 2023, where the machine has it.

Set KUBENGINE_GPU_TRACE to the folder with `openb_node_list_all_node.csv` and `openb_pod_list_default.csv`
(repository alibaba/clusterdata, cluster-trace-gpu-v2023).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from engine.plan.placement.place import place
from engine.plan.questions.devices import DevicesParameters, devices
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.reading.mapping import load_mapped

FOLDER = os.environ.get("KUBENGINE_GPU_TRACE", "")
MAPPING = Path(__file__).parents[2] / "examples" / "plan" / "gpu-trace-mapping.yaml"

pytestmark = pytest.mark.skipif(
    not FOLDER, reason="needs the public GPU trace: set KUBENGINE_GPU_TRACE to its folder"
)


@pytest.fixture(scope="module")
def trace():
    folder = Path(FOLDER)
    nodes, pods = folder / "openb_node_list_all_node.csv", folder / "openb_pod_list_default.csv"
    return load_mapped(MAPPING, str(nodes), str(pods))[0]


@pytest.mark.parametrize("rule", ["spread", "pack"])
def test_every_pod_that_fits_has_a_place_and_gpus_are_counted(trace, rule):
    assert (trace.node_count, trace.pods.num_rows) == (1523, 8152)
    placed, missed = place(trace, rule=rule)
    assert placed.placed + missed == 8152
    gpus = int(np.maximum(trace.allocatable("nvidia.com/gpu"), 0).sum())
    held = int(placed.per_pod("request/nvidia.com/gpu").sum())
    assert gpus == 6212
    answer = devices(placed, DevicesParameters(counts=[1, 8], policy="none"))
    free = sum(row["amount"] for row in answer.table.to_pylist() if row["decision"] == "free")
    assert free == gpus - held


def test_packing_keeps_more_whole_machines_than_spreading(tmp_path):
    """With a third of the pods; all of them fill every GPU under either rule."""
    folder, some = Path(FOLDER), tmp_path / "pods.csv"
    lines = (folder / "openb_pod_list_default.csv").read_text().splitlines(keepends=True)
    some.write_text("".join(lines[:2700]))
    third = load_mapped(MAPPING, str(folder / "openb_node_list_all_node.csv"), str(some))[0]

    def whole(rule: str) -> int:
        answer = devices(place(third, rule=rule)[0], DevicesParameters(counts=[8], policy="none"))
        return sum(row["amount"] for row in answer.table.to_pylist() if row["decision"] == "fits")

    assert whole("pack") > whole("spread")


def test_a_critical_pod_is_judged_on_every_node(trace):
    placed, _ = place(trace, rule="spread")
    answer = preempt(placed, PreemptParameters(critical=True, requests={"cpu": 16, "nvidia.com/gpu": 2}))
    verdicts = [d for d in answer.table["decision"].to_pylist() if d in ("fits", "preempt", "impossible")]
    assert len(verdicts) == 1523
