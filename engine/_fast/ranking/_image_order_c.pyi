from typing import Any

from engine._fast.ranking._image_order_py import Column, Marks

def spare(
    live: Column,
    in_use: Column,
    pinned: Column,
    last_used: Column,
    first_detected: Column,
    now: float,
    min_age: float,
) -> bytearray: ...
def disused(
    live: Column, in_use: Column, pinned: Column, last_used: Column, now: float, max_age: float
) -> bytearray: ...
def order_and_cut(
    primary: Column, secondary: Column, size: Column, eligible: Column, target: int
) -> tuple[list[int], int]: ...
def match(
    index: dict[str, int],
    names: list[str],
    items: list[Any],
    known: list[Any],
    marks: Marks,
) -> list[int]: ...
def mark(index: dict[str, int], names: list[str], marks: Marks) -> list[str]: ...
