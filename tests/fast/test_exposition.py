"""Prometheus' text: compiled and twin write the same bytes, exact to the last digit."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pytest

from engine._fast import _exposition_c, _exposition_py
from engine._fast.exposition import ABSENT, Series

FORMS = pytest.mark.parametrize("form", [_exposition_c, _exposition_py])
LARGEST = (1 << 63) - 1


@FORMS
def test_lines_and_headings(form):
    labels = [b'a="1"', b'a="2"', b'a="3"']
    values = np.array([2_500_000_000, ABSENT, -1], np.int64)
    nothing = np.full(3, ABSENT, np.int64)
    text = form.exposition(
        [
            Series(b"# x\n", b'x{b="c",', labels, values, 9),
            Series(b"# gone\n", b"gone{", labels, nothing),
            Series(b"# y\n", b"y{", [b""], np.array([0])),
        ]
    )
    assert text == b'# x\nx{b="c",a="1"} 2.5\nx{b="c",a="3"} -0.000000001\n# y\ny{} 0\n'
    assert form.exposition([]) == b""


@FORMS
@pytest.mark.parametrize("point", [0, 3, 6, 9, 18])
def test_numbers_are_exact(form, point):
    chance = random.Random(point)
    values = [0, 1, -1, 10, 10**18, LARGEST, -LARGEST] + [
        chance.choice((1, -1)) * chance.getrandbits(chance.randrange(1, 63)) for _ in range(500)
    ]
    text = form.exposition([Series(b"", b"x{", [b""] * len(values), np.array(values), point)])
    shown = [line.partition(b"} ")[2].decode() for line in text.splitlines()]
    assert [Decimal(number).scaleb(point) for number in shown] == values
    assert not [number for number in shown if "." in number and number.endswith(("0", "."))]


@FORMS
@pytest.mark.parametrize(("labels", "point"), [([b""], 0), ([b""] * 2, 19), ([b""] * 2, -1)])
def test_what_does_not_fit_is_refused(form, labels, point):
    with pytest.raises(ValueError, match="labels, 2 values"):
        form.exposition([Series(b"", b"x{", labels, np.array([1, 2]), point)])
