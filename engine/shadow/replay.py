"""Replay the record of a shadow: compare every recorded observation again, also under another configuration.

A replay decides as the shadow did next to the kubelet, and under another configuration as `kubengine shadow
--with` would have done. It leaves out kinds of decisions that a record does not suffice for
(`judge.REPEATABLE`). If a record lacks the start of its shadow, or rows in between, the shadow knew more than
a replay can know. Its decisions are then compared with those of the kubelet, but not with the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.record.blocks import RecordRow
from engine.record.reader import Record, moment
from engine.record.writer import BEGAN
from engine.record.writer import STREAM as RECORDER
from engine.shadow.judge import REPEATABLE, Judge
from engine.shadow.kinds.cgroups import CgroupRules
from engine.shadow.kinds.comparison import Comparison, Finding
from engine.shadow.ledger import AgreementLedger
from engine.shadow.observation_rows import SKIPPED, STATE, STREAM, ObservationDecoder, RecordedObservation
from engine.shadow.recording import JUDGED
from engine.shadow.second import NextChange, NextNode, SecondConfiguration

Decided = dict[tuple[str, str], str]
"""Our decisions by kind and subject."""


@dataclass(slots=True)
class ReplayedShadow:
    """Hold the result of a replay, from `began` to `ended` (Unix seconds).

    `decisions` is the number of its decisions. `mismatches` describes those that differ from the recorded
    ones, and `differ` those that differ from the kubelet's. `changes` are the decisions that the other
    configuration changes. `gaps` describes what the record lacks.
    """

    name: str = ""
    began: float = 0.0
    ended: float = 0.0
    decisions: int = 0
    gaps: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    changes: list[NextChange] = field(default_factory=list)


class ShadowReplay:
    """Replay one record once. With `config` or `added_pods`, which arrive before all others, decide under
    these as well.
    """

    def __init__(self, config: KubeletConfiguration | None = None, added_pods: Sequence[Pod] = ()) -> None:
        self._config, self._added_pods = config, tuple(added_pods)
        self._found = ReplayedShadow()
        self._second = SecondConfiguration()
        self._nodes: tuple[RecordedObservation, CgroupRules, NextNode] | None = None
        self._decoder = ObservationDecoder()
        self._begin(whole=False)

    def replay(self, record: Record) -> ReplayedShadow:
        """Return the result. Raise `InvalidInput` if the record has no observation that can be replayed."""
        for row in record.rows():
            self._replay_row(row)
        found = self._found
        found.gaps += record.gaps
        if not found.began:
            raise InvalidInput(
                "has no observation of a shadow that can be replayed", subject=str(record.directory)
            )
        self._add_differences()
        return found

    def _begin(self, *, whole: bool) -> None:
        """Reset the state of comparisons. `whole` says that the shadow started here as well; else earlier
        rows are lost, and the shadow had more state.
        """
        self._judge, self._ledger = Judge(), AgreementLedger()
        self._whole = whole
        self._decided: Decided = {}
        self._recorded: Decided = {}

    def _replay_row(self, row: RecordRow) -> None:
        """Replay the observation that a row completes. Raise `InvalidInput` for a row of another shape."""
        if row.stream == RECORDER and row.name == BEGAN:
            self._add_differences()
            self._begin(whole=True)
            self._decoder.restart()
        elif row.stream == JUDGED and row.name in REPEATABLE:
            self._recorded[row.name, row.inputs["subject"]] = row.text
        elif row.stream == STREAM:
            if row.name == STATE and not self._decoder.is_next(row):
                self._add_differences()
                self._begin(whole=False)
            recorded = self._decoder.decode(row)
            if row.name == SKIPPED:
                self._ledger.interrupt()
            elif recorded is not None:
                self._judge_again(recorded)

    def _judge_again(self, recorded: RecordedObservation) -> None:
        seen, found = recorded.seen, self._found
        found.name = seen.node.metadata.name or found.name
        found.began, found.ended = found.began or seen.at, seen.at
        findings = list(self._judge.repeatable(seen))
        self._compare(findings, seen.at)
        self._ledger.add(findings, now=seen.now, wall=seen.at)
        if self._config is not None or self._added_pods:
            found.changes += self._second.compare(seen, *self._rules_and_next_node(recorded))

    def _rules_and_next_node(self, recorded: RecordedObservation) -> tuple[CgroupRules, NextNode]:
        """Return the cgroup rules of the live configuration, and the node under the other one, cached until
        the machine, the configuration or the Node changes.
        """
        known, seen = self._nodes, recorded.seen
        if known is None or (known[0].facts, known[0].seen.config, known[0].seen.node) != (
            recorded.facts, seen.config, seen.node,
        ):  # fmt: skip
            next_node = recorded.facts.next_node(self._config or seen.config, seen.config, seen.node)
            next_node = replace(next_node, added_pods=self._added_pods)
            known = self._nodes = recorded, recorded.facts.rules(seen.config), next_node
        return known[1:]

    def _compare(self, findings: Sequence[Finding], at: float) -> None:
        """Compare the decisions that changed since the observation before with the recorded ones."""
        decided: Decided = {
            (one.kind, one.subject): one.ours for one in findings if isinstance(one, Comparison)
        }
        new = {key: ours for key, ours in decided.items() if self._decided.get(key) != ours}
        self._found.decisions += len(new)
        if self._whole:
            self._found.mismatches += _mismatches(self._recorded, decided, new, at)
        self._decided, self._recorded = decided, {}

    def _add_differences(self) -> None:
        """Add the counted differences from the kubelet to the result."""
        for one in self._ledger.differences():
            compared = one.comparison
            self._found.differ.append(
                f"{moment(one.first)}: {compared.kind} of {compared.subject}: replayed {compared.ours} "
                f"({compared.our_reason}), but the kubelet: {compared.kubelets} ({compared.kubelets_reason})"
            )


def _mismatches(recorded: Decided, decided: Decided, new: Decided, at: float) -> Iterator[str]:
    """Describe the decisions that differ from the recorded ones; `new` are decisions that the record must
    have.
    """
    # Not a set of the keys: its order differs between processes, and so would the report.
    for key in recorded | new:
        theirs, ours = recorded.get(key), decided.get(key)
        if theirs is None or ours is None or theirs != ours:
            kind, subject = key
            yield (
                f"{moment(at)}: {kind} of {subject}: the shadow decided {theirs or 'nothing'}, "
                f"replayed {ours or 'nothing'}"
            )


def replay_shadow(
    directory: Path, config: KubeletConfiguration | None = None, added_pods: Sequence[Pod] = ()
) -> ReplayedShadow:
    """Replay the record in a directory. Raise `InvalidInput` if there is none, or none of its observations
    can be replayed.
    """
    return ShadowReplay(config, added_pods).replay(Record(directory))


def is_of_shadow(directory: Path) -> bool:
    """Return whether a shadow wrote the record in a directory. Raise `InvalidInput` if there is none."""
    return next(Record(directory).rows(lambda row: row.stream == STREAM), None) is not None
