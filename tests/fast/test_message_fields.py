"""Picked fields are those that the protobuf library reads, whatever the bytes."""

from __future__ import annotations

import itertools
from array import array

import pytest
from google.protobuf.internal import api_implementation
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.messages import _message_fields_c, _message_fields_py
from engine.wire import cri_v1_pb2 as cri

FORMS = pytest.mark.parametrize("form", [_message_fields_c, _message_fields_py], ids=["kernel", "twin"])
LISTS = {
    "ListContainersResponse": [
        "id", "pod_sandbox_id", "metadata.name", "metadata.attempt", "image.runtime_handler", "image_ref",
        "image_id", "state", "created_at", "labels[uid]", "labels[name]", "annotations[uid]",
    ],
    "ListImagesResponse": ["id", "repo_tags", "size", "repo_digests", "spec.runtime_handler", "pinned"],
    "ListPodSandboxResponse": ["id", "metadata.uid", "state", "labels[uid]", "labels[name]", "created_at"],
    "ListContainerStatsResponse": [
        "attributes.id", "attributes.labels[uid]", "cpu.usage_core_nano_seconds.value",
        "memory.working_set_bytes.value", "memory.timestamp", "writable_layer.used_bytes.value",
    ],
    "ListPodSandboxStatsResponse": [
        "attributes.metadata.uid", "linux.cpu.timestamp?", "linux.cpu.usage_nano_cores.value?",
        "linux.containers", "linux.process.process_count.value?",
    ],
}  # fmt: skip

texts = st.text(max_size=5)
maps = st.dictionaries(st.sampled_from(["uid", "name", "", "ö"]), texts, max_size=3)
metadata = st.builds(cri.ContainerMetadata, name=texts, attempt=st.integers(0, 2**32 - 1))
containers = st.builds(
    cri.Container, id=texts, metadata=metadata, image_ref=texts, state=st.integers(0, 3), labels=maps,
    image=st.builds(cri.ImageSpec, image=texts, runtime_handler=texts), annotations=maps,
    created_at=st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip
images = st.builds(
    cri.Image, id=texts, repo_tags=st.lists(texts, max_size=3), repo_digests=st.lists(texts, max_size=2),
    size=st.integers(0, 2**64 - 1), pinned=st.booleans(),
    spec=st.builds(cri.ImageSpec, runtime_handler=texts),
)  # fmt: skip
messages = st.one_of(
    st.builds(cri.ListContainersResponse, containers=st.lists(containers, max_size=4)),
    st.builds(cri.ListImagesResponse, images=st.lists(images, max_size=4)),
)


def picked(form, name, data):
    try:
        return form.Picker(name, LISTS[name]).pick(data)
    except ValueError as error:
        return str(error)


def assert_agreed(name, data):
    """Check that the kernel reads all that the library reads.

    If the library refuses a message, the kernel may read it: its fault may be in a field that no column
    needs.
    """
    twin, kernel = picked(_message_fields_py, name, data), picked(_message_fields_c, name, data)
    assert kernel == twin or (isinstance(kernel, tuple) and not isinstance(twin, tuple))


@settings(max_examples=100, deadline=None)
@given(messages)
def test_kernel_and_twin_agree_on_messages(message):
    name = type(message).__name__
    data = message.SerializeToString()
    assert picked(_message_fields_c, name, data) == picked(_message_fields_py, name, data)


@settings(max_examples=100, deadline=None)
@given(messages, st.sampled_from(sorted(LISTS)))
def test_bytes_of_another_kind_of_list(message, name):
    assert_agreed(name, message.SerializeToString())


@settings(max_examples=200, deadline=None)
@given(messages, st.data())
def test_damaged_bytes(message, data):
    encoded = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if encoded:
            at = data.draw(st.integers(0, len(encoded) - 1))
            encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    assert_agreed(type(message).__name__, bytes(encoded))


SINGLE = ["id", "state", "metadata.attempt", "created_at", "labels[uid]"]


@settings(max_examples=100, deadline=None)
@given(st.lists(containers, max_size=4), st.randoms())
def test_a_digest_is_of_the_items_in_whatever_order(items, random):
    data = cri.ListContainersResponse(containers=items).SerializeToString()
    random.shuffle(items)
    shuffled = cri.ListContainersResponse(containers=items).SerializeToString()
    forms = [
        form.Picker("ListContainersResponse", SINGLE) for form in (_message_fields_c, _message_fields_py)
    ]
    assert len({form.digest(some) for form in forms for some in (data, shuffled)}) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(containers, max_size=4), st.lists(containers, max_size=4))
def test_lists_that_differ_in_a_column_have_other_digests(one, other):
    picker = _message_fields_c.Picker("ListContainersResponse", SINGLE)
    lists = [cri.ListContainersResponse(containers=items).SerializeToString() for items in (one, other)]
    rows = [sorted(zip(*picker.pick(data), strict=True)) for data in lists]
    assert (picker.digest(lists[0]) == picker.digest(lists[1])) == (rows[0] == rows[1])


@FORMS
def test_swapped_states_change_the_digest(form):
    picker = form.Picker("ListContainersResponse", ["id", "state"])
    digests = {
        picker.digest(
            cri.ListContainersResponse(
                containers=[
                    cri.Container(id=id, state=state) for id, state in zip("abc", states, strict=True)
                ]
            ).SerializeToString()
        )
        for states in itertools.product(range(4), repeat=3)
    }
    empty = picker.digest(b"\x0a\x00")  # an item with nothing in it
    assert len(digests | {empty, picker.digest(b"")}) == 4**3 + 2


@FORMS
def test_a_digest_of_what_is_no_list(form):
    data = cri.ListImagesResponse(images=[cri.Image(id="sha256:1", size=5)]).SerializeToString()
    with pytest.raises(ValueError, match="not a ListImagesResponse"):
        form.Picker("ListImagesResponse", ["id"]).digest(data[:-1])
    with pytest.raises(ValueError, match="not a ListImagesResponse"):
        form.Picker("ListImagesResponse", ["id"]).digest(data.replace(b"sha", b"sh\xff"))
    for lists in ("repo_tags", ""):
        with pytest.raises(ValueError, match="one text or number"):
            form.Picker("ListImagesResponse", [lists]).digest(data)


@FORMS
def test_truncated_bytes_are_one_clear_error(form):
    data = cri.ListImagesResponse(images=[cri.Image(id="sha256:1", size=5)]).SerializeToString()
    with pytest.raises(ValueError, match="not a ListImagesResponse"):
        form.Picker("ListImagesResponse", ["id"]).pick(data[:-1])


@FORMS
def test_a_text_that_is_no_text_is_an_error(form):
    data = cri.ListImagesResponse(images=[cri.Image(id="x")]).SerializeToString().replace(b"x", b"\xff")
    with pytest.raises(ValueError, match="not a ListImagesResponse"):
        form.Picker("ListImagesResponse", ["id"]).pick(data)


@FORMS
def test_later_fields_win_and_messages_merge(form):
    one = cri.Container(id="a", metadata=cri.ContainerMetadata(name="n", attempt=1), labels={"uid": "1"})
    two = cri.Container(id="b", metadata=cri.ContainerMetadata(attempt=2), labels={"uid": "2"})
    item = one.SerializeToString() + two.SerializeToString()
    data = b"\x0a" + bytes([len(item)]) + item
    columns = form.Picker(
        "ListContainersResponse", ["id", "metadata.name", "metadata.attempt", "labels[uid]"]
    )
    assert columns.pick(data) == (["b"], ["n"], [2], ["2"])


@pytest.mark.skipif(
    api_implementation.Type() == "python", reason="protobuf written in Python keeps the entry"
)
@FORMS
def test_an_entry_with_another_field_is_left_out_as_in_protobuf(form):
    entry = b"\x0a\x03uid\x12\x01u\x40\x01"
    item = bytes([0x42, len(entry)]) + entry
    message = bytes([0x0A, len(item)]) + item
    assert form.Picker("ListContainersResponse", ["labels[uid]"]).pick(message) == ([""],)
    assert dict(cri.ListContainersResponse.FromString(message).containers[0].labels) == {}


@FORMS
def test_a_group_is_skipped(form):
    item = b"\x0a\x01a" + b"\xa3\x06" + b"\x08\x01" + b"\xa4\x06"  # id, then group 100 around a number
    data = b"\x0a" + bytes([len(item)]) + item
    assert form.Picker("ListImagesResponse", ["id"]).pick(data) == (["a"],)


@FORMS
def test_the_whole_item_can_be_had(form):
    image = cri.Image(id="a", repo_tags=["b"])
    (items,) = form.Picker("ListImagesResponse", [""]).pick(
        cri.ListImagesResponse(images=[image, image]).SerializeToString()
    )
    assert [cri.Image.FromString(item) for item in items] == [image, image]
    assert form.Picker("ListImagesResponse", ["repo_tags", "id"]).pick_items(items) == (
        [("b",)] * 2,
        ["a"] * 2,
    )


@FORMS
@pytest.mark.parametrize(
    "columns",
    [["nothing"], ["metadata"], ["id", "id"], ["metadata.nothing"], [f"labels[{n}]" for n in range(17)]],
)
def test_unknown_columns_are_refused(form, columns):
    with pytest.raises(ValueError, match=r"Container|columns"):
        form.Picker("ListContainersResponse", columns)


@FORMS
def test_an_optional_number_of_a_message(form):
    usages = [
        None,
        cri.CpuUsage(),
        cri.CpuUsage(timestamp=-1, usage_nano_cores=cri.UInt64Value()),
        cri.CpuUsage(usage_nano_cores=cri.UInt64Value(value=2**64 - 1)),
    ]
    data = cri.ListContainerStatsResponse(stats=[cri.ContainerStats(cpu=usage) for usage in usages])
    columns = ["cpu.timestamp?", "cpu.usage_nano_cores.value?"]
    picker = form.Picker("ListContainerStatsResponse", columns)
    absent = -(2**63)
    times, used = picker.pick(data.SerializeToString())
    assert (times, used) == (array("q", [absent, 0, -1, 0]), array("q", [absent, absent, 0, 2**63 - 1]))
    with pytest.raises(ValueError, match="one text or number"):
        picker.digest(b"")


@FORMS
@pytest.mark.parametrize("column", ["id?", "cpu?", "attributes.id?", "attributes.labels[uid]?"])
def test_only_numbers_inside_messages_may_be_absent(form, column):
    with pytest.raises(ValueError, match=r"type that cannot be picked|has no"):
        form.Picker("ListContainerStatsResponse", [column])


@FORMS
def test_each_number_is_written_once(form):
    with pytest.raises(ValueError, match="each once"):
        form.Picker("ListContainerStatsResponse", ["cpu.timestamp", "cpu.timestamp?"])
