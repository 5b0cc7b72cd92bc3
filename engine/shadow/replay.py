"""Play a shadow's record again: judge every recorded observation once more, and let another configuration
decide next to the live one.

Both are what a shadow does beside a kubelet, so a replay decides as that shadow did, and under another
configuration as `kubengine shadow --with` would have done. Kinds of decisions that need more than a record
has are left out (`judge.REPEATABLE`). Where a record lacks the start of its shadow, or rows in between, the
shadow knew more than a replay can; the decisions are then only compared with those of the kubelet.
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
"""What the rules decide, by kind and subject."""


@dataclass(slots=True)
class ReplayedShadow:
    """Hold what a replay found: its decisions, those that differ from the record or from the kubelet in
    words, and what the other configuration would have changed.
    """

    name: str = ""
    began: float = 0.0
    ended: float = 0.0
    decisions: int = 0
    gaps: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    changes: list[NextChange] = field(default_factory=list)


class ShadowReplay:
    """Play one record once, with `config` or `more` pods, which are there before all others, next to the live
    configuration.
    """

    def __init__(self, config: KubeletConfiguration | None = None, more: Sequence[Pod] = ()) -> None:
        self._config, self._more = config, tuple(more)
        self._found = ReplayedShadow()
        self._second = SecondConfiguration()
        self._nodes: tuple[RecordedObservation, CgroupRules, NextNode] | None = None
        self._decoder = ObservationDecoder()
        self._begin(whole=False)

    def play(self, record: Record) -> ReplayedShadow:
        """Return what was found. Raise `InvalidInput` if the record has no observation that can be played."""
        for row in record.rows():
            self._take(row)
        found = self._found
        found.gaps += record.gaps
        if not found.began:
            raise InvalidInput(
                "has no observation of a shadow that can be played", subject=str(record.directory)
            )
        self._close_ledger()
        return found

    def _begin(self, *, whole: bool) -> None:
        """Begin as a shadow does when it starts, or at a row of state where what came before is lost."""
        self._judge, self._ledger = Judge(), AgreementLedger()
        self._whole = whole
        self._decided: Decided = {}
        self._recorded: Decided = {}

    def _take(self, row: RecordRow) -> None:
        if row.stream == RECORDER and row.name == BEGAN:
            self._close_ledger()
            self._begin(whole=True)
            self._decoder.restart()
        elif row.stream == JUDGED and row.name in REPEATABLE:
            self._recorded[row.name, row.inputs["subject"]] = row.text
        elif row.stream == STREAM:
            if row.name == STATE and not self._decoder.follows(row):
                self._close_ledger()
                self._begin(whole=False)
            recorded = self._decoder.take(row)
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
        self._ledger.take(findings, now=seen.now, wall=seen.at)
        if self._config is not None or self._more:
            found.changes += self._second.compare(seen, *self._both(recorded))

    def _both(self, recorded: RecordedObservation) -> tuple[CgroupRules, NextNode]:
        """Return the rules of the live configuration, and the node under the other one."""
        known, seen = self._nodes, recorded.seen
        if known is None or (known[0].facts, known[0].seen.config, known[0].seen.node) != (
            recorded.facts, seen.config, seen.node,
        ):  # fmt: skip
            following = recorded.facts.next_node(self._config or seen.config, seen.config, seen.node)
            following = replace(following, more=self._more)
            known = self._nodes = recorded, recorded.facts.rules(seen.config), following
        return known[1:]

    def _compare(self, findings: Sequence[Finding], at: float) -> None:
        """Compare the decisions that differ from those of the observation before with the record."""
        decided: Decided = {
            (one.kind, one.subject): one.ours for one in findings if isinstance(one, Comparison)
        }
        new = {key: ours for key, ours in decided.items() if self._decided.get(key) != ours}
        self._found.decisions += len(new)
        if self._whole:
            self._found.unlike += _unlike(self._recorded, decided, new, at)
        self._decided, self._recorded = decided, {}

    def _close_ledger(self) -> None:
        """Take over the differences from the kubelet that have been counted."""
        for one in self._ledger.differences():
            compared = one.comparison
            self._found.differ.append(
                f"{moment(one.first)}: {compared.kind} of {compared.subject}: replayed {compared.ours} "
                f"({compared.our_reason}), but the kubelet: {compared.kubelets} ({compared.kubelets_reason})"
            )


def _unlike(recorded: Decided, decided: Decided, new: Decided, at: float) -> Iterator[str]:
    """Yield in words where an observation was judged otherwise than the shadow did; `new` are decisions that
    the record must have.
    """
    for key in recorded.keys() | new.keys():
        theirs, ours = recorded.get(key), decided.get(key)
        if theirs is None or ours is None or theirs != ours:
            kind, subject = key
            yield (
                f"{moment(at)}: {kind} of {subject}: the shadow decided {theirs or 'nothing'}, "
                f"replayed {ours or 'nothing'}"
            )


def replay_shadow(
    directory: Path, config: KubeletConfiguration | None = None, more: Sequence[Pod] = ()
) -> ReplayedShadow:
    """Play the record in a directory. Raise `InvalidInput` if it has none, or no observation that can be
    played.
    """
    return ShadowReplay(config, more).play(Record(directory))


def is_of_shadow(directory: Path) -> bool:
    """Tell whether a shadow wrote the record. Raise `InvalidInput` if the directory has none."""
    return next(Record(directory).rows(lambda row: row.stream == STREAM), None) is not None
