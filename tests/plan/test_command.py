"""`kubengine plan` as a user types it: pipes, files, exit status, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.plan.snapshot.json_writer import write_list
from tests.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"


def test_a_made_up_cluster_through_a_pipe():
    plan = [sys.executable, "-m", "engine.cli", "plan"]
    synth = subprocess.Popen(
        [*plan, "synth", "--nodes", "20", "--pods-per-node", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    done = subprocess.run(
        [*plan, "preempt", "--requests", "cpu=2,memory=4Gi", "--critical", "--format", "json"],
        stdin=synth.stdout, capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert synth.stdout is not None
    synth.stdout.close()
    assert synth.wait(60) == 0
    document = json.loads(done.stdout)
    assert {row["decision"] for row in document["rows"]} >= {"fits"}
    assert document["provenance"]["synthetic"] == {"nodes": 20, "pods_per_node": 30, "seed": 1}


def test_kubectl_json_to_columnar_to_report(run_plan, cluster, tmp_path):
    listed = tmp_path / "cluster.json"
    with listed.open("wb") as file:
        write_list(cluster, file)
    columnar, report = tmp_path / "c.kes", tmp_path / "r.html"
    assert run_plan("snapshot", str(listed), "-o", str(columnar)).returncode == 0
    done = run_plan(
        "evict", "--use", "90%", "--available", "99Mi", str(columnar), "-o", str(report), "--explain"
    )
    assert done.returncode == 0, done.stderr
    assert report.read_text().startswith("<!doctype html>")
    assert b"is evicted" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["admit", "--requests", "cpu=1"],
        ["image-gc", "--high", "70", "--low", "50", "--no-images"],
        ["cgroups", "--detail", "lint", "--formula", "logarithmic"],
        ["devices"],
        ["drain", "--nodes", "node-0000[12]"],
        ["evict", "--resource", "disk", "--growth", "50%"],
        ["diff", "cgroups", "--with", '{"detail": ["qos"]}', "-a", '{"version": 1}', "-b", '{"version": 2}'],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_verb_answers(run_plan, cluster_file, arguments):
    done = run_plan(*arguments, str(cluster_file), "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1


def test_a_plan_file_fails_the_build_when_an_assertion_does(run_plan, cluster_file, tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "scenarios:\n- name: x\n  ask: preempt\n  with: {critical: true, requests: {cpu: 900}}\n"
        "  fail_if: [{where: {decision: impossible}, message: too big}]\n"
    )
    failed = run_plan("run", str(plan), str(cluster_file), "-o", str(tmp_path / "out.json"))
    assert failed.returncode == 1
    assert b"failed: x: too big: 24 rows" in failed.stderr
    plan.write_text(plan.read_text().replace("900", "1m"))
    held = run_plan("run", str(plan), str(cluster_file), "-o", str(tmp_path / "out.json"))
    assert held.returncode == 0, held.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["preempt", "gone.json", "--requests", "cpu=1"], b"gone.json: No such file"),
        (["preempt", "CLUSTER"], b"--file: specify a pod with file"),
        (["preempt", "CLUSTER", "--requests", "cpu"], b"--requests: expected KEY=VALUE"),
        (["image-gc", "CLUSTER", "--high", "120"], b"--high"),
        (["evict", "CLUSTER", "--changes", "nonsense=1"], b"nonsense: no such field"),
        (["evict", "CLUSTER", "--only", "nope"], b"nope: matches no node"),
        (["drain", "CLUSTER", "--nodes="], b"an empty pattern: matches no node"),
        (["pending", "CLUSTER", "--prices", "m5=1,c5=cheap"], b"--prices: c5=cheap: 'cheap' is not a number"),
        (["snapshot", "CLUSTER", "-o", "/nowhere/x.kes"], b"/nowhere"),
        (["run", "gone.yaml"], b"gone.yaml"),
        (["diff", "admit", "CLUSTER", "-a", "7"], b"-a: expected a JSON object"),
    ],
)
def test_errors_are_one_line(run_plan, cluster_file, arguments, words):
    done = run_plan(*(str(cluster_file) if a == "CLUSTER" else a for a in arguments))
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_faults_are_reported_and_strict_refuses(run_plan, cluster, tmp_path):
    bad = tmp_path / "bad.json"
    with bad.open("wb") as file:
        write_list(cluster, file)
    bad.write_bytes(bad.read_bytes().replace(b'"cpu": "100m"', b'"cpu": "-100m"', 1))
    lenient = run_plan("admit", "--requests", "cpu=1", str(bad))
    assert lenient.returncode == 0
    assert b"1 fault left out of the snapshot" in lenient.stderr
    strict = run_plan("admit", "--strict", "--requests", "cpu=1", str(bad))
    assert strict.returncode == 1
    assert b"is negative" in strict.stderr


def test_the_schema_and_the_example_run(run_plan, tmp_path):
    assert json.loads(run_plan("schema").stdout)["$defs"]
    done = run_plan("run", str(EXAMPLES / "critical-agent.yaml"), "-o", str(tmp_path / "r.html"))
    assert done.returncode == 1
    assert b"assertions" in done.stderr


def test_names_cannot_write_to_the_terminal(run_plan, tmp_path):
    """A support bundle from elsewhere may name its nodes anything."""
    names = ("\x1b[2Jgone", "two\nlines", "\u202etxt.exe", "שלום")
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"allocatable": amounts, "capacity": amounts}
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": one}, "status": status} for one in names
    ]
    listed = tmp_path / "cluster.json"
    unreadable = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "\x1b]0;title"}, "status": 7}
    listed.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*nodes, unreadable]}))
    done = run_plan("preempt", "--requests", "cpu=1", "--explain", str(listed))
    output = (done.stdout + done.stderr).decode()
    assert "fault: " in output
    for name in (r"\x1b[2Jgone", r"two\nlines", r"\u202etxt.exe", "שלום", r"\x1b]0;title"):
        assert name in output
    assert not [one for one in output if not one.isprintable() and one != "\n"]
