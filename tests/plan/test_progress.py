"""Progress is shown on a terminal only."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.questions.preempt import PreemptParameters
from engine.plan.scenario import Plan

PLAN = """
scenarios:
- name: sweep
  ask: admit
  sweep: {requests.cpu: ["1", "2", "4"]}
- name: sides
  ask: admit
  with: {requests: {cpu: "1"}}
  diff: {a: {}, b: {requests: {cpu: "2"}}}
"""


@pytest.mark.parametrize("selection", [NodeSelection(), NodeSelection(sample=9)])
def test_the_parts_of_a_question_add_up_to_one(cluster, selection):
    parts: list[float] = []
    asked = PreemptParameters(critical=True, requests={"cpu": "2"})
    ask(Cluster(cluster), "preempt", asked, selection=selection, shard_pods=100, step=parts.append)
    assert len(parts) > 2
    assert sum(parts) == pytest.approx(1.0)


def test_a_plan_counts_every_point_and_both_sides(cluster, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    plan, parts = Plan(file), []
    plan.run(Cluster(cluster), step=parts.append)
    assert plan.questions == 5
    assert sum(parts) == pytest.approx(5.0)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_at_a_terminal_only(cluster_file: Path, tmp_path: Path, terminal: bool):
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    command = [sys.executable, "-m", "engine.cli", "plan", "run", str(file), str(cluster_file)]
    ours, theirs = pty.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            [*command, "--format", "json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        )  # fmt: skip
        os.close(theirs)
        output = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side of a terminal is gone
                break
            if not part:
                break
            output += part
        assert process.wait(60) == 0
    finally:
        os.close(ours)
    assert (b"plan.yaml" in output) == terminal
    assert b"5 points" in output or b"4 points" in output
