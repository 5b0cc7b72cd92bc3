"""Ask a question about selected nodes: in memory, one node range at a time from a file, or on a Dask cluster.

However the nodes are split, rows and their order are the same, because a per-node question's rows depend on
one node each and are assembled in the order of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, joined
from engine.plan.answers.diff import difference
from engine.plan.questions import QUESTIONS, Question
from engine.plan.questions.compare import compare as compare_snapshots
from engine.plan.reading.load import load_shown
from engine.plan.reading.progress import Step, silent
from engine.plan.snapshot.columnar_file import SnapshotFile, is_snapshot_file, node_ranges
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import NOT_LISTED, FaultLog
from engine.plan.snapshot.selection import select_nodes

SHARD_PODS = 1_000_000
DASK_SHARD_PODS = 50_000


@dataclass(frozen=True)
class NodeSelection:
    """Select nodes by names or patterns, labels, or a random sample. An empty selection means all."""

    nodes: tuple[str, ...] = ()
    selector: str = ""
    sample: int = 0
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.nodes or self.selector or self.sample)

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with these nodes only. Raise `InvalidInput` if there are none."""
        if not self:
            return snapshot
        chosen = select_nodes(snapshot, list(self.nodes), self.selector)
        if self.sample and self.sample < len(chosen):
            random = np.random.Generator(np.random.PCG64(self.seed))
            chosen = np.sort(random.choice(chosen, self.sample, replace=False))
        return snapshot.select(chosen)


class Cluster:
    """Hold the snapshot to ask: in memory, or a columnar file of which a bounded part is read at a time."""

    def __init__(self, snapshot: Snapshot | None = None, file: SnapshotFile | None = None) -> None:
        self._snapshot = snapshot
        self._file = file
        self._cut: tuple[int, list[Snapshot]] | None = None

    @classmethod
    def open(
        cls, paths: list[str], *, strict: bool = False, shown: bool = False, faults: FaultLog | None = None
    ) -> Cluster:
        """Open paths as `load_snapshot` takes them. Raise `InvalidInput`."""
        if not paths:
            raise InvalidInput(
                "name a snapshot: JSON, a columnar file, - or http://NODE:PORT", subject="snapshot"
            )
        if len(paths) == 1 and is_snapshot_file(paths[0]):
            return cls(file=SnapshotFile(Path(paths[0])))
        faults = faults if faults is not None else FaultLog(strict=strict)
        return cls(load_shown(paths, strict=strict, shown=shown, faults=faults))

    @property
    def whole(self) -> Snapshot:
        """Return the whole snapshot in memory."""
        if self._snapshot is None and self._file is not None:
            self._snapshot = self._file.load()
        if self._snapshot is None:
            raise InvalidInput("the cluster has not been opened", subject="snapshot")
        return self._snapshot

    @property
    def overview(self) -> Snapshot:
        """Return the whole snapshot with columns that are read on demand and not kept."""
        if self._snapshot is None and self._file is not None:
            return self._file.load()
        return self.whole

    @property
    def pod_count(self) -> int:
        """Return the number of pods that count on a node, including pods not in memory."""
        if self._snapshot is None and self._file is not None:
            return self._file.pod_count
        return self.whole.placed

    @property
    def meta(self) -> dict[str, object]:
        if self._snapshot is not None:
            return self._snapshot.meta
        return dict(self._file.meta) if self._file else {}

    def shards(self, max_pods: int) -> Iterator[Snapshot]:
        """Yield consecutive node ranges of about `max_pods` pods.

        A snapshot in memory is split once for many questions, so that derived columns are computed once.
        """
        if self._snapshot is None and self._file is not None and self._file.pod_count > max_pods:
            yield from self._file.shards(max_pods)
            return
        if self._cut is None or self._cut[0] != max_pods:
            self._cut = (max_pods, _cut(self.whole, max_pods))
        yield from self._cut[1]


def _cut(snapshot: Snapshot, max_pods: int) -> list[Snapshot]:
    ranges = node_ranges(np.diff(snapshot.offsets), max_pods)
    return [snapshot.shard(first, last) for first, last in ranges] if len(ranges) > 1 else [snapshot]


def question(name: str) -> Question:
    found = QUESTIONS.get(name)
    if found is None:
        near = nearest(name, QUESTIONS)
        raise InvalidInput(f"expected one of {', '.join(QUESTIONS)}, got {name!r}{near}", subject="ask")
    return found


def ask(
    cluster: Cluster,
    name: str,
    parameters: msgspec.Struct,
    *,
    selection: NodeSelection | None = None,
    shard_pods: int = 0,
    dask: str = "",
    step: Step = silent,
) -> Answer:
    """Ask one question.

    `shard_pods` bounds the pods in memory. `dask` is a scheduler's address. `step` receives the fraction of
    the question answered by each step; the fractions add up to 1.0. Raise `InvalidInput` for invalid
    parameters or nodes.
    """
    asked = question(name)
    selection = selection or NodeSelection()
    if not asked.per_node:
        answer = joined([asked.ask(selection.of(cluster.whole), parameters)])
        step(1.0)
        return replace(answer, notes={**answer.notes, **_not_listed(cluster)})
    selected = Cluster(selection.of(cluster.whole)) if selection else cluster
    notes = asked.check(selected.overview, parameters)
    answer = _ask_shards(asked, selected, parameters, shard_pods, dask, step)
    return replace(answer, notes={**dict.fromkeys(notes, 0), **answer.notes, **_not_listed(cluster)})


def _not_listed(cluster: Cluster) -> dict[str, int]:
    """Return the note about kinds of objects that the API server did not list: an answer without them, such
    as a drain without budgets, may be too good.
    """
    faults = msgspec.convert(cluster.meta.get("faults") or {}, dict[str, int])
    kinds = [kind.removeprefix(NOT_LISTED) for kind in faults if kind.startswith(NOT_LISTED)]
    return {f"could not be listed, and count as none: {', '.join(kinds)}": 0} if kinds else {}


def compare(
    a: Cluster,
    b: Cluster,
    asked: Mapping[str, msgspec.Struct],
    *,
    selection: NodeSelection | None = None,
    step: Step = silent,
) -> Answer:
    """Compare two snapshots, and the answers of both to the questions `asked`, by name.

    The rows that differ between two answers have the question as their scenario.
    """
    selection = selection or NodeSelection()
    found = compare_snapshots(selection.of(a.whole), selection.of(b.whole))
    parts = [found]
    for name, parameters in asked.items():
        answers = [ask(one, name, parameters, selection=selection, step=step) for one in (a, b)]
        parts.append(difference(*answers).named(name))
    return replace(joined(parts), headline=found.headline)


def _ask_shards(
    asked: Question, selected: Cluster, parameters: msgspec.Struct, shard_pods: int, dask: str, step: Step
) -> Answer:
    pods = max(selected.pod_count, 1)

    def answered(shard_pods: int) -> None:
        step(shard_pods / pods)

    if dask:
        from engine.plan.on_dask import ask_on_dask

        return ask_on_dask(
            dask, asked.name, parameters, selected.shards(shard_pods or DASK_SHARD_PODS), answered
        )
    return joined(_in_turn(asked, parameters, selected.shards(shard_pods or SHARD_PODS), answered))


def _in_turn(
    asked: Question,
    parameters: msgspec.Struct,
    shards: Iterator[Snapshot],
    answered: Callable[[int], None],
) -> Iterator[Answer]:
    for shard in shards:
        yield asked.ask(shard, parameters)
        answered(shard.placed)
