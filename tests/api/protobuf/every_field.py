"""A pod's document with every field of its messages, as the table of them lists these."""

from __future__ import annotations

from itertools import count
from typing import Any

from engine.api.protobuf.pod_fields import POD_MESSAGES

Object = dict[str, Any]


def messages() -> dict[str, list[tuple[int, str, str]]]:
    """Return the number, the name ('' if JSON has none) and the type of each field, by message."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for line in POD_MESSAGES.replace("\n  ", " ").splitlines():
        name, _, listed = line.partition(": ")
        fields = [text.split() for text in listed.split(", ")]
        found[name] = [(int(number), name[0] if name else "", kind) for number, *name, kind in fields]
    return found


class EveryField:
    """Make documents whose values differ from each other."""

    def __init__(self) -> None:
        self._known = messages()
        self._numbers = count(1)

    def document(self, message: str = "Pod") -> Object:
        made: Object = {}
        for _, name, kind in self._known[message]:
            if kind.startswith("!"):
                made |= self.document(kind[1:])
            else:
                made[name] = self._value(kind)
        return made

    def _value(self, kind: str) -> Any:
        inner = kind.strip("[]{}")
        if kind.startswith("["):
            return [self._value(inner) for _ in range(1 if inner in self._known else 2)]
        if kind.startswith("{"):
            return {f"key-{next(self._numbers)}": self._value(inner) for _ in range(2)}
        return self.document(inner) if inner in self._known else self._scalar(kind)

    def _scalar(self, kind: str) -> Any:
        number = next(self._numbers)
        if kind == "IntOrString":
            return number if number % 2 else f"port-{number}"
        if kind == "i":
            return number if number % 5 else -number
        return {
            "s": f"täxt-{number}",
            "b": True,
            "Time": f"2026-01-02T03:{number % 60:02}:05Z",
            "Quantity": f"{number}m",
            "FieldsV1": {f"f:{number}": {}},
        }[kind]
