"""Nodes that do not differ in the labels which a rule reads are asked once, with the same answers."""

from __future__ import annotations

import random

import pytest

from engine.admission.selectors import selects
from engine.api.scheduling import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from engine.plan import Snapshot
from engine.plan.placement.node_labels import labels_of_nodes
from tests.plan.placement.made_cluster import HOST, ZONE, node, read

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
KEYS = (ZONE, HOST, "size", "disk")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    draw = random.Random(5)
    nodes = []
    for number in range(40):
        labels = {"size": str(draw.randrange(4))} if draw.random() < 0.7 else {}
        labels |= {"disk": draw.choice(["ssd", "hdd"])} if draw.random() < 0.7 else {}
        nodes.append(node(f"n{number}", draw.choice("abc"), labels=labels))
    return read(tmp_path_factory.mktemp("labelled"), *nodes)


def requirement(draw: random.Random) -> NodeSelectorRequirement:
    key, operator = draw.choice(KEYS), draw.choice(OPERATORS)
    if operator in ("Gt", "Lt"):
        return NodeSelectorRequirement(key="size", operator=operator, values=[str(draw.randrange(4))])
    values = {"size": "0123", "disk": ("ssd", "hdd"), ZONE: "abc", HOST: ("n1", "n2", "n30")}[key]
    wanted = draw.sample(list(values), 2) if operator in ("In", "NotIn") else None
    return NodeSelectorRequirement(key=key, operator=operator, values=wanted)


@pytest.mark.parametrize("seed", range(60))
def test_groups_answer_as_single_nodes(labelled: Snapshot, seed: int) -> None:
    draw, nodes = random.Random(seed), labels_of_nodes(labelled)
    terms = []
    for _ in range(draw.randrange(1, 3)):
        named = NodeSelectorRequirement(key="metadata.name", operator="In", values=["n3", "n7"])
        fields = [named] if draw.random() < 0.2 else None
        listed = [requirement(draw) for _ in range(draw.randrange(1, 4))]
        terms.append(NodeSelectorTerm(match_expressions=listed, match_fields=fields))
    selector = NodeSelector(node_selector_terms=terms)
    pairs = zip(nodes.labels, labelled.node_names, strict=True)
    assert nodes.selected(selector).tolist() == [selects(selector, *pair) for pair in pairs]


def test_nodes_that_do_not_differ_are_asked_once(labelled: Snapshot) -> None:
    asked: list[str] = []

    def matches(labels: object, name: str) -> bool:
        asked.append(name)
        return True

    labels_of_nodes(labelled).where(None, matches, "disk")
    assert len(asked) == 3
