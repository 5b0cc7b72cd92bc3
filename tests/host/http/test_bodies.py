"""Read bodies of HTTP answers that end late, early, or not at all."""

from __future__ import annotations

import io
from http.client import IncompleteRead

import pytest

from engine.host.http.bodies import read_body


class Body(io.BytesIO):
    """Return at most `step` bytes for each read of a body."""

    def __init__(self, data: bytes, length: int | None, step: int) -> None:
        super().__init__(data)
        self.length, self.step = length, step

    def read1(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        return super().read1(min(size, self.step))


@pytest.mark.parametrize("length", [None, 10])
@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_body_is_read_whole(length: int | None, step: int) -> None:
    body = Body(b"0123456789", length, step)
    assert read_body(body, 10) == b"0123456789"


def test_no_more_is_read_than_the_length_says() -> None:
    """Stop at the length: the next bytes of the connection are another answer, or never come."""
    body = Body(b"0123456789next", 10, 4)
    assert read_body(body, 100) == b"0123456789"
    assert body.read() == b"next"


@pytest.mark.parametrize("length", [None, 1000])
def test_a_body_that_is_too_long_is_cut_after_one_byte_more(length: int | None) -> None:
    body = Body(bytes(1000), length, 7)
    assert len(read_body(body, 20)) == 21


def test_a_body_that_ends_early_is_no_answer() -> None:
    body = Body(b"01234", 10, 100)
    with pytest.raises(IncompleteRead):
        read_body(body, 100)
