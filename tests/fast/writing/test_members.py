"""JSON filled with numbers: compiled and twin write the same bytes, and it is JSON."""

from __future__ import annotations

import json
import random
from array import array
from datetime import UTC, datetime

import numpy as np
import pytest

from engine._fast.writing import _members_c
from engine._fast.writing.exposition import ABSENT, ColumnRows, Texts, joined
from engine._fast.writing.members import CLOSE, MOMENT, OPEN, MemberStep
from tests.fast.writing import members_twin

FORMS = pytest.mark.parametrize("form", [_members_c, members_twin])
LARGEST = (1 << 63) - 1


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def used(cpu: np.ndarray, stalled: np.ndarray, seen: np.ndarray) -> list[MemberStep]:
    """Return the steps of an object that holds another one, and of a number behind both."""
    return [
        MemberStep(b'"cpu":{', None, OPEN),
        MemberStep(b'"time":', seen, MOMENT),
        MemberStep(b'"used":', cpu, 0),
        MemberStep(b'"psi":{', None, OPEN),
        MemberStep(b'"avg":', stalled, 2),
        MemberStep(b"", None, CLOSE),
        MemberStep(b"", None, CLOSE),
        MemberStep(b'"processes":', cpu, 0),
    ]


def page(form, texts, forms, which, rows, piece=1 << 17) -> bytes:
    return b"".join(form.filled(joined(texts), forms, column(*which), column(*rows), piece))


@FORMS
def test_an_object_may_contain_a_number(form):
    steps = used(column(7, ABSENT, ABSENT), column(150, -5, ABSENT), column(0, 10**9, 5))
    texts = [b'[{"name":"a"', b'},{"name":"b"', b"},{", b"}]"]
    whole = page(form, texts, [steps], [0, 0, 0, -1], [0, 1, 2, 0])
    assert whole == (
        b'[{"name":"a","cpu":{"time":"1970-01-01T00:00:00Z","used":7,"psi":{"avg":1.5}},"processes":7'
        b'},{"name":"b","cpu":{"time":"2001-09-09T01:46:40Z","psi":{"avg":-0.05}}'
        b"},{}]"
    )
    assert json.loads(whole)[2] == {}


@FORMS
def test_a_single_sample_is_shown(form):
    moments = [MemberStep(b'"at":', column(ABSENT, 59, 3600), MOMENT)]
    whole = page(
        form, [b'[{"x":{', b'}},{"x":{', b'}},{"y":1', b"}]"], [moments], [0, 0, 0, -1], [0, 1, 2, 0]
    )
    assert json.loads(whole) == [
        {"x": {}},
        {"x": {"at": "1970-01-01T00:00:59Z"}},
        {"y": 1, "at": "1970-01-01T01:00:00Z"},
    ]


@FORMS
def test_timestamps_are_those_of_the_calendar(form):
    chance = random.Random(3)
    seconds = [
        0,
        951782400,
        951868799,
        4107542400,
        253402300799,
        *(chance.randrange(253402300799) for _ in range(500)),
    ]
    for year in (1972, 2000, 2100, 2400):
        for month in (1, 3):
            begin = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
            seconds += [begin - 1, begin]
    steps = [MemberStep(b"", column(*seconds), MOMENT)]
    texts = [b"\n"] * len(seconds)
    shown = page(form, texts, [steps], [0] * len(seconds), range(len(seconds))).decode().splitlines()[1:]
    wanted = [datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for second in seconds]
    assert [line.strip(',"') for line in shown] == wanted
    beyond = page(form, [b"{", b"{"], [[MemberStep(b"", column(-LARGEST, LARGEST), MOMENT)]], [0, 0], [0, 1])
    assert beyond == b'{"1970-01-01T00:00:00Z"{"9999-12-31T23:59:59Z"'


@pytest.mark.parametrize("seed", range(6))
def test_both_forms_cut_the_same_pieces(seed):
    chance = random.Random(seed)
    rows = 12

    def steps() -> list[MemberStep]:
        made, depth = [], 0
        for _ in range(chance.randrange(40)):
            kind = chance.choice((OPEN, CLOSE, MOMENT, 0, 2, 9))
            if kind == CLOSE and not depth:
                continue
            depth += (kind == OPEN) - (kind == CLOSE)
            table = np.array([[chance.choice((ABSENT, ABSENT, 0, 5, LARGEST, -7))] * 2 for _ in range(rows)])
            text = bytes(chance.choices(b'ab":', k=chance.randrange(9))) + b"{" * (kind == OPEN)
            values = ColumnRows(table[:, 0], array("q", [chance.randrange(-1, rows) for _ in range(rows)]))
            values = values if chance.random() < 0.5 else table[:, 0]
            made.append(MemberStep(text, None if kind in (OPEN, CLOSE) else values, kind))
        return made + [MemberStep(b"", None, CLOSE)] * depth

    forms = [steps() for _ in range(3)]
    count = 60
    texts = joined([bytes(chance.choices(b"xy{,", k=chance.randrange(6))) for _ in range(count)])
    which = np.array([chance.randrange(-1, 3) for _ in range(count)])
    picked = np.array([chance.randrange(rows) for _ in range(count)])
    for piece in (1, 40, 1 << 17):
        pieces = list(members_twin.filled(texts, forms, which, picked, piece))
        assert list(_members_c.filled(texts, forms, which, picked, piece)) == pieces
        assert all(len(each) >= piece for each in pieces[:-1])


NUMBER = MemberStep(b'"n":', column(1, 2), 0)


@FORMS
@pytest.mark.parametrize(
    ("texts", "steps", "which", "rows", "complaint"),
    [
        (joined([b"a"]), [NUMBER], [0, 0], [0, 0], "1 texts, 2 forms, 2 rows"),
        (Texts(b"ab", column(2, 1)), [NUMBER], [0, 0], [0, 0], "must not decrease"),
        (joined([b"a"]), [NUMBER], [1], [0], "form that does not exist"),
        (joined([b"a"]), [NUMBER], [-2], [0], "form that does not exist"),
        (joined([b"a"]), [NUMBER], [0], [2], "has 2 rows"),
        (joined([b"a"]), [NUMBER], [0], [-1], "has 2 rows"),
        (joined([b"a"]), [MemberStep(b"{", None, OPEN)], [0], [0], "open"),
        (joined([b"a"]), [MemberStep(b"", None, CLOSE)], [0], [0], "not a form"),
        (joined([b"a"]), [MemberStep(b"", column(1), 19)], [0], [0], "not a form"),
        (joined([b"a"]), [MemberStep(b"", None, 0)], [0], [0], "not a form"),
        (joined([b"a"]), [NUMBER] * 129, [0], [0], "129 steps"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(form, texts, steps, which, rows, complaint):
    with pytest.raises(ValueError, match=complaint):
        form.filled(texts, [steps], column(*which), column(*rows))
