"""Prometheus' text: compiled and twin write the same bytes, exact to the last digit."""

from __future__ import annotations

import random
from array import array
from decimal import Decimal

import numpy as np
import pytest

from engine._fast.writing import _exposition_c
from engine._fast.writing.exposition import ABSENT, ColumnRows, Series, Texts, joined
from tests.fast.writing import exposition_twin

FORMS = pytest.mark.parametrize("form", [_exposition_c, exposition_twin])
LARGEST = (1 << 63) - 1


def blank(count: int) -> Texts:
    return joined([b""] * count)


@FORMS
def test_lines_and_headings(form):
    labels = joined([b'a="1"', b'a="22"', b'a="3"'])
    values = np.array([2_500_000_000, ABSENT, -1], np.int64)
    nothing = np.full(3, ABSENT, np.int64)
    text = form.exposition(
        [
            Series(b"# x\n", b'x{b="c",', labels, values, 9),
            Series(b"# gone\n", b"gone{", labels, nothing),
            Series(b"# none\n", b"none{", blank(0), nothing[:0]),
            Series(b"# p\n", b"p{", labels, np.array([4, 5]), picked=np.array([2, 1])),
            Series(b"# y\n", b"y{", blank(1), np.array([0]), 0, b" 1700"),
        ]
    )
    assert b"".join(text).splitlines() == [
        b"# x",
        b'x{b="c",a="1"} 2.5',
        b'x{b="c",a="3"} -0.000000001',
        b"# p",
        b'p{a="3"} 4',
        b'p{a="22"} 5',
        b"# y",
        b"y{} 0 1700",
    ]
    assert list(form.exposition([])) == []


@FORMS
@pytest.mark.parametrize("point", [0, 1, 3, 6, 9, 18])
def test_numbers_are_exact(form, point):
    chance = random.Random(point)
    values = [0, 1, -1, 10, 10**18, LARGEST, -LARGEST, *(10**k for k in range(19))]
    values += [chance.choice((1, -1)) * chance.getrandbits(chance.randrange(1, 63)) for _ in range(500)]
    whole = b"".join(form.exposition([Series(b"", b"x{", blank(len(values)), np.array(values), point)]))
    shown = [line.partition(b"} ")[2].decode() for line in whole.splitlines()]
    assert [Decimal(number).scaleb(point) for number in shown] == values
    assert not [number for number in shown if "." in number and number.endswith(("0", "."))]


@pytest.mark.parametrize("seed", range(5))
def test_both_forms_cut_the_same_pieces(seed):
    chance = random.Random(seed)
    series = []
    for _ in range(chance.randrange(1, 9)):
        count = chance.randrange(0, 60)
        labels = joined([bytes(chance.choices(b'ab="', k=chance.randrange(40))) for _ in range(count)])
        values = [chance.choice((ABSENT, 0, 7, LARGEST, -5 * 10**9)) for _ in range(count)]
        heading, ending = chance.choice((b"", b"# long heading\n")), chance.choice((b"", b" 17"))
        table = np.array([values, values], np.int64).T  # a column of a table is not contiguous
        picked = np.array(chance.choices(range(count), k=count)) if count and chance.random() < 0.5 else None
        shown = table[:, 1]
        if chance.random() < 0.5:
            rows = [chance.randrange(-1, count) for _ in range(count)]
            shown = ColumnRows(shown, array("q", rows))
        series.append(Series(heading, b"n{", labels, shown, chance.randrange(19), ending, picked))
    for piece in (1, 50, 1000, 1 << 17):
        pieces = list(exposition_twin.exposition(series, piece))
        assert list(_exposition_c.exposition(series, piece)) == pieces
        assert all(each.endswith(b"\n") for each in pieces)
        assert all(len(each) >= piece for each in pieces[:-1])


@FORMS
@pytest.mark.parametrize("picked", [[0], [0, 2], [-1, 0]])
def test_missing_members_are_not_selected(form, picked):
    with pytest.raises(ValueError, match=r"labels, 2 values|does not exist"):
        form.exposition([Series(b"", b"x{", blank(2), np.array([1, 2]), picked=np.array(picked))])


@FORMS
@pytest.mark.parametrize("rows", [[0, 2], [2, -1]])
def test_a_row_beyond_the_column_is_refused(form, rows):
    with pytest.raises(ValueError, match="a row is not one of 2"):
        form.exposition([Series(b"", b"x{", blank(2), ColumnRows(np.array([1, 2]), array("q", rows)))])


@FORMS
@pytest.mark.parametrize(
    ("labels", "point", "complaint"),
    [
        (blank(1), 0, "labels, 2 values"),
        (blank(2), 19, "labels, 2 values"),
        (blank(2), -1, "labels, 2 values"),
        (Texts(b"abc", np.array([2, 4])), 0, "must not decrease"),
        (Texts(b"abc", np.array([2, 1])), 0, "must not decrease"),
        (Texts(b"abc", np.array([-1, 1])), 0, "must not decrease"),
    ],
)
def test_values_out_of_range_are_refused(form, labels, point, complaint):
    with pytest.raises(ValueError, match=complaint):
        form.exposition([Series(b"", b"x{", labels, np.array([1, 2]), point)])
