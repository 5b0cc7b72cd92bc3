"""Contents of a kept file after an accident: damaged, truncated, mixed with another, or strange."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.devices import checkpoint
from engine.host.checksummed_file import add_checksum, strip_checksum

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1.5e308, "", "x", "\x00", "é" * 300, "a/../b", [], {}, [[]], [None], {"": {}},
)  # fmt: skip


def strange(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return a content other than `content`: damaged, or mixed with the contents of other kinds."""
    happens = chance.choice((_flipped, _cut, _mixed, _taken, _well_formed, _well_formed))
    return happens(content, others, chance)


def _flipped(content: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    data = bytearray(content)
    for at in chance.sample(range(8 * len(data)), chance.randint(1, 8)):
        data[at // 8] ^= 1 << at % 8
    return bytes(data)


def _cut(content: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    length = chance.randrange(len(content))
    return content[:length] + chance.choice((b"", bytes(len(content) - length), chance.randbytes(20)))


def _mixed(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(others)
    return content[: chance.randrange(len(content))] + other[chance.randrange(len(other)) :]


def _taken(_: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    return chance.choice(others)


def _well_formed(content: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    """Return changed content with a correct checksum."""
    try:
        plain = strip_checksum(content)
    except ValueError:
        return _checkpoint(content, chance)
    try:
        document = json.loads(plain)
    except ValueError:
        return add_checksum(chance.choice((b"", b"\n", b"\xff", b"17", chance.randbytes(30))))
    return add_checksum(json.dumps(_changed(document, chance)).encode())


def _checkpoint(content: bytes, chance: random.Random) -> bytes:
    """Return a changed checkpoint of devices with the kubelet's checksum.

    The checksum is wrong if the changed data cannot be encoded.
    """
    document = json.loads(content)
    if "Data" not in document:
        return json.dumps(_changed(document, chance)).encode()
    document["Data"] = _changed(document["Data"], chance)
    try:
        data = msgspec.convert(document["Data"], checkpoint.Checkpoint)
    except msgspec.ValidationError:
        return json.dumps(document).encode()
    return checkpoint.encode(data)


def _changed(value: Any, chance: random.Random) -> Any:
    """Return a copy of a document in which one value is replaced, removed or renamed."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(VALUES)
    changed = dict(value) if isinstance(value, dict) else list(value)
    key: Any = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    match chance.randrange(4):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, dict):
            changed[chance.choice(("", "x", f"{key}x"))] = changed.pop(key)
        case _:
            changed[key] = _changed(value[key], chance)
    return changed
