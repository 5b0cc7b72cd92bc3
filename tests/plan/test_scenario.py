"""Scenario files: sweeps, assertions, and errors that say line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer
from engine.plan.answers.diff import difference
from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.questions.preempt import PreemptParameters, preempt
from engine.plan.scenario import MAX_POINTS, Plan, Range, laid_over, scenario_schema

EXAMPLES = Path(__file__).parents[2] / "examples" / "plan"

GOOD = """\
apiVersion: kubengine.dev/v1alpha1
kind: Plan
scenarios:
  - name: agent
    ask: preempt
    with: {critical: true, requests: {memory: 1Gi}}
    sweep:
      requests.cpu: [1, 2]
      policy: [kubelet, minimal]
    fail_if:
      - message: nobody is Guaranteed
        where: {decision: victim, reason: "Guaranteed*"}
"""


def plan(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return Plan(path)


def test_a_grid_is_asked_point_by_point(cluster, tmp_path):
    outcome = plan(tmp_path, GOOD).run(Cluster(cluster))
    names = [name for _, name, _ in outcome.points]
    assert names == [
        f"agent[requests.cpu={cpu},policy={p}]" for cpu in (1, 2) for p in ("kubelet", "minimal")
    ]
    assert set(outcome.answer.table["scenario"].to_pylist()) == set(names)
    alone = preempt(cluster, PreemptParameters(critical=True, requests={"memory": "1Gi", "cpu": 2}))
    mine = [row for row in outcome.answer.table.to_pylist() if row["scenario"] == names[2]]
    assert [row | {"scenario": ""} for row in mine] == alone.table.to_pylist()


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("ask: preempt", "ask: conquer", 5, "scenarios[0].ask: expected one of"),
        ("ask: preempt", "ask: premept", 5, "got 'premept'; did you mean preempt?"),
        ("memory: 1Gi", "memory: [1]", 6, "scenarios[0].with.requests"),
        ("critical: true", "criticl: true", 6, "scenarios[0].with.criticl: unknown field"),
        ("critical: true", "critical: 7", 6, "scenarios[0].with.critical: expected `bool`"),
        ("policy: [kubelet, minimal]", "policy: [kubelet, best]", 9, "scenarios[0].sweep.policy"),
        ("policy: [kubelet, minimal]", "policy: []", 9, "has no values"),
        ("[1, 2]", "{from: 1, to: 2, step: 0}", 7, "scenarios[0].sweep.step: expected `float` > 0.0"),
        ("[1, 2]", "{from: 1, to: 99999, step: 1}", 7, f"at most {MAX_POINTS}"),
        ("decision: victim", "decisions: victim", 12, "fail_if[0].where.decisions: unknown field"),
        ("kind: Plan", "kind: Plane", 2, "expected Plan"),
        ("v1alpha1", "v2", 1, "expected kubengine.dev/v1alpha1"),
        ("  - name: agent", "  - {name: agent, ask: devices}\n  - name: agent", 5, "is defined already"),
        ("kind: Plan", "kind: [", 0, "not valid YAML"),
        ("kind: Plan", "kind: Plan\nkind: Plan", 3, "given twice"),
    ],
)
def test_errors_say_line_and_field(tmp_path, old, new, line, words):
    assert old in GOOD
    with pytest.raises(InvalidInput) as caught:
        plan(tmp_path, GOOD.replace(old, new, 1))
    assert words in str(caught.value)
    assert caught.value.subject == str(tmp_path / "plan.yaml")
    if line:
        assert f"line {line}: " in str(caught.value)


def failures(cluster, tmp_path, assertion: str) -> list[str]:
    text = "scenarios:\n  - name: x\n    ask: preempt\n    with: {critical: true, requests: {cpu: 2}}\n"
    text += f"    fail_if: [{assertion}]\n"
    return [failure.message for failure in plan(tmp_path, text).run(Cluster(cluster)).failures]


def test_assertions_measure_rows_amounts_and_nodes(cluster, tmp_path):
    table = preempt(cluster, PreemptParameters(critical=True, requests={"cpu": 2})).table.to_pylist()
    victims = [row for row in table if row["decision"] == "victim"]
    assert victims
    amount, nodes = sum(row["amount"] for row in victims), len({row["node"] for row in victims})
    where = "where: {decision: vict*}"
    assert failures(cluster, tmp_path, f"{{{where}}}") == [f"{len(victims)} rows, more than 0"]
    assert failures(cluster, tmp_path, f"{{{where}, more_than: {len(victims)}}}") == []
    assert failures(cluster, tmp_path, f"{{{where}, of: amount, more_than: {amount - 1}}}") != []
    assert failures(cluster, tmp_path, f"{{{where}, of: amount, more_than: {amount}}}") == []
    assert failures(cluster, tmp_path, f"{{{where}, of: nodes, less_than: {nodes + 1}, message: few}}") == [
        f"few: {nodes} nodes, less than {nodes + 1}"
    ]


def test_ranges_are_numbers_people_expect():
    assert Range(0.25, 1, 0.25).values() == [0.25, 0.5, 0.75, 1]
    assert Range(1, 0, 1).values() == []


def test_changes_go_inside_and_leave_the_base_alone():
    base = {"requests": {"cpu": 1}}
    assert laid_over(base, {"requests.cpu": 2, "requests.nvidia.com/gpu": 1}) == {
        "requests": {"cpu": 2, "nvidia.com/gpu": 1}
    }
    assert base == {"requests": {"cpu": 1}}


def test_the_schema_describes_every_question():
    schema = scenario_schema()
    assert json.loads(json.dumps(schema)) == schema
    scenario = schema["$defs"]["Scenario"]
    assert set(scenario["properties"]["ask"]["enum"]) == {
        condition["if"]["properties"]["ask"]["const"] for condition in scenario["allOf"]
    }
    for condition in scenario["allOf"]:
        reference = condition["then"]["properties"]["with"]["$ref"]
        assert schema["$defs"][reference.rpartition("/")[2]]["additionalProperties"] is False


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_sound(path):
    if "kind: Plan" in path.read_text():
        assert Plan(path).points


def test_a_sample_is_drawn_with_the_seed(cluster):
    def nodes(seed: int) -> list[str]:
        asked = PreemptParameters(critical=True, requests={"cpu": 2}, victims=False)
        answer = ask(Cluster(cluster), "preempt", asked, selection=NodeSelection(sample=5, seed=seed))
        return sorted(set(answer.table["node"].to_pylist()))

    assert nodes(1) == nodes(1) != nodes(2)
    assert len(nodes(1)) == 5


@pytest.mark.parametrize("shard_pods", [1, 100, 333])
def test_shards_do_not_change_the_answer(cluster, cluster_file, shard_pods):
    asked = PreemptParameters(critical=True, requests={"cpu": 2})
    whole = ask(Cluster(cluster), "preempt", asked)
    assert ask(Cluster(cluster), "preempt", asked, shard_pods=shard_pods).table.equals(whole.table)
    assert ask(Cluster.open([str(cluster_file)]), "preempt", asked, shard_pods=shard_pods).table.equals(
        whole.table
    )


def test_selection_by_name_and_label(cluster):
    asked = PreemptParameters(critical=True, requests={"cpu": 2}, victims=False)
    zone = NodeSelection(selector="topology.kubernetes.io/zone in (zone-a), kubernetes.io/os!=windows")
    found = set(ask(Cluster(cluster), "preempt", asked, selection=zone).table["node"].to_pylist())
    assert found == set(cluster.node_names[::3])
    one = ask(Cluster(cluster), "preempt", asked, selection=NodeSelection(nodes=("node-0000[12]",)))
    assert set(one.table["node"].to_pylist()) == {"node-00001", "node-00002"}
    for wrong in (
        NodeSelection(nodes=("nope*",)),
        NodeSelection(selector="a=b"),
        NodeSelection(selector="a in (b"),
    ):
        with pytest.raises(InvalidInput):
            ask(Cluster(cluster), "preempt", asked, selection=wrong)


def test_difference_keeps_what_differs_only(cluster):
    a = preempt(cluster, PreemptParameters(critical=True, requests={"cpu": 5}))
    assert len(difference(a, a)) == 0
    b = preempt(cluster, PreemptParameters(critical=True, requests={"cpu": 6}))
    rows = difference(a, b).table.to_pylist()
    changed = [row for row in rows if row["decision"] == "changed:impossible"]
    assert changed
    assert {row["amount"] for row in changed} == {1000}
    assert {row["decision"].partition(":")[0] for row in rows} <= {"only-a", "only-b", "changed"}
    empty = Answer(a.table.slice(0, 0))
    assert len(difference(a, empty)) == len(a)
    assert {row["decision"].partition(":")[0] for row in difference(empty, a).table.to_pylist()} == {"only-b"}
