"""Compare one question under A and under B: rows in only one answer, and changes of amounts."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from engine.plan.answers.answer import SCHEMA, Answer, ComparedAnswers

_KEYS = ("scenario", "node", "decision", "object", "unit")


def difference(a: Answer, b: Answer) -> Answer:
    """Return the rows that differ.

    `only-a:D` and `only-b:D` mark a decision D about an object in one answer only. `changed:D` marks one in
    both answers, with the amount of B minus that of A and both reasons. Equal rows are left out; the notes
    give their number.
    """
    left, right = _indexed(a), _indexed(b)
    rows: list[tuple[str, str, str, str, str, int, str]] = []
    same = 0
    for key in [*left, *(key for key in right if key not in left)]:
        scenario, node, decision, object, unit, _ = key
        mine, theirs = left.get(key), right.get(key)
        if mine is None and theirs is not None:
            rows.append((scenario, node, f"only-b:{decision}", object, theirs[1], theirs[0], unit))
        elif theirs is None and mine is not None:
            rows.append((scenario, node, f"only-a:{decision}", object, mine[1], mine[0], unit))
        elif mine is not None and theirs is not None:
            if mine == theirs:
                same += 1
                continue
            reason = mine[1] if mine[1] == theirs[1] else f"{mine[1]} → {theirs[1]}"
            rows.append((scenario, node, f"changed:{decision}", object, reason, theirs[0] - mine[0], unit))
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    table = pa.table(
        {field.name: _column(values, field.type) for field, values in zip(SCHEMA, columns, strict=True)},
        SCHEMA,
    )
    notes = {f"A: {text}": count for text, count in a.notes.items()}
    notes |= {f"B: {text}": count for text, count in b.notes.items()}
    notes["rows that are the same under both"] = same
    return Answer(table, notes, compared=(ComparedAnswers(a, b),))


def _column(values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


def _indexed(answer: Answer) -> dict[tuple[str, str, str, str, str, int], tuple[int, str]]:
    """Index amounts and reasons by scenario, node, decision, object, unit and number of earlier
    occurrences.
    """
    columns = [answer.table[name].to_pylist() for name in (*_KEYS, "amount", "reason")]
    seen: Counter[tuple[str, ...]] = Counter()
    found = {}
    for *key, amount, reason in zip(*columns, strict=True):
        name = tuple(key)
        found[(*name, seen[name])] = (amount, reason)
        seen[name] += 1
    return found
