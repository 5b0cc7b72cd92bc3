"""Build the answer of a replay: a row for each node, and one for each decision that went differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.plan.answers.answer import Answer, Rows
from engine.plan.replay.compared import differences, not_repeated
from engine.plan.replay.decided import recorded_decisions
from engine.plan.replay.recorded import NodeRecording
from engine.plan.replay.replay import NodeReplay

MOST_NOTES = 20


def replay_answer(
    nodes: Sequence[NodeRecording],
    config: KubeletConfiguration | None = None,
    more: Sequence[Pod] = (),
    step: Callable[[float], None] = lambda part: None,
) -> Answer:
    """Return per node `same` or `differs` (amount: decisions that were taken again) and, with a configuration
    or more pods, a row for each difference.

    `unlike` rows name decisions that the replay takes otherwise than the agent did, under the recorded
    configuration; `gap` rows what the record lacks.
    """
    rows = Rows(_unique([node.name for node in nodes]))
    for number, node in enumerate(nodes):
        now = NodeReplay(node).play()
        unlike = not_repeated(recorded_decisions(node), now)
        found = []
        if config is not None or more:
            following = NodeReplay(node, config, _named(more, node))
            found = list(differences(now, following.play(), node.began))
        verdict = "differs" if found or unlike else "same"
        hours = (node.ended - node.began) / 3600
        said = f"{len(found)} of its decisions differ" if found else f"all decisions of {hours:.1f} h"
        rows.add(number, verdict, "", said, len(now), "decisions")
        for gap in node.gaps:
            rows.add(number, "gap", "", gap, 0, "")
        for text in unlike:
            rows.add(number, "unlike", "", text, 1, "decisions")
        for one in found:
            rows.add(number, one.decision, one.pod, one.why, one.amount, one.unit)
        step(1 / len(nodes))
    return rows.answer()


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names; one that repeats gets a number."""
    return [name if names.index(name) == at else f"{name}#{at + 1}" for at, name in enumerate(names)]


def _named(more: Sequence[Pod], node: NodeRecording) -> list[Pod]:
    """Return copies of the pods with uids of their own on this node."""
    pods = [deepcopy(pod) for pod in more]
    for pod in pods:
        pod.metadata.uid = f"added {pod.full_name}"
    return pods
