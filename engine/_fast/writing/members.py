"""Write numbers into the objects of a JSON text in which only numbers change: exact, as integers with a
point.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engine._fast.writing._members_c import filled
from engine._fast.writing.exposition import Values

__all__ = ["CLOSE", "MOMENT", "OPEN", "MemberStep", "filled"]

OPEN: Final = -1
CLOSE: Final = -2
MOMENT: Final = -3


class MemberStep(NamedTuple):
    """A number under a name: one of `values` divided by `10**form`, from 0 to 18; `text` is `"name":`.

    `OPEN` begins an object, `text` being `"name":{` or what else it begins with, and `CLOSE` ends it. It is
    there only with a number in it: a `MOMENT`, Unix seconds shown as RFC 3339 from 1970 to 9999, is none, and
    an `ABSENT` value is not there."""

    text: bytes
    values: Values | None
    form: int
