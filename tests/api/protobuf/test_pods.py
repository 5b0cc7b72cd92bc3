"""Pods as Kubernetes' protobuf, read by protobuf's own library with descriptors of the same messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from engine.api.pod import Pod
from engine.api.protobuf.pods import encode_pod, encode_pod_document
from engine.api.struct import decode_hook
from engine.api.timestamps import rfc3339
from tests.api.protobuf.every_field import EveryField, messages
from tests.node_rig import container

Object = dict[str, Any]
SPECIAL = {
    "Time": [(1, "seconds", "i"), (2, "nanos", "i")],
    "Quantity": [(1, "string", "s")],
    "IntOrString": [(1, "type", "i"), (2, "intVal", "i"), (3, "strVal", "s")],
    "FieldsV1": [(1, "Raw", "s")],
}
INLINE = "inline"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"s": _FIELD.TYPE_STRING, "i": _FIELD.TYPE_INT64, "b": _FIELD.TYPE_BOOL}


def field(number: int, name: str, kind: str, label: Any) -> descriptor_pb2.FieldDescriptorProto:
    if kind in _SCALARS:
        return _FIELD(name=name, number=number, label=label, type=_SCALARS[kind])
    return _FIELD(name=name, number=number, label=label, type=_FIELD.TYPE_MESSAGE, type_name=f".k.{kind}")


@pytest.fixture(scope="module")
def pod_class() -> type[Message]:
    """Return a class of protobuf's library for a Pod. A message without a name is `inline`, and a map
    is a list of keys and values."""
    file = descriptor_pb2.FileDescriptorProto(name="k.proto", package="k", syntax="proto2")
    for message, fields in (messages() | SPECIAL).items():
        described = file.message_type.add(name=message)
        for number, name, kind in fields:
            inner = kind.strip("[]{}!")
            label = _FIELD.LABEL_REPEATED if kind[0] in "[{" else _FIELD.LABEL_OPTIONAL
            if kind.startswith("{"):
                entry = f"{message}_{name}"
                described.field.append(field(number, name, entry, label))
                added = file.message_type.add(name=entry)
                added.field.append(field(1, "key", "s", _FIELD.LABEL_OPTIONAL))
                added.field.append(field(2, "value", inner, _FIELD.LABEL_OPTIONAL))
            else:
                described.field.append(field(number, name or INLINE, inner, label))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("k.Pod"))


def shown(message: Any) -> Any:
    """Return the JSON document that a message is the form of."""
    name = message.DESCRIPTOR.name
    if name == "Time":
        return rfc3339(message.seconds)
    if name == "Quantity":
        return message.string
    if name == "IntOrString":
        return message.strVal if message.type else message.intVal
    if name == "FieldsV1":
        return json.loads(message.Raw)
    document: Object = {}
    for described, value in message.ListFields():
        is_message = described.message_type is not None
        if described.name == INLINE:
            document |= shown(value)
        elif not described.is_repeated:
            document[described.name] = shown(value) if is_message else value
        elif is_message and described.message_type.name.endswith(f"_{described.name}"):
            pairs = [(each.key, each.value) for each in value]
            document[described.name] = {k: v if isinstance(v, str) else shown(v) for k, v in pairs}
        else:
            document[described.name] = [shown(each) if is_message else each for each in value]
    return document


def unknown_fields(message: Message) -> int:
    inner = [value for described, value in message.ListFields() if described.message_type is not None]
    each = [m for value in inner for m in ([value] if isinstance(value, Message) else value)]
    return len(UnknownFieldSet(message)) + sum(map(unknown_fields, each))


def test_every_field_of_a_pod_is_encoded(pod_class: type[Message]) -> None:
    document = EveryField().document()
    message = pod_class.FromString(encode_pod_document(document))
    assert shown(message) == document
    assert unknown_fields(message) == 0


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"spec": {"hostNetwork": False, "runtimeClassName": "", "terminationGracePeriodSeconds": 0}},
        {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"spec": {"tolerations": [{}, {"tolerationSeconds": -1}]}},
        {"metadata": {"labels": {"": "", "b": "ü"}, "creationTimestamp": "1970-01-01T00:00:00Z"}},
        {"metadata": {"creationTimestamp": "1969-12-31T23:59:59Z"}},
    ],
)
def test_what_is_empty_is_not_what_is_absent(pod_class: type[Message], document: Object) -> None:
    assert shown(pod_class.FromString(encode_pod_document(document))) == document


def test_what_no_message_has_is_left_out(pod_class: type[Message]) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "new": 1, "metadata": {"name": "p", "labels": None}}
    assert shown(pod_class.FromString(encode_pod_document(document))) == {"metadata": {"name": "p"}}


def test_a_map_has_one_form(pod_class: type[Message]) -> None:
    forms = [
        {"metadata": {"labels": dict(pairs)}}
        for pairs in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    ]
    assert encode_pod_document(forms[0]) == encode_pod_document(forms[1])


def test_a_fraction_of_a_second_is_kept(pod_class: type[Message]) -> None:
    times = {"creationTimestamp": "2026-01-02T03:04:05.000007Z"}
    message: Any = pod_class.FromString(encode_pod_document({"metadata": times}))
    assert message.metadata.creationTimestamp.nanos == 7000


def test_a_pod_of_the_node_is_encoded_as_its_document(pod_class: type[Message]) -> None:
    limits = {"cpu": "1500m", "memory": "1Gi"}
    spec = {"containers": [container(resources={"limits": limits})], "terminationGracePeriodSeconds": 5}
    document = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
    found = shown(pod_class.FromString(encode_pod(msgspec.convert(document, Pod, dec_hook=decode_hook))))
    assert found["metadata"] == document["metadata"]
    assert found["spec"]["containers"][0]["resources"]["limits"] == limits
