"""Kubernetes resource quantities, exact.

A quantity is a whole number of nano-units with the suffix family it was written in. Anything finer
than one nano is rounded away from zero on parsing; a binary quantity is capped at ±(2^63 - 1).
Source: the API conventions for `resource.Quantity`; pinned by `tests/conformance` (quantity).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from engine.api.errors import InvalidInput

NANO: Final = 10**9
MILLI_IN_NANO: Final = 10**6
MAX_BINARY: Final = (2**63 - 1) * NANO
MAX_EXPONENT: Final = 999

MOST_DIGITS: Final = 18
"""The maximum number of digits of `decimal`, so that every number fits into 64 bits with its sign."""

_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)")
_LONGEST = 512
_KEPT: Final = 1024
"""Amounts that are kept to be shared: the pods of a node mostly have the same few."""
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
_BINARY_NAMES = {exponent: name for name, exponent in _BINARY.items()}

DECIMAL_SI: Final = "DecimalSI"
DECIMAL_EXPONENT: Final = "DecimalExponent"
BINARY_SI: Final = "BinarySI"


def decimal(text: str) -> int | None:
    """Return the number of up to MOST_DIGITS ASCII digits; None for any other text.

    `str.isdigit` accepts digits that `int` does not (`²`), `int` accepts those of other scripts (`٣`), and
    refuses texts of 5,000 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


class QuantityError(InvalidInput):
    """Raised for text that is not a quantity. `kind` is `format` (shape) or `suffix` (unknown unit)."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        what = "has an unknown suffix" if kind == "suffix" else "is not valid"
        super().__init__(f"quantity {text[:64]!r} {what}; write it like 500m, 2, 1.5Gi or 1e3")


class Quantity:
    """Hold an exact, immutable amount.

    Quantities are ordered and hashed by their amount only. `str()` gives the canonical text, or the parsed
    text where Kubernetes would echo it.
    """

    __slots__ = ("_text", "_written", "format", "nano")
    nano: int
    format: str
    _text: str | None
    _written: str | None

    def __init__(
        self,
        nano: int = 0,
        format: str = DECIMAL_SI,
        _text: str | None = None,
        _written: str | None = None,
    ) -> None:
        object.__setattr__(self, "nano", nano)
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "_text", _text)
        object.__setattr__(self, "_written", _written)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Quantity is immutable")

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read a quantity as Kubernetes does, lenient input (`m`, `.`, `+` are zero) included.

        Raises `QuantityError`.
        """
        return _parsed(text)

    @classmethod
    def from_value(cls, value: int, format: str = DECIMAL_SI) -> Quantity:
        """Make a quantity of a whole number of base units (bytes, cores, pieces)."""
        return cls(value * NANO, format)

    @classmethod
    def from_milli(cls, milli: int, format: str = DECIMAL_SI) -> Quantity:
        """Make a quantity of a number of thousandths, as for CPU."""
        return cls(milli * MILLI_IN_NANO, format)

    @property
    def value(self) -> int:
        """Return base units, rounded away from zero."""
        return _away_from_zero(self.nano, NANO)

    @property
    def milli(self) -> int:
        """Return thousandths, rounded away from zero."""
        return _away_from_zero(self.nano, MILLI_IN_NANO)

    def in_milli(self) -> Quantity:
        """Return the amount in whole thousandths, rounded away from zero; `written` stays what was parsed."""
        nano = self.milli * MILLI_IN_NANO
        return self if nano == self.nano else Quantity(nano, self.format, None, self.written)

    @property
    def written(self) -> str:
        """Return the text that was parsed, unchanged; `str()` of a computed quantity."""
        return self._written if self._written is not None else str(self)

    def canonical(self) -> str:
        """Return the canonical text, whatever was parsed."""
        if self.nano == 0:
            return "0"
        whole, rest = divmod(abs(self.nano), NANO)
        if self.format == BINARY_SI and rest == 0 and whole >= 1024:
            exponent = 0
            while whole % 1024 == 0 and exponent < 60:
                whole //= 1024
                exponent += 10
            text = f"{whole}{_BINARY_NAMES.get(exponent, '')}"
        else:
            text = self._canonical_decimal()
        return f"-{text}" if self.nano < 0 else text

    def _canonical_decimal(self) -> str:
        number, exponent = abs(self.nano), -9
        while number % 1000 == 0:
            number //= 1000
            exponent += 3
        if self.format == DECIMAL_EXPONENT:
            return f"{number}e{exponent}" if exponent else str(number)
        return f"{number}{_DECIMAL_NAMES.get(exponent, '')}"

    def __str__(self) -> str:
        text = self._text
        if text is None:
            # The pods of a node share few amounts, whose texts their statuses and records need many times.
            text = self.canonical()
            object.__setattr__(self, "_text", text)
        return text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.nano == other.nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Quantity) -> bool:
        return self.nano <= other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __bool__(self) -> bool:
        return self.nano != 0

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __reduce__(self) -> tuple[object, tuple[int, str, str | None, str | None]]:
        return (Quantity, (self.nano, self.format, self._text, self._written))


ZERO: Final = Quantity()


@lru_cache(_KEPT)
def _parsed(text: str) -> Quantity:
    match = _SHAPE.fullmatch(text) if len(text) <= _LONGEST else None
    if not text or match is None:
        raise QuantityError("format", text)
    sign, whole, fraction, suffix = match.groups(default="")
    base, exponent, family = _interpret(suffix, text)
    whole = whole.lstrip("0")
    digits = int(whole + fraction or "0")
    nano = _scale_to_nano(digits, len(fraction), base, exponent)
    if family == BINARY_SI:
        nano = min(nano, MAX_BINARY)
        if 0 < nano < NANO:
            family = DECIMAL_SI
    echoed = _is_echoed(digits, whole, fraction, base, exponent)
    return Quantity(-nano if sign == "-" else nano, family, text if echoed else None, text)


def _interpret(suffix: str, text: str) -> tuple[int, int, str]:
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], DECIMAL_SI
    if suffix in _BINARY:
        return 2, _BINARY[suffix], BINARY_SI
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match[1]) > 20 or int(match[1]) > MAX_EXPONENT:
        raise QuantityError("suffix", text)
    return 10, max(int(match[1]), -MAX_EXPONENT), DECIMAL_EXPONENT


def _scale_to_nano(digits: int, decimals: int, base: int, exponent: int) -> int:
    scaled = digits * NANO
    if base == 2:
        scaled <<= exponent
    elif exponent >= 0:
        scaled *= int(10**exponent)
    else:
        decimals -= exponent
    return -(-scaled // int(10**decimals))


def _is_echoed(digits: int, whole: str, fraction: str, base: int, exponent: int) -> bool:
    """Return whether Kubernetes keeps the text as written: short enough for its integer path, a unit that
    is a multiple of a thousand, and fewer than three factors of the base left to move into it."""
    if not whole:
        return False
    if base == 2:
        digits_left = 14 - len(whole) - exponent * 3 // 10
        return not fraction and digits_left >= 0 and digits % 8 != 0
    scale = exponent - len(fraction)
    fits = len(whole) + len(fraction) <= 18 and scale >= -9
    return fits and scale % 3 == 0 and digits % 1000 != 0


def _away_from_zero(number: int, unit: int) -> int:
    return -(-number // unit) if number >= 0 else number // unit
