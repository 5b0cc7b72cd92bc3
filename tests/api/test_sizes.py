"""Sizes as they stand in messages."""

from __future__ import annotations

import pytest

from engine.api.amounts.sizes import binary_size, quantity_size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
        ((1 << 30) - 1, "1024.0 MiB"),
    ],
)
def test_binary_size(amount: int, text: str) -> None:
    assert binary_size(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1 << 10, "1Ki"),
        (1536 << 20, "1.5Gi"),
        (250 << 20, "250Mi"),
        (-(3 << 30), "-3Gi"),
        (5000 << 40, "4.883Pi"),
        ((1 << 63) - 1, "8Ei"),
    ],
)
def test_quantity_size(amount: int, text: str) -> None:
    assert quantity_size(amount) == text
