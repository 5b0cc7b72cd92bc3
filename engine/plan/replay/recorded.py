"""Read from a record what its decisions were computed from: rows in order, and signals as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.record.blocks import MALFORMED, BlockBody, RecordRow, TornRecord, rows_of_body, whole_blocks
from engine.record.reader import moment, segment_content
from engine.record.writer import BEGAN, ENDED, LOST, STREAM, segments

SIGNALS: Final = "signals"
PODS: Final = "pods "
BEGINNINGS: Final = ("configuration", "state")
"""Names of the rows at which a replay can begin: an agent's start, and all that it remembered later."""
_STREAMS: Final = ("node", "pod", "pressure", "restart", "images", "decision", STREAM)
_DECISIONS: Final = ("admission", "preemption", "eviction", "image-gc", "restart")


@dataclass(frozen=True, slots=True)
class Run:
    """Hold measurements of one name with the same keys: `place` int64[n] is the place of each among all rows,
    `at` float64[n] its Unix time, and `values` int64[n, width].
    """

    name: str
    keys: Sequence[str]
    place: NDArray[np.int64]
    at: NDArray[np.float64]
    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.place)

    @property
    def available(self) -> NDArray[np.int64]:
        """Return int64[n, keys] of signals: what was available."""
        return self.values[:, 2::2]

    @property
    def capacity(self) -> NDArray[np.int64]:
        """Return int64[n, keys] of signals."""
        return self.values[:, 3::2]

    def since(self, place: int) -> Run:
        """Return the measurements from a place on."""
        at = int(self.place.searchsorted(place))
        return Run(self.name, self.keys, self.place[at:], self.at[at:], self.values[at:])

    def amounts(self, at: int, field: str) -> dict[str, int]:
        """Return one field of one measurement by key; values that were not known are left out."""
        _, *fields = self.name.split()
        if field not in fields:
            return {}
        column = self.values[at, fields.index(field) :: len(fields)].tolist()
        return {key: amount for key, amount in zip(self.keys, column, strict=True) if amount >= 0}


@dataclass(slots=True)
class NodeRecording:
    """Hold one record: `rows` with their places, and as runs the signals of each round of eviction (name
    `signals` and the layout of the disks) and what pods used. `complete` tells that the rows since the last
    beginning are all there.

    The first values of signals are the times of the round and of the reading, in monotonic microseconds.
    """

    name: str
    rows: list[tuple[int, RecordRow]] = field(default_factory=list)
    signals: list[Run] = field(default_factory=list)
    use_read: list[Callable[[], Run]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    complete: bool = False
    _use: list[Run] | None = None

    @property
    def use(self) -> list[Run]:
        """Return what pods used. It is decoded at the first call: most replays never ask."""
        if self._use is None:
            self._use = _joined([read() for read in self.use_read])
            self.use_read.clear()
        return self._use


class NoAgent(InvalidInput):
    """Raised for a record that no agent wrote, or of which nothing is left that says where it begins."""


def read_recorded(directory: Path) -> NodeRecording:
    """Read a record. Raise `InvalidInput` if the directory has none, and `NoAgent` for one without an agent's
    state.
    """
    found = segments(directory) if directory.is_dir() else []
    if not found:
        raise InvalidInput("has no record (files named *.krec)", subject=str(directory))
    node = NodeRecording(directory.name)
    place = 0
    for segment in found:
        try:
            for _, body in whole_blocks(segment_content(segment)):
                _take(node, body, place)
                place += len(body.times)
        except OSError as error:
            node.gaps.append(f"{segment.name}: cannot be read: {error.strerror}")
            node.complete = False
        except TornRecord as torn:
            node.gaps.append(f"{segment.name}: its last {torn.size} bytes are not a whole block")
            node.complete = False
        except MALFORMED as error:
            node.gaps.append(f"{segment.name}: a block that no recorder wrote, and all after it: {error}")
            node.complete = False
    node.signals = _joined(node.signals)
    node.gaps += _gaps(node.rows)
    first = next((place for place, row in node.rows if _is_beginning(row)), None)
    if first is None:
        raise NoAgent(
            "has no start of an agent or of a shadow that can be played: raise record.maxSize or "
            "record.maxAge",
            subject=str(directory),
        )
    _begin_at(node, first)
    configured = [row for _, row in node.rows if _is_beginning(row)]
    node.name = str(configured[-1].inputs.get("name") or directory.name)
    return node


def _is_beginning(row: RecordRow) -> bool:
    return row.stream == "node" and row.name in BEGINNINGS


def _begin_at(node: NodeRecording, first: int) -> None:
    """Leave out the rows before the first beginning, and those about the recorder."""
    node.rows = [(place, row) for place, row in node.rows if place >= first and row.stream != STREAM]
    node.signals = [run for run in (run.since(first) for run in node.signals) if len(run)]
    node.began = node.rows[0][1].time


def _take(node: NodeRecording, body: BlockBody, first: int) -> None:
    times = np.cumsum(np.array(body.times, np.int64)) / 1000
    node.began = float(times[0]) if not first else node.began
    node.ended = float(times[-1])
    texts = body.texts
    # The rows of each stream, name and text, without a step of the interpreter for each row.
    keys = np.array(body.columns[:3], np.int64)
    codes = (keys[0] * len(texts) + keys[1]) * len(texts) + keys[2]
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lengths = np.array(body.lengths, np.int64)
    starts, values = np.cumsum(lengths) - lengths, np.frombuffer(body.values, "<i8")
    wanted: list[NDArray[np.int64]] = []
    parted: dict[str, list[int]] = {"configuration": [], "state": [], LOST: []}
    for rows in np.split(order, begins[1:]):
        kind, name, text = (texts[code] for code in keys[:, rows[0]].tolist())
        if (kind == "pressure" and name.startswith(SIGNALS)) or (kind == "use" and name.startswith(PODS)):
            parts = text.split()
            width = 2 + 2 * len(parts) if kind == "pressure" else len(parts) * len(name.split()[1:])
            if not len(lengths) or (lengths[rows] != width).any():
                raise ValueError(f"{name} with another number of values than keys")
            read = partial(_run, name, parts, first, rows, times, starts, values, width)
            if kind == "pressure":
                node.signals.append(read())
            else:
                node.use_read.append(read)
        elif (kind == "node" and name in BEGINNINGS) or (kind == STREAM and name == LOST):
            parted[name] += rows.tolist()
        elif kind in _STREAMS and (kind != "decision" or name.partition(" ")[0] in _DECISIONS):
            wanted.append(rows)
    wanted.append(np.array(list(_parts(node, parted)), np.int64))
    places = np.sort(np.concatenate(wanted)).tolist()
    node.rows.extend((first + at, row) for at, row in rows_of_body(body, places))


def _run(
    name: str, keys: Sequence[str], first: int, rows: NDArray[np.int64], times: NDArray[np.float64],
    starts: NDArray[np.int64], values: NDArray[np.int64], width: int,
) -> Run:  # fmt: skip
    """Return the measurements of some rows of a block, which has `values` as differences, those of a row from
    `starts` on.
    """
    read = np.cumsum(values[starts[rows][:, None] + np.arange(width)], axis=0)
    return Run(name, keys, first + rows, times[rows], read)


def _parts(node: NodeRecording, parted: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Yield the rows at which a replay can begin, and those that report lost rows. Rows of state are long,
    and are left out where nothing is lost since the last beginning: the rows between say the same.
    """
    for at, name in sorted((at, name) for name, rows in parted.items() for at in rows):
        if name != "state" or not node.complete:
            yield at
        node.complete = name != LOST


def _gaps(rows: Sequence[tuple[int, RecordRow]]) -> Iterator[str]:
    """Yield in words what the recorders say that the record lacks."""
    closed = {place for place, row in rows if row.stream == STREAM and row.name == ENDED}
    for place, row in rows:
        if row.stream == STREAM and row.name == LOST:
            yield f"{moment(row.time)}: {row.text}"
        elif row.stream == STREAM and row.name == BEGAN and place and place - 1 not in closed:
            yield (
                f"{moment(row.time)}: the recorder before this one ended without closing the record: up to a "
                "second is lost"
            )


def _joined(runs: list[Run]) -> list[Run]:
    """Join runs with the same keys that follow each other."""
    found: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: int(run.place[0])):
        last = found[-1][-1] if found else None
        if last is not None and (last.name, last.keys) == (run.name, run.keys):
            found[-1].append(run)
        else:
            found.append([run])
    return [
        Run(
            some[0].name,
            some[0].keys,
            np.concatenate([one.place for one in some]),
            np.concatenate([one.at for one in some]),
            np.concatenate([one.values for one in some]),
        )
        for some in found
    ]
