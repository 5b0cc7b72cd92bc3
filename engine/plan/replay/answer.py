"""Build the answer of a replay: a row for each node, and one for each decision that went differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import NamedTuple

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.plan.answers.answer import Answer, Rows
from engine.plan.replay.compared import Different, differences, not_repeated
from engine.plan.replay.decided import recorded_decisions
from engine.plan.replay.recorded import NodeRecording
from engine.plan.replay.replay import NodeReplay


def replay_answer(
    nodes: Iterable[NodeRecording],
    config: KubeletConfiguration | None = None,
    more: Sequence[Pod] = (),
) -> Answer:
    """Play the records of agents, and return the answer about them. `nodes` is read one by one, so that one
    record at a time is in memory.
    """
    return answer_of([played(node, config, more) for node in nodes])


def answer_of(nodes: Sequence[PlayedNode]) -> Answer:
    """Return per node `same` or `differs` (amount: decisions that were taken again) and, with a configuration
    or more pods, a row for each difference.

    `mismatch` rows name decisions that the replay takes otherwise than the recorder did, under the recorded
    configuration; `gap` rows what the record lacks.
    """
    rows = Rows(_unique([one.name for one in nodes]))
    for number, one in enumerate(nodes):
        verdict = "differs" if one.found or one.mismatches else "same"
        said = f"{len(one.found)} of its decisions differ" if one.found else one.all_said
        rows.add(number, verdict, "", said, one.decisions, "decisions")
        for gap in one.gaps:
            rows.add(number, "gap", "", gap, 0, "")
        for text in one.mismatches:
            rows.add(number, "mismatch", "", text, 1, "decisions")
        for different in one.found:
            rows.add(
                number, different.decision, different.pod, different.why, different.amount, different.unit
            )
    return rows.answer()


class PlayedNode(NamedTuple):
    """Hold the answer about one node."""

    name: str
    all_said: str
    decisions: int
    gaps: Sequence[str]
    mismatches: Sequence[str]
    found: Sequence[Different]


def played(
    node: NodeRecording, config: KubeletConfiguration | None = None, more: Sequence[Pod] = ()
) -> PlayedNode:
    """Play the record of one agent."""
    now = NodeReplay(node).play()
    mismatches = not_repeated(recorded_decisions(node), now)
    found: list[Different] = []
    if config is not None or more:
        following = NodeReplay(node, config, added_pods(more))
        found = list(differences(now, following.play(), node.began))
    return PlayedNode(node.name, all_of(node.began, node.ended), len(now), node.gaps, mismatches, found)


def all_of(began: float, ended: float) -> str:
    """Describe how much of the record was replayed."""
    return f"all decisions of {(ended - began) / 3600:.1f} h"


def added_pods(more: Sequence[Pod]) -> list[Pod]:
    """Return copies of the pods with uids of their own."""
    pods = [deepcopy(pod) for pod in more]
    for pod in pods:
        pod.metadata.uid = f"added {pod.full_name}"
    return pods


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names; one that repeats gets a number."""
    return [name if names.index(name) == at else f"{name}#{at + 1}" for at, name in enumerate(names)]
