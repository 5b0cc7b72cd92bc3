"""Sets of CPUs as integers, bit N for CPU N, and their text as the kernel and the kubelet write it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.api.errors import InvalidInput
from engine.api.quantity import decimal

MAX_CPU = 8191
"""The largest CPU number that Linux can be built for, less one."""


def parse(text: str, subject: str = "") -> int:
    """Return the set that a list like `0-3,8` names. Raise `InvalidInput` with the subject."""
    found = 0
    for part in text.split(",") if text else ():
        first, dash, last = part.strip().partition("-")
        start = decimal(first)
        end = decimal(last) if dash else start
        if start is None or end is None:
            raise InvalidInput(f"{part!r} is not a CPU or a range of CPUs like 0-3", subject=subject)
        if start > end or end > MAX_CPU:
            raise InvalidInput(f"{part!r} is not a range of CPUs between 0 and {MAX_CPU}", subject=subject)
        found |= (1 << end + 1) - (1 << start)
    return found


def text(cpus: int) -> str:
    """Return the set as a list of CPUs and ranges: `0-3,8`."""
    parts = []
    while cpus:
        start = (cpus & -cpus).bit_length() - 1
        run = cpus >> start
        # Adding one carries through the ones at the end: the bit where it stops is one past the run.
        length = (~run & run + 1).bit_length() - 1
        parts.append(str(start) if length == 1 else f"{start}-{start + length - 1}")
        cpus &= ~((1 << start + length) - (1 << start))
    return ",".join(parts)


def numbers(cpus: int) -> Iterator[int]:
    """Return the CPUs of a set in ascending order."""
    while cpus:
        yield (cpus & -cpus).bit_length() - 1
        cpus &= cpus - 1


def cpu_set(numbers: Iterable[int]) -> int:
    """Return the set of the given CPUs."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found
