from typing import Any

SOURCE_ANNOTATION: str
MIRROR_ANNOTATION: str
DO_NOT_PREEMPT_ANNOTATION: str

class Filler:
    def __init__(self, columns: Any) -> None: ...
    def fill(
        self,
        pods: list[Any],
        start: int,
        row: int,
        node: int,
        ids: dict[str, int],
        row_of: dict[str, int],
    ) -> int: ...
    def clear(self, row: int) -> None: ...

def amounts(pod: Any) -> tuple[str, bool, bool, int, int, int, int] | None: ...
def requests(pod: Any, ids: dict[str, int], names: list[str]) -> dict[str, int] | None: ...
