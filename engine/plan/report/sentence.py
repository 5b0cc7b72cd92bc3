"""Summarize an answer in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from engine.plan.answers.output import plain
from engine.plan.answers.readable import readable

PHRASES: Final[Mapping[str, str]] = {
    "fits": "it fits on {nodes}",
    "preempt": "on {nodes} it preempts {amount}",
    "impossible": "on {nodes} it cannot run",
    "admits": "{nodes} admit {amount}",
    "refuses": "{nodes} refuse it",
    "calm": "{nodes} stay calm",
    "relieved": "{nodes} are relieved",
    "evict": "{rows} pods are evicted",
    "stuck": "{nodes} stay under pressure",
    "unknown": "{rows} cannot be judged",
    "collect": "on {nodes} image garbage collection frees {amount}",
    "idle": "on {nodes} it has nothing to do",
    "short": "on {nodes} it finds too few unused images",
    "remove": "{rows} images are removed",
    "free": "{nodes} have {amount} free",
    "fragmented": "{nodes} have enough, but not as aligned as the policy requires",
    "full": "{nodes} have too few",
    "takes": "{nodes} take {amount}",
    "misaligned": "{nodes} would take {amount} more if what is free were better placed",
    "lacks": "{nodes} have too little for {amount}",
    "move": "{rows} pods move",
    "stays": "{rows} pods stay",
    "lost": "{rows} pods are lost",
    "remains": "{rows} pods remain",
    "displaced": "{rows} pods of lower priority lose their node",
    "breaks-budget": "{rows} disruption budgets keep pods",
    "paces": "{rows} disruption budgets make it take several rounds",
    "drained": "{nodes} can be drained",
    "not-drained": "{nodes} cannot be drained",
    "unverified": "{nodes} cannot be verified",
    "removable": "{nodes} can be removed",
    "needed": "{nodes} are needed",
    "oom-kill": "{rows} pods run out of memory",
    "throttle": "{rows} pods are throttled",
    "squeeze": "{rows} pods lack CPU",
    "affected": "on {nodes} pods are affected",
    "unaffected": "on {nodes} no pod is affected",
    "refuses-to-start": "{nodes} have a kubelet that does not start",
    "refuse": "{rows} pods are refused",
    "victim": "{rows} pods are preempted",
    "restart": "{rows} pods restart",
    "lint": "{rows} faults were found",
}
_TOLD: Final = {"victim": "preempt"}
"""Decisions that are left out where another one tells of the same pods."""
_ONE: Final = {"pods": "pod", "images": "image", "nodes": "node", "faults": "fault", "budgets": "budget"}
_VERBS: Final = {
    " admit ": " admits ", " take ": " takes ", " refuse ": " refuses ", " stay ": " stays ", " are ": " is ",
    " have ": " has ", " lose their ": " loses its ", " keep ": " keeps ", " make it ": " makes it ",
    " remain": " remains", " move": " moves", " fit ": " fits ", " stay": " stays", " were ": " was ",
}  # fmt: skip


def sentence(table: pa.Table) -> str:
    """Count each decision, without rows that belong to another decision; empty if nothing is known."""
    found = (
        plain(table)
        .group_by(["decision"], use_threads=False)
        .aggregate([("node", "count_distinct"), ("amount", "count"), ("amount", "sum"), ("unit", "min")])
    )
    by_decision = {row["decision"]: row for row in found.to_pylist()}
    parts = []
    for decision, phrase in PHRASES.items():
        row = by_decision.get(decision)
        if row is None or _TOLD.get(decision) in by_decision:
            continue
        nodes, rows = row["node_count_distinct"], row["amount_count"]
        said = phrase.format(
            nodes=f"{nodes:,} nodes", rows=f"{rows:,}", amount=readable(row["amount_sum"], row["unit_min"])
        )
        parts.append(_singular(said) if (nodes if "{nodes}" in phrase else rows) == 1 else said)
    if not parts:
        return ""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _singular(said: str) -> str:
    """Turn `1 pods move` into `1 pod moves`."""
    for many, one in _ONE.items():
        said = said.replace(f"1 {many}", f"1 {one}", 1)
    if said.startswith("1 "):
        for many, one in _VERBS.items():
            if many in said or said.endswith(many):
                return said.replace(many, one, 1)
    return said
