from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

Integers: TypeAlias = "array[int] | NDArray[Any]"

def order_by_excess(
    usage: Integers,
    known: Integers,
    request: Integers,
    fraction: Integers | None,
    priority: Integers,
    above_zero: bool = False,
) -> array[int]: ...
def order_by_count(count: Integers, known: Integers, priority: Integers) -> array[int]: ...
def look_up(
    pods: Sequence[Any], usage: dict[str, Any], row_of: dict[str, int], name: str
) -> tuple[array[int], array[int], array[int]]: ...
