"""Build answers: one row per (scenario, node, decision, object, reason, amount), as Arrow tables.

`amount` is an integer in `unit` (bytes, milli-CPU, pods, percent …). Rows follow the order of nodes in the
snapshot, so the same question gives the same table however its nodes were split into shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        ("scenario", _DICTIONARY),
        ("node", _DICTIONARY),
        ("decision", _DICTIONARY),
        ("object", pa.large_string()),
        ("reason", _DICTIONARY),
        ("amount", pa.int64()),
        ("unit", _DICTIONARY),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)
_NUMBERED: Final = SCHEMA.set(SCHEMA.get_field_index("node"), pa.field("node", pa.int32()))
"""Rows that hold the numbers of nodes instead of their names."""
RESOURCE_UNITS: Final = {
    "cpu": "milli-CPU",
    "memory": "bytes",
    "ephemeral-storage": "bytes",
    "pods": "pods",
}
"""Units of amounts of a resource; other resources are counted in pieces."""
USED_BEFORE: Final = "used-before"
USED_AFTER: Final = "used-after"
"""Decisions of rows that give a changed node's use of a resource (the object)."""


@dataclass(frozen=True)
class Answer:
    """Hold the rows, in `notes` the assumptions and limits, with the number of nodes or pods concerned (0:
    all), in `headline` the answer as a sentence, if the question has one, and in `compared` the answers whose
    differences the rows are.
    """

    table: pa.Table
    notes: Mapping[str, int] = field(default_factory=dict)
    headline: str = ""
    compared: tuple[ComparedAnswers, ...] = ()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def note_lines(self) -> list[str]:
        return [f"{text}: {count:,}" if count else text for text, count in self.notes.items()]

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame; texts that repeat are categories. Raise `InvalidInput`
        without pandas.
        """
        from engine.plan.answers.notebook import optional_module

        optional_module("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame. Raise `InvalidInput` without polars."""
        from engine.plan.answers.notebook import optional_module

        return optional_module("polars").from_arrow(self.table)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the headline, the first rows, the notes."""
        from engine.plan.answers.notebook import notebook_html

        return notebook_html(self.table, self.headline, self.note_lines)

    def named(self, scenario: str) -> Answer:
        """Return the same answer with another scenario name in every row."""
        names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(self), np.int32)), pa.array([scenario]))
        table = self.table.set_column(0, SCHEMA.field("scenario"), names)
        compared = tuple(replace(one, scenario=scenario) for one in self.compared)
        return replace(self, table=table, compared=compared)


@dataclass(frozen=True)
class ComparedAnswers:
    """Hold the answers to one question under A and under B, and the scenario of the rows that differ."""

    a: Answer
    b: Answer
    scenario: str = ""


def joined(answers: Iterable[Answer]) -> Answer:
    """Concatenate answers; equal notes appear once. The headline of a single answer stays."""
    tables, notes = [SCHEMA.empty_table()], dict[str, int]()
    headlines, compared = list[str](), list[ComparedAnswers]()
    for answer in answers:
        compared += answer.compared
        tables.append(answer.table)
        headlines.append(answer.headline)
        for text, count in answer.notes.items():
            notes[text] = notes.get(text, 0) + count
    headline = headlines[0] if len(headlines) == 1 else ""
    return Answer(canonical(pa.concat_tables(tables)), notes, headline, tuple(compared))


def canonical(table: pa.Table) -> pa.Table:
    """Return the same rows with dictionaries in order of first appearance, however the table was
    assembled.
    """
    table = table.unify_dictionaries().combine_chunks()
    columns = []
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type) and table.num_rows:
            array = column.combine_chunks()
            array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
            codes = array.indices.dictionary_encode()
            column = pa.DictionaryArray.from_arrays(codes.indices, array.dictionary.take(codes.dictionary))
        columns.append(column)
    return pa.table(columns, schema=table.schema) if table.num_rows else SCHEMA.empty_table()


def no_labels(rows: NDArray[np.int64]) -> pa.Array:
    """Return no pod names, for answers without pods."""
    return pa.nulls(len(rows), pa.large_string())


class AnswerPodRows(NamedTuple):
    """Hold rows of some pods of one node: their rows in the snapshot, a reason key each, and an amount each.

    int64[n] each.
    """

    pods: NDArray[np.int64]
    reasons: NDArray[np.int64]
    amounts: NDArray[np.int64]


@dataclass
class Rows:
    """Collect rows one by one or in blocks; `node` is a row number of the snapshot.

    `pod_labels` returns the names of pods. `pod_reason` returns the text of a reason from the row and key
    given to `add_pods`.
    """

    node_names: Sequence[str]
    pod_labels: Callable[[NDArray[np.int64]], pa.Array] = no_labels
    pod_reason: Callable[[int], str] = str
    notes: dict[str, int] = field(default_factory=dict)
    _lists: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], [], [], []))
    _counts: list[int] = field(default_factory=list)
    """Number of rows per entry of the lists; only entries of `_pods` have other than one."""
    _pods: list[AnswerPodRows] = field(default_factory=list)
    _tables: list[pa.Table] = field(default_factory=list)

    def add(self, node: int, decision: str, object: str, reason: str, amount: int, unit: str) -> None:
        self._add(node, decision, object, reason, amount, unit, 1)

    def add_pods(self, node: int, decision: str, pods: AnswerPodRows, unit: str) -> None:
        """Add a row for each of these pods of one node."""
        self._add(node, decision, None, None, 0, unit, len(pods.pods))
        self._pods.append(pods)

    def _add(
        self,
        node: int,
        decision: str,
        object: str | None,
        reason: str | None,
        amount: int,
        unit: str,
        count: int,
    ) -> None:
        for values, value in zip(self._lists, (node, decision, object, reason, amount, unit), strict=True):
            values.append(value)
        self._counts.append(count)

    def add_use(self, node: int, resource: str, before: int, after: int, unit: str) -> None:
        """Add a node's use of a resource before and after the decision."""
        self.add(node, USED_BEFORE, resource, "", before, unit)
        self.add(node, USED_AFTER, resource, "", after, unit)

    def note(self, text: str, count: int = 0) -> None:
        """Note an assumption of the answer, and how many nodes or pods it concerns; counts of
        shards are added.
        """
        self.notes[text] = self.notes.get(text, 0) + count

    def block(
        self,
        node: NDArray[np.integer[Any]],
        decision: pa.Array | str,
        object: pa.Array | str,
        reason: pa.Array | str,
        amount: NDArray[np.integer[Any]],
        unit: pa.Array | str,
    ) -> None:
        """Add many rows at once; texts are one for all, or an Arrow string or dictionary array."""
        self._flush()
        count = len(node)
        self._tables.append(
            pa.table(
                {
                    "scenario": _repeated("", count),
                    "node": _numbers(node, pa.int32()),
                    "decision": _texts(decision, count),
                    "object": pa.repeat(pa.scalar(object, pa.large_string()), count)
                    if isinstance(object, str)
                    else object.cast(pa.large_string()),
                    "reason": _texts(reason, count),
                    "amount": _numbers(amount, pa.int64()),
                    "unit": _texts(unit, count),
                },
                _NUMBERED,
            )
        )

    def _flush(self) -> None:
        node, decision, object, reason, amount, unit = self._lists
        if not node:
            return
        self._lists = ([], [], [], [], [], [])
        entry = np.repeat(np.arange(len(node)), self._counts)
        amounts = np.array(amount, np.int64)[entry]
        objects = pa.array(object, pa.large_string())
        reasons = pa.array(reason, pa.string()).dictionary_encode()
        if self._pods:
            of_pods = objects.is_null().to_numpy(zero_copy_only=False)[entry]
            pods, keys, freed = (np.concatenate(column) for column in zip(*self._pods, strict=True))
            amounts[of_pods] = freed
            objects = pc.replace_with_mask(
                objects.take(pa.array(entry)), pa.array(of_pods), self.pod_labels(pods)
            )
            reasons = self._with_pod_reasons(reasons, entry, of_pods, keys)
        self._counts, self._pods = [], []
        self._tables.append(
            pa.table(
                {
                    "scenario": _repeated("", len(entry)),
                    "node": _numbers(np.array(node, np.int32)[entry], pa.int32()),
                    "decision": _repeated_each(decision, entry),
                    "object": objects,
                    "reason": reasons,
                    "amount": _numbers(amounts, pa.int64()),
                    "unit": _repeated_each(unit, entry),
                },
                _NUMBERED,
            )
        )

    def _with_pod_reasons(
        self,
        reasons: pa.DictionaryArray,
        entry: NDArray[np.int64],
        of_pods: NDArray[np.bool_],
        keys: NDArray[np.int64],
    ) -> pa.DictionaryArray:
        """Return the reasons of the entries; a pod's row gets the text of its key."""
        own = reasons.indices.fill_null(0).to_numpy()
        found = _numbers(keys, pa.int64()).dictionary_encode()
        codes = own[entry]
        codes[of_pods] = found.indices.to_numpy() + len(reasons.dictionary)
        texts = [*reasons.dictionary.to_pylist(), *map(self.pod_reason, found.dictionary.to_pylist())]
        return pa.DictionaryArray.from_arrays(_numbers(codes, pa.int32()), pa.array(texts, pa.string()))

    def answer(self, *, sort: bool = False) -> Answer:
        """Return all rows; with `sort` by node, keeping the order within one."""
        self._flush()
        tables = [_NUMBERED.empty_table(), *self._tables]
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        if sort and table.num_rows:
            order = np.argsort(table["node"].to_numpy(), kind="stable")
            table = table.take(pa.array(order)).combine_chunks()
        named = self._named(table["node"].to_numpy())
        table = table.set_column(SCHEMA.get_field_index("node"), SCHEMA.field("node"), named)
        return Answer(table, dict(self.notes))

    def _named(self, node: NDArray[np.integer[Any]]) -> pa.DictionaryArray:
        """Return the names of nodes. A few rows do not carry the names of all nodes."""
        names = self.node_names
        if len(node) < len(names):
            used = np.zeros(len(names), bool)
            used[node] = True
            node = (np.cumsum(used) - 1)[node]
            names = [names[number] for number in np.flatnonzero(used).tolist()]
        return pa.DictionaryArray.from_arrays(_numbers(node, pa.int32()), pa.array(names, pa.string()))


def _numbers(values: NDArray[np.integer[Any]], kind: Any) -> pa.Array:
    """Return an Arrow array over NumPy's memory. (`pa.array` looks for pandas on every call: 0.1 ms.)"""
    dtype = np.int32 if kind == pa.int32() else np.int64
    contiguous = np.ascontiguousarray(values, dtype)
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)])


def _repeated_each(texts: Sequence[str], entry: NDArray[np.int64]) -> pa.DictionaryArray:
    """Return `texts[entry]`."""
    coded = pa.array(texts, pa.string()).dictionary_encode()
    codes = coded.indices.to_numpy()[entry]
    return pa.DictionaryArray.from_arrays(_numbers(codes, pa.int32()), coded.dictionary)


@lru_cache(maxsize=4096)
def _dictionary(texts: tuple[str, ...]) -> pa.Array:
    return pa.array(texts, pa.string())


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        _numbers(np.zeros(count, np.int32), pa.int32()), _dictionary((text,))
    )


def _texts(value: pa.Array | str, count: int) -> pa.Array:
    if isinstance(value, str):
        return _repeated(value, count)
    return value if pa.types.is_dictionary(value.type) else value.dictionary_encode()


def coded(codes: NDArray[np.integer[Any]], texts: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary array of `texts[codes]`."""
    return pa.DictionaryArray.from_arrays(_numbers(codes, pa.int32()), _dictionary(tuple(texts)))
