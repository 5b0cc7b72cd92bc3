"""The gRPC health reader against a real gRPC server, its twin, and anything else that may arrive."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine._fast.probing import _grpc_c as compiled
from engine._fast.probing import grpc as rule
from engine.probes.measure import first_bytes
from engine.wire import grpc_health_v1_pb2, grpc_health_v1_pb2_grpc
from tests.fast.probing import grpc_twin as twin

FORMS = pytest.mark.parametrize("form", [twin, compiled], ids=["twin", "compiled"])
EXIT_3 = b"\x00\x00\x00\x00\x09\x0a\x02ab\x12\x01c\x18\x03"
SERVING = b"\x00\x00\x00\x00\x02\x08\x01"


def frame(type: int, flags: int, payload: bytes = b"", stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


SETTINGS = frame(4, 0, stream=0)
STATUS_200 = frame(1, 4, b"\x88")
TRAILERS_OK = frame(1, 5, b"\x40\x0bgrpc-status\x010")


class Health(grpc_health_v1_pb2_grpc.HealthServicer):
    def Check(self, request, context):
        if request.service == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        status = "NOT_SERVING" if request.service == "down" else "SERVING"
        return grpc_health_v1_pb2.HealthCheckResponse(status=status)


@pytest.fixture(scope="module")
def server():
    server = grpc.server(ThreadPoolExecutor(2))
    grpc_health_v1_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("", (rule.ANSWERED, 1)),
        ("x" * 300, (rule.ANSWERED, 1)),
        ("down", (rule.ANSWERED, 2)),
        ("unknown", (rule.STATUS, 5)),
    ],
    ids=["serving", "long-name", "not-serving", "unknown-service"],
)
def test_real_server(server, service, expected):
    """Including Huffman codes and indexed fields, which grpcio's server uses."""
    reader = compiled.GrpcAnswer()
    seen = b""
    with socket.create_connection(("127.0.0.1", server), timeout=10) as connection:
        connection.sendall(first_bytes(f"grpc://127.0.0.1:{server}/{service}"))
        while reader.result()[0] == rule.MORE:
            data = connection.recv(65536)
            if not data:
                reader.eof()
            seen += data
            reader.feed(data)
            connection.sendall(reader.reply())
    assert reader.result()[:2] == expected
    assert twin.parse(seen) == reader.result()
    if service == "unknown":
        assert reader.result()[2] == b"no such service"


@FORMS
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (SETTINGS + STATUS_200 + frame(0, 0, SERVING) + TRAILERS_OK, (rule.ANSWERED, 1)),
        (
            SETTINGS + frame(1, 12, b"\x02\x88ab") + frame(0, 8, b"\x01" + SERVING + b"z") + TRAILERS_OK,
            (rule.ANSWERED, 1),
        ),
        (
            SETTINGS
            + frame(1, 0, b"\x88\x40\x0bgrpc-")
            + frame(9, 4, b"status\x0212")
            + frame(1, 5, b"\xbe"),
            (rule.STATUS, 12),
        ),
        (SETTINGS + frame(1, 5, b"\x8c"), (rule.HTTP, 400)),
        (SETTINGS + STATUS_200 + frame(0, 1, SERVING), (rule.STATUS, 13)),
        (SETTINGS + STATUS_200 + frame(0, 0, b"\x00\x00\x01\x00\x00"), (rule.PROTOCOL, 0)),
        (SETTINGS + frame(3, 0, b"\x00\x00\x00\x08"), (rule.CLOSED, 8)),
        (SETTINGS + frame(7, 0, bytes(8), 0) + STATUS_200, (rule.CLOSED, 0)),
        (SETTINGS + frame(1, 4, b"\xff\xff\xff\xff\xff"), (rule.PROTOCOL, 0)),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", (rule.PROTOCOL, 0)),
        (STATUS_200, (rule.PROTOCOL, 0)),
        (b"", (rule.CLOSED, 0)),
    ],
)
def test_verdicts(form, data, expected):
    assert form.parse(data)[:2] == expected


blocks = st.lists(
    st.sampled_from(
        [
            b"\x88",
            b"\x8c",
            b"\xbe",
            b"\xbf",
            b"\x20",
            b"\x3f\xe1\x1f",
            b"\x40\x0bgrpc-status\x010",
            b"\x48\x03200",
            b"\x5f\x01a",
            b"\x00\x07:status\x03404",
            b"\x40\x89\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x01\x30",
            b"\x7e\x8a\x00",
            b"\x0f\x2f\x82\xff\xff",
            b"\x40\x01n\x7f\x00" + b"v" * 127,
            b"\x40\x0cgrpc-message\x04a%20",
            b"\x00\x0cgrpc-message\x7f\xff\x04" + b"w" * 638,
        ]
    )
    | st.binary(max_size=4),
    max_size=6,
).map(b"".join)
frames = st.builds(
    frame,
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 36, 44]),
    blocks | st.sampled_from([b"", SERVING, bytes(6), bytes(8), bytes(4), bytes(5)]),
    st.sampled_from([1, 1, 1, 0, 3]),
)
well_formed = st.sampled_from(
    [
        SETTINGS,
        STATUS_200,
        TRAILERS_OK,
        frame(0, 0, SERVING),
        frame(0, 0, EXIT_3),
        frame(0, 0, EXIT_3[:7]),
        frame(0, 8, b"\x02" + EXIT_3[7:] + b"zz"),
        frame(6, 0, bytes(8), 0),
        frame(2, 0, bytes(5)),
        *(frame(8, 0, n.to_bytes(4, "big"), stream) for n in (1, 0x7FFF0000, 1 << 31) for stream in (0, 1)),
        *(
            frame(4, 0, bytes((0, setting)) + value.to_bytes(4, "big"), 0)
            for setting in (2, 4, 5)
            for value in (0, 1, 16384, 0x7FFFFFFF, 0x80000000)
        ),
    ]
)
conversation = st.builds(
    lambda start, rest, cut: (start + b"".join(rest))[: cut or None],
    st.sampled_from([SETTINGS, b""]),
    st.lists(well_formed | frames | st.binary(max_size=12), max_size=8),
    st.sampled_from([0, 0, -1, -3]),
)


@settings(max_examples=600, deadline=None)
@given(conversation, st.sampled_from([rule.HEALTH, rule.EXEC, rule.GET]))
@example(SETTINGS + frame(1, 4, b"\x88" + b"\x40\x01a\x01b" * 200 + b"\xbf"), rule.HEALTH)
def test_compiled_agrees_with_twin(data, call):
    assert compiled.parse(data, call) == twin.parse(data, call)


@settings(max_examples=100, deadline=None)
@given(conversation, st.integers(1, 5), st.sampled_from([rule.HEALTH, rule.EXEC, rule.GET]))
def test_cutting_the_input_changes_nothing(data, size, call):
    reader = compiled.GrpcAnswer(call)
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.eof()
    assert reader.result() == compiled.parse(data, call)


@FORMS
@pytest.mark.parametrize("index", range(1, 62))
def test_the_dynamic_table_follows_rfc_7541(form, index):
    """Entries count their name, value and 32 bytes; those of static names must know the name's length."""
    entry = bytes((0x40 | index, 1)) + b"9"
    held = 4096 // (len(twin._STATIC_NAMES[index - 1]) + 1 + 32)
    for reference, right in ((held - 1, True), (held, False)):
        indexed = (
            b"\xff" + bytes((62 + reference - 127 & 0x7F,))
            if 62 + reference >= 127
            else bytes((0x80 | 62 + reference,))
        )
        verdict, *_ = form.parse(SETTINGS + frame(1, 4, entry * (held + 3) + indexed))
        assert (verdict == rule.CLOSED) is right, (held, reference)


def test_settings_and_pings_are_answered_in_bounds():
    reader = compiled.GrpcAnswer()
    reader.feed(SETTINGS + frame(6, 0, b"abcdefgh", 0))
    assert reader.reply() == frame(4, 1, stream=0) + frame(6, 1, b"abcdefgh", 0)
    reader.feed(frame(6, 0, b"abcdefgh", 0) * 1000)
    assert len(reader.reply()) <= 256
