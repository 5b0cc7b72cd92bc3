"""`kubengine preempt` on files."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from engine.admission.asked_pod import PodParameters
from engine.api.errors import InvalidInput
from engine.cli.plan import verb
from engine.cli.preempt import command

NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "2", memory: 2Gi, pods: "10"}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, uid: %s}
spec: {containers: [{name: c, resources: {requests: {cpu: %s}}}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "node.yaml").write_text(NODE)
    pods = [POD % ("big", "u1", "1500m"), POD % ("small", "u2", "300m")]
    (tmp_path / "pods.yaml").write_text("---".join(pods))
    (tmp_path / "pod.yaml").write_text(POD % ("wanted", '""', "1"))
    return tmp_path


def run(files: Path, *more: str) -> Result:
    arguments = ["-f", str(files / "pod.yaml"), "--node", str(files / "node.yaml")]
    arguments += ["--pods", str(files / "pods.yaml"), *more]
    return CliRunner().invoke(command, arguments)


def test_an_ordinary_pod_is_rejected(files):
    result = run(files, "--dry-run")
    assert result.exit_code == 3
    assert "OutOfcpu" in result.output
    assert "preempts no pod" in result.output


def test_a_static_one_names_its_victims(files):
    result = run(files, "--dry-run", "--static")
    assert result.exit_code == 0, result.output
    assert "after 1 pod is preempted (policy kubelet). Short: cpu 800m." in result.output
    assert "default/big" in result.output
    assert "enough was freed without it" in result.output


@pytest.mark.parametrize("policy", ["kubelet", "priority", "minimal"])
def test_json(files, policy):
    result = run(files, "--dry-run", "--static", "--json", "--policy", policy)
    answer = json.loads(result.output)
    assert answer["preemption"]["victims"] == ["u1"]
    assert answer["preemption"]["policy"] == policy
    assert answer["preemption"]["steps"][0]["name"] == "default/big"
    assert answer["failures"] == [{"resource": "cpu", "requested": 1000, "used": 1800, "capacity": 2000}]


def test_a_pod_that_fits(files):
    (files / "pod.yaml").write_text(POD % ("wanted", '""', "200m"))
    assert run(files, "--dry-run").output == "default/wanted fits.\n"


def test_an_unknown_policy_is_wrong_usage(files):
    result = run(files, "--policy", "best")
    assert result.exit_code == 2
    assert "kubelet, priority, minimal" in result.output


def test_the_pod_may_be_given_by_the_planners_options(files):
    arguments = ["--node", str(files / "node.yaml"), "--pods", str(files / "pods.yaml"), "--json"]
    said = ["--requests", "cpu=1,memory=1Mi", "--name", "said"]
    plain = CliRunner().invoke(command, [*arguments, *said])
    assert plain.exit_code == 3
    assert json.loads(plain.output)["reason"] == "OutOfcpu"
    critical = CliRunner().invoke(command, [*arguments, *said, "--critical"])
    assert critical.exit_code == 0, critical.output
    assert json.loads(critical.output)["preemption"]["victims"] == ["u1"]
    missing = CliRunner().invoke(command, arguments)
    assert missing.exit_code == 2
    assert "say which pod: --file, --like or --requests" in missing.output


def test_options_change_the_manifests_pod(files):
    changed = json.loads(run(files, "--requests", "cpu=200m", "--name", "other", "--json").output)
    assert (changed["pod"], changed["admit"]) == ("default/other", True)
    assert json.loads(run(files, "--priority", "2000000000", "--json").output)["admit"]


def words(options: list[click.Parameter]) -> dict[str, tuple[object, ...]]:
    return {
        option.name or "": (option.opts, option.secondary_opts, option.help, str(option.type))
        for option in options
        if isinstance(option, click.Option)
    }


def test_the_pod_options_equal_the_planners():
    planner = verb("preempt")
    mine, theirs = words(command.params), words(planner.params)
    of_the_pod = {f"given_{field}" for field in PodParameters.__struct_fields__}
    assert {name: mine[name] for name in of_the_pod} == {name: theirs[name] for name in of_the_pod}
    assert mine["limit"] == theirs["limit"]


def test_selectors_and_tolerations_are_judged(files):
    small = ["--requests", "cpu=100m", "--node-selector", "disk=ssd", "--json"]
    elsewhere = json.loads(run(files, *small).output)
    assert (elsewhere["admit"], elsewhere["reason"]) == (False, "NodeAffinity")
    (files / "node.yaml").write_text(NODE.replace("{name: n1}", "{name: n1, labels: {disk: ssd}}"))
    small = ["--requests", "cpu=100m", "--node-selector", "disk=ssd", "--json"]
    assert json.loads(run(files, *small).output)["admit"]
    tainted = "spec: {taints: [{key: k, effect: NoExecute}]}\n" + NODE.lstrip()
    (files / "node.yaml").write_text(tainted)
    plain = ["--requests", "cpu=100m", "--json"]
    assert not json.loads(run(files, *plain).output)["admit"]
    tolerating = ["--tolerations", '{"key": "k", "operator": "Exists"}']
    assert json.loads(run(files, *plain, *tolerating).output)["admit"]


def test_a_pod_may_be_described_by_an_existing_one(files):
    arguments = ["--node", str(files / "node.yaml"), "--pods", str(files / "pods.yaml"), "--json"]
    again = CliRunner().invoke(command, [*arguments, "--like", "default/small", "--name", "again"])
    answer = json.loads(again.output)
    assert (answer["pod"], answer["admit"]) == ("default/again", False)
    assert answer["failures"] == [{"resource": "cpu", "requested": 300, "used": 1800, "capacity": 2000}]
    missing = CliRunner().invoke(command, [*arguments, "--like", "default/nobody"])
    assert isinstance(missing.exception, InvalidInput)


def test_a_priority_class_is_a_system_one_or_one_that_a_pod_there_has(files):
    system = json.loads(run(files, "--priority-class", "system-node-critical", "--json").output)
    assert system["preemption"]["victims"] == ["u1"]
    known = "spec: {priorityClassName: mine, priority: 2000000000, containers"
    pods = (files / "pods.yaml").read_text().replace("spec: {containers", known, 1)
    (files / "pods.yaml").write_text(pods)
    mine = json.loads(run(files, "--priority-class", "mine", "--json").output)
    assert mine["critical"]
    unknown = run(files, "--priority-class", "other", "--json")
    assert isinstance(unknown.exception, InvalidInput)
    assert "give a priority" in str(unknown.exception)


def test_tables_end_at_the_limit(files):
    whole = run(files, "--static").output
    assert "(--limit)" not in whole
    many = "---".join(
        [(files / "pods.yaml").read_text(), *(POD % (f"p{n}", f"v{n}", "1m") for n in range(3))]
    )
    (files / "pods.yaml").write_text(many)
    cut = run(files, "--static", "--limit", "1").output
    assert "… and 3 more (--limit)" in cut
