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
    """Write a number `values[row] / 10**form` under a name, `text` being `"name":`, for a form of 0 to 18.

    `OPEN` begins an object, `text` being `"name":{` or what else it begins with, and `CLOSE` ends it. The
    object is written only if it contains a number: a `MOMENT`, Unix seconds shown as RFC 3339 from 1970 to
    9999, is none, and an `ABSENT` value is left out.
    """

    text: bytes
    values: Values | None
    form: int
