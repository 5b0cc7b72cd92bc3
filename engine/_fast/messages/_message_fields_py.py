"""State the rule of picking fields out of a runtime's list: through the protobuf library.

The input is a message of `engine.wire.cri_v1_pb2` whose field 1 is the list, and columns of its items by
name: `id`, `metadata.name` (inside a message), `labels[key]` (an entry of a map), `repo_tags` (a list of
texts), `linux.containers` (a list of messages, each as its bytes) and the empty name for the whole item. A
missing field is empty, 0 or False, as in protobuf. `cpu.timestamp?` is a 64-bit number for which the
presence of its message `cpu` matters: -2**63 if that is missing, and never more than 2**63 - 1; such a
column is an array and not a list.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

TEXT, TEXTS, ENTRY, WHOLE, INT64, UINT64, INT32, UINT32, FLAG, MESSAGES, HELD_INT64, HELD_UINT64 = range(
    1, 13
)
MOST_COLUMNS: Final = 16
_LARGEST: Final = 2**63 - 1

_KINDS: Final = {
    "TYPE_STRING": TEXT,
    "TYPE_INT64": INT64,
    "TYPE_UINT64": UINT64,
    "TYPE_ENUM": INT32,
    "TYPE_UINT32": UINT32,
    "TYPE_BOOL": FLAG,
}
_LISTS: Final = {"TYPE_STRING": TEXTS, "TYPE_MESSAGE": MESSAGES}
_HELD: Final = {"TYPE_INT64": HELD_INT64, "TYPE_UINT64": HELD_UINT64}


class Column(NamedTuple):
    """Describe one column: its kind, the numbers of the fields that lead to it, and an entry's key."""

    kind: int
    path: tuple[int, ...]
    key: bytes = b""


def resolve(message: str, columns: Sequence[str]) -> list[Column]:
    """Resolve columns to field numbers. Raise `ValueError` for an unknown or repeated column."""
    from engine.wire import cri_v1_pb2

    if len(columns) > MOST_COLUMNS or len({name.removesuffix("?") for name in columns}) < len(columns):
        raise ValueError(
            f"{len(columns)} columns, at most {MOST_COLUMNS} and each once: {', '.join(columns)}"
        )
    items = cri_v1_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_number[1].message_type
    return [_column(items, name) for name in columns]


def _column(items: Any, name: str) -> Column:
    if not name:
        return Column(WHOLE, ())
    whole, held = name.removesuffix("?"), name.endswith("?")
    path, key = whole.removesuffix("]").split("[") if whole.endswith("]") else (whole, "")
    numbers = []
    holder, field = items, None
    for part in path.split("."):
        field = holder.fields_by_name.get(part) if holder is not None else None
        if field is None:
            raise ValueError(f"{items.name} has no {name}")
        numbers.append(field.number)
        holder = field.message_type
    assert field is not None
    if key and not held:
        return Column(ENTRY, tuple(numbers), key.encode())
    names = {value: kind for kind, value in vars(type(field)).items() if kind.startswith("TYPE_")}
    kinds = _HELD if held else _LISTS if field.is_repeated else _KINDS
    kind = kinds.get(names[field.type])
    if kind is None or (held and (field.is_repeated or len(numbers) == 1)):
        raise ValueError(f"{items.name}.{name} has a type that cannot be picked")
    return Column(kind, tuple(numbers))


class Picker:
    """Read `columns` of the items of a `message`. Raise `ValueError` for an unknown column."""

    def __init__(self, message: str, columns: Sequence[str]) -> None:
        from engine.wire import cri_v1_pb2

        kinds = resolve(message, columns)
        self._single = all(column.kind not in _NOT_SINGLE for column in kinds)
        self._message = message
        self._type = getattr(cri_v1_pb2, message)
        items = self._type.DESCRIPTOR.fields_by_number[1]
        self._list = items.name
        self._item = getattr(cri_v1_pb2, items.message_type.name)
        self._readers = [_reader(name, column) for name, column in zip(columns, kinds, strict=True)]
        self._made = [_array if column.kind in _HELD.values() else list for column in kinds]

    def pick(self, message: bytes) -> tuple[Any, ...]:
        """Return a list or array for each column, with an entry for each item. Raise `ValueError` for invalid
        bytes.
        """
        return self._picked(lambda: getattr(self._type.FromString(message), self._list))

    def pick_items(self, items: list[bytes]) -> tuple[Any, ...]:
        """Return the same for items given as in the column of whole items."""
        return self._picked(lambda: [self._item.FromString(item) for item in items])

    def digest(self, message: bytes) -> int:
        """Return a digest that is equal for two lists whose columns have equal items, in any order.

        Different lists have equal digests with a probability of 2**-64. Raise `ValueError` for invalid
        bytes, and for columns that are lists, whole items or end in `?`.
        """
        if not self._single:
            raise ValueError("a digest needs columns that hold one text or number for each item")
        return sum(map(_digest, zip(*self.pick(message), strict=True))) & _WORD

    def _picked(self, decode: Callable[[], Any]) -> tuple[Any, ...]:
        from engine.wire import UNREADABLE

        try:
            items = decode()
        except (*UNREADABLE, RecursionError) as error:
            raise ValueError(f"not a {self._message}: {error}") from None
        readers = zip(self._made, self._readers, strict=True)
        return tuple(made(map(read, items)) for made, read in readers)


_NOT_SINGLE: Final = (TEXTS, MESSAGES, WHOLE, HELD_INT64, HELD_UINT64)
_WORD: Final = 2**64 - 1
_FIRST: Final = 0x9E3779B97F4A7C15  # an empty item counts too


def _digest(item: tuple[str | int, ...]) -> int:
    """Digest an item's values: texts as their length and eight bytes at a time, numbers as 64 bits. Rounds of
    multiplication are followed by MurmurHash3's finalizer for 64 bits, so that sums of digests distinguish
    items.
    """
    mixed = reduce(_mixed, chain.from_iterable(map(_words, item)), _FIRST)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        mixed = (mixed ^ mixed >> shift) * factor & _WORD
    return mixed ^ mixed >> 33


def _words(value: str | int) -> list[int]:
    if isinstance(value, int):
        return [value & _WORD]
    text = value.encode()
    return [len(text), *(int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8))]


def _mixed(mixed: int, word: int) -> int:
    mixed = (mixed ^ word) * _FIRST & _WORD
    return mixed ^ mixed >> 32


def _reader(name: str, column: Column) -> Callable[[Any], Any]:
    if column.kind == WHOLE:
        return lambda item: item.SerializeToString(deterministic=True)
    if column.kind == ENTRY:
        holder, key = attrgetter(name.partition("[")[0]), column.key.decode()
        return lambda item: holder(item).get(key, "")
    if column.kind in (HELD_INT64, HELD_UINT64):
        return _held(*name.removesuffix("?").split("."))
    value = attrgetter(name)
    if column.kind == MESSAGES:
        return lambda item: tuple(each.SerializeToString(deterministic=True) for each in value(item))
    return (lambda item: tuple(value(item))) if column.kind == TEXTS else value


def _array(values: Iterable[int]) -> array[int]:
    return array("q", values)


def _held(*path: str) -> Callable[[Any], int]:
    *holders, last = path

    def read(message: Any) -> int:
        for name in holders:
            if not message.HasField(name):
                return -_LARGEST - 1
            message = getattr(message, name)
        value: int = getattr(message, last)
        return min(value, _LARGEST)

    return read
