"""Encodes pods as Kubernetes' protobuf, from the dicts that their JSON form is. Pure.

A kubelet's clients of the pods API decode these bytes with `v1.Pod.Unmarshal`. What a document has is
encoded, also a value that is the default, since a field may tell "empty" from "absent"; fields that no
message has are left out. The tables are read on the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from engine.api.encoding.json_text import encode_json
from engine.api.pod import Pod
from engine.api.protobuf.pod_fields import POD_MESSAGES
from engine.api.struct import to_builtins

_VARINT: Final = 0
_BYTES: Final = 2
_INT_KIND, _STRING_KIND = 0, 1
_WORD: Final = 1 << 64

_Encode = Callable[[Any], bytes]


class _Field(NamedTuple):
    """Describe a field: the tag before each of its values, and how a value is encoded."""

    tag: bytes
    shape: str
    encode: _Encode


class _Message(NamedTuple):
    """Describe a message: its fields by JSON name, and the messages that JSON has in it, with their tags."""

    fields: dict[str, _Field]
    inline: list[tuple[bytes, str]]


def encode_pod(pod: Pod) -> bytes:
    """Encode a pod with its status."""
    return encode_pod_document(to_builtins(pod))


def encode_pod_document(document: Mapping[str, Any]) -> bytes:
    """Encode a pod's JSON document, without `apiVersion` and `kind`, which the form does not have."""
    return _encoded("Pod", document)


def _encoded(name: str, document: Mapping[str, Any]) -> bytes:
    message = _messages()[name]
    out = bytearray()
    for key, value in document.items():
        field = message.fields.get(key)
        if field is None or value is None:
            continue
        tag, shape, encode = field
        if shape == "[":
            for each in value:
                out += tag
                out += encode(each)
        elif shape == "{":
            for each in sorted(value):
                out += tag
                out += _sized(_KEY + _text(each) + encode(value[each]))
        else:
            out += tag
            out += encode(value)
    for tag, inner in message.inline:
        content = _encoded(inner, document)
        if content:
            out += tag
            out += _sized(content)
    return bytes(out)


@lru_cache(maxsize=1)
def _messages() -> dict[str, _Message]:
    return dict(map(_message, POD_MESSAGES.replace("\n  ", " ").splitlines()))


def _message(line: str) -> tuple[str, _Message]:
    name, _, listed = line.partition(": ")
    message = _Message({}, [])
    for text in listed.split(", "):
        number, *key, kind = text.split()
        if kind.startswith("!"):
            message.inline.append((_tag(int(number), _BYTES), kind[1:]))
        else:
            message.fields[key[0]] = _field(int(number), kind)
    return name, message


def _field(number: int, kind: str) -> _Field:
    shape = kind[0] if kind[0] in "[{" else ""
    inner = kind.strip("[]{}")
    wire, encode = _KINDS.get(inner, (_BYTES, None))
    chosen = encode if encode is not None else _submessage(inner)
    if shape == "{":
        value_tag = _tag(2, wire)
        return _Field(_tag(number, _BYTES), shape, lambda value: value_tag + chosen(value))
    return _Field(_tag(number, wire), shape, chosen)


def _submessage(name: str) -> _Encode:
    return lambda value: _sized(_encoded(name, value))


def _varint(number: int) -> bytes:
    """Encode a number; a negative one as its complement to 64 bits."""
    number %= _WORD
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _text(text: str) -> bytes:
    return _sized(text.encode())


@lru_cache(maxsize=64)
def _time(text: str) -> bytes:
    """Encode a time in RFC 3339 as its seconds and nanoseconds; a pod has the same few times many times."""
    moment = datetime.fromisoformat(text)
    seconds = int(moment.replace(microsecond=0).timestamp())
    nanos = moment.microsecond * 1000
    return _sized(b"".join(_numbers((1, seconds), *([(2, nanos)] if nanos else []))))


def _quantity(value: str | float) -> bytes:
    return _sized(_tag(1, _BYTES) + _text(str(value)))


def _int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return _sized(b"".join(_numbers((1, _STRING_KIND))) + _tag(3, _BYTES) + _text(value))
    return _sized(b"".join(_numbers((1, _INT_KIND), (2, value))))


def _fields_v1(value: Any) -> bytes:
    return _sized(_tag(1, _BYTES) + _sized(encode_json(value)))


def _numbers(*fields: tuple[int, int]) -> Iterator[bytes]:
    for number, value in fields:
        yield _tag(number, _VARINT)
        yield _varint(value)


_KEY: Final = _tag(1, _BYTES)
_KINDS: Final[dict[str, tuple[int, _Encode]]] = {
    "s": (_BYTES, _text),
    "i": (_VARINT, _varint),
    "b": (_VARINT, lambda value: b"\1" if value else b"\0"),
    "Time": (_BYTES, _time),
    "Quantity": (_BYTES, _quantity),
    "IntOrString": (_BYTES, _int_or_string),
    "FieldsV1": (_BYTES, _fields_v1),
}
