"""Resource names as small integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.api.errors import InvalidInput
from engine.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, is_qualified_name

CPU_ID: Final = 0
MEMORY_ID: Final = 1
EPHEMERAL_STORAGE_ID: Final = 2
PODS_ID: Final = -1
"""Every pod counts as one; no column is kept for it."""

_FIRST = (CPU, MEMORY, EPHEMERAL_STORAGE)


class ResourceNames:
    """Intern resource names: cpu, memory and ephemeral-storage are 0, 1, 2, `pods` is -1, others get the next
    id when first seen. Ids never change and are never reused.
    """

    __slots__ = ("ids", "in_order")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.ids: dict[str, int] = {PODS: PODS_ID}
        self.in_order: list[str] = []
        for name in (*_FIRST, *names):
            self.intern(name)

    def __len__(self) -> int:
        """Return how many columns the ids need (`pods` has none)."""
        return len(self.in_order)

    def intern(self, name: str) -> int:
        """Return the id of a name, given on first sight. Raise `InvalidInput` if it can't be a resource."""
        found = self.ids.get(name)
        if found is not None:
            return found
        if not is_qualified_name(name):
            raise InvalidInput("not a resource name", subject=name[:64] or "''")
        self.ids[name] = len(self.in_order)
        self.in_order.append(name)
        return self.ids[name]

    def find(self, name: str) -> int | None:
        """Return the id of a name that was seen before, else None."""
        return self.ids.get(name)

    def name(self, id: int) -> str:
        return PODS if id == PODS_ID else self.in_order[id]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in id order."""
        return tuple(self.in_order)
