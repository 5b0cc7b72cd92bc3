"""Prints a quantity as Go prints the kubelet's `resource.Quantity`, whose fields depend on the original text.

`0.5` and `500m` are the same amount but different structures: a number and a decimal scale if the text is
short enough, an arbitrary-precision number otherwise. Source: `resource.Quantity` of Kubernetes v1.36.
"""

from __future__ import annotations

import re
from functools import lru_cache

from engine.api.quantity import BINARY_SI, DECIMAL_EXPONENT, DECIMAL_SI, Quantity

_SHAPE = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?(.*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX = 2**63 - 1
_NANO, _MILLI = -9, -3
_DIGITS = 18
_WORD = 1 << 64


def printed_quantity(quantity: Quantity | None, *, milli: bool) -> str:
    """Print a quantity; with `milli` rounded up to thousandths, as resource amounts are.

    None and a defaulted zero print as an empty structure.
    """
    return _structure(0, 0, None, "", "") if quantity is None else _printed(quantity.written, milli)


@lru_cache(1024)
def _printed(text: str, milli: bool) -> str:
    # The pods of a node mostly have the same few amounts.
    if text == "0":
        return _structure(0, 0, None, "0", DECIMAL_SI)
    match = _SHAPE.fullmatch(text)
    assert match is not None
    sign, whole, fraction, suffix = match.groups(default="")
    whole = whole or "0"
    exponent, kind = _unit(suffix)
    fast = _short(whole, fraction, exponent, kind)
    if fast is None:
        return _long(sign, whole, fraction, exponent, kind, milli)
    value, scale = fast
    echoed = text if _echoed(whole + fraction, exponent, scale, kind) else ""
    if milli and scale < _MILLI:
        value, scale, echoed = -(-value // 10 ** (_MILLI - scale)), _MILLI, ""
    return _structure(-value if sign == "-" else value, scale, None, echoed, kind)


def _unit(suffix: str) -> tuple[int, str]:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], DECIMAL_SI
    if suffix in _BINARY:
        return _BINARY[suffix], BINARY_SI
    return int(suffix[1:]), DECIMAL_EXPONENT


def _short(whole: str, fraction: str, exponent: int, kind: str) -> tuple[int, int] | None:
    """Return the number and the decimal scale, or None if the number may not fit into 64 bits."""
    if kind == BINARY_SI:
        if fraction or 14 - len(whole) - exponent * 3 // 10 < 0:
            return None
        value, scale = int(whole) << exponent, 0
    else:
        if len(whole) + len(fraction) > _DIGITS:
            return None
        value, scale = int(whole + fraction), exponent - len(fraction)
    return (value, scale) if scale >= _NANO and value <= _MAX else None


def _echoed(digits: str, exponent: int, scale: int, kind: str) -> bool:
    if kind == BINARY_SI:
        return exponent % 10 == 0 and int(digits) % 8 != 0
    return scale % 3 == 0 and not digits.endswith("000") and not digits.startswith("0")


def _long(sign: str, whole: str, fraction: str, exponent: int, kind: str, milli: bool) -> str:
    unscaled, places = int(whole + fraction), len(fraction)
    if kind == BINARY_SI:
        unscaled <<= exponent
    else:
        places -= exponent
    if unscaled:
        unscaled, places = _rounded(unscaled, places, -_NANO), -_NANO
    if kind == BINARY_SI and unscaled > _MAX * 10**places:
        unscaled, places = _MAX, 0
    if kind == BINARY_SI and 0 < unscaled < 10**places:
        kind = DECIMAL_SI
    if milli:
        unscaled, places = _rounded(unscaled, places, -_MILLI), -_MILLI
    return _structure(0, 0, (sign == "-" and unscaled != 0, unscaled, places), "", kind)


def _rounded(unscaled: int, places: int, wanted: int) -> int:
    """Round away from zero."""
    if places <= wanted:
        return unscaled * int(10 ** (wanted - places))
    return -(-unscaled // int(10 ** (places - wanted)))


def _structure(value: int, scale: int, decimal: tuple[bool, int, int] | None, text: str, kind: str) -> str:
    printed = "<nil>"
    if decimal is not None:
        negative, unscaled, places = decimal
        words = []
        while unscaled:
            unscaled, word = divmod(unscaled, _WORD)
            words.append(str(word))
        number = f"{{neg:(bool){str(negative).lower()} abs:(big.nat)[{' '.join(words)}]}}"
        printed = f"{{unscaled:(big.Int){number} scale:(inf.Scale){places}}}"
    return (
        f"{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} "
        f"d:(resource.infDecAmount){{Dec:(*inf.Dec){printed}}} "
        f"s:(string){text} Format:(resource.Format){kind}}}"
    )
