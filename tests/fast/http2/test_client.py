"""The HTTP/2 client core against the library `h2`, in pieces of any size, and against hostile servers."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine._fast.http2 import _client_c as core
from engine._fast.http2._client_c import ClientConnection, encode

REQUEST = encode(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"localhost")]
)
OK = [(b":status", b"200")]


def frame(type: int, flags: int, payload: bytes = b"", stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((type, flags)) + stream.to_bytes(4, "big") + payload


SETTINGS = frame(4, 0, stream=0)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    cut, at = [], 0
    for size in sizes:
        cut.append(data[at : at + size])
        at += size
    return [*cut, data[at:]]


def server() -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    return connection


class Answers:
    """Collect the events of a client: heads, bodies, ended streams and others."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.heads: dict[int, list[list[tuple[bytes, bytes]]]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.others: list[tuple[int, int, int]] = []

    def receive(self, data: bytes) -> None:
        if self.broken:
            return
        for kind, stream, what, number in self.client.receive(data):
            if kind == core.HEAD:
                self.heads.setdefault(stream, []).append(what)
            elif kind == core.DATA:
                self.bodies[stream] = self.bodies.get(stream, b"") + what
                self.client.take(stream, len(what))
            elif kind == core.END:
                self.ended.append(stream)
            else:
                self.others.append((kind, stream, number))

    @property
    def broken(self) -> int:
        """Return the error code that broke the connection, or 0."""
        return next((number for kind, _, number in self.others if kind == core.BROKEN), 0)


names = st.from_regex(rb"[a-z0-9-]{1,40}", fullmatch=True) | st.sampled_from(
    [b"grpc-status", b"content-type", b"authorization", b"via"]
)
values = st.binary(max_size=60) | st.sampled_from([b"", b"0", b"application/grpc", b"x" * 4000, b"y" * 9000])
fields = st.lists(st.tuples(names, values), max_size=12)


@settings(max_examples=100, deadline=None)
@given(fields, st.sets(st.sampled_from([b"authorization", b"via"])))
def test_written_headers_are_read_by_hpack(headers, secret):
    decoder = hpack.Decoder()
    decoder.max_header_list_size = 1 << 20
    read = decoder.decode(encode(headers, secret), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in read] == headers
    marked = {bytes(field[0]) for field in read if not field.indexable}
    assert secret & {name for name, _ in headers} <= marked


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(fields, st.booleans(), st.sampled_from([None, None, 0, 100, 4096])), max_size=4),
    st.lists(st.integers(0, 300), max_size=20),
)
@example([([(b"a", b"x" * 4000)], False, None), ([(b"a", b"x" * 4000), (b"b", b"c")], True, None)], [])
def test_blocks_that_hpack_writes_are_read(blocks, sizes):
    """With and without Huffman codes, on one table, whose size changes."""
    encoder = hpack.Encoder()
    answers = Answers(ClientConnection(header_list=1 << 17))
    stream = answers.client.request(REQUEST)
    sent = SETTINGS
    for headers, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(headers, huffman=huffman)
        parts = [block[at : at + 16384] for at in range(0, len(block), 16384)] or [b""]
        for index, part in enumerate(parts):
            sent += frame(9 if index else 1, 4 if index == len(parts) - 1 else 0, part)
    for piece in pieces(sent, sizes):
        answers.receive(piece)
    assert answers.broken == 0
    assert answers.heads.get(stream, []) == [headers for headers, _, _ in blocks]


sizes = st.sampled_from([0, 1, 300, 16384, 16385, 65535, 65536, 200_000])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, sizes), max_size=4), st.sampled_from([65535, 655350]), sizes)
def test_many_exchanges_with_h2(exchanges, window, piece):
    """Bodies of any size both ways, however small the windows and the pieces."""
    client, peer = ClientConnection(stream_window=65535, connection_window=65535), server()
    peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    answers = Answers(client)
    waiting = {client.request(REQUEST, b"q" * asked): (b"q" * asked, size) for asked, size in exchanges}
    got: dict[int, bytes] = dict.fromkeys(waiting, b"")
    left = {stream: size for stream, (_, size) in waiting.items()}
    answering: set[int] = set()
    for _ in range(10_000):
        for event in peer.receive_data(client.output()):
            if isinstance(event, h2.events.DataReceived):
                got[event.stream_id] += event.data
                peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                peer.send_headers(event.stream_id, OK)
                answering.add(event.stream_id)
        for stream in sorted(answering):
            room = peer.local_flow_control_window(stream)
            size = min(left[stream], room, 16384)
            if size:
                peer.send_data(stream, b"a" * size)
                left[stream] -= size
            if not left[stream]:
                peer.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
                answering.discard(stream)
        data = peer.data_to_send()
        for part in pieces(data, [max(piece, 1000)] * (len(data) // 1000)):
            answers.receive(part)
        if len(answers.ended) == len(waiting):
            break
    assert sorted(answers.ended) == sorted(waiting)
    assert got == {stream: body for stream, (body, _) in waiting.items()}
    assert {stream: len(answers.bodies.get(stream, b"")) for stream in waiting} == {
        stream: size for stream, (_, size) in waiting.items()
    }
    assert all(heads == [OK, [(b"grpc-status", b"0")]] for heads in answers.heads.values())
    assert answers.broken == 0
    assert client.open == 0


payloads = st.sampled_from(
    [
        b"",
        b"\x88",
        b"\xbe",
        b"\x40\x01a\x01b",
        b"\x02\x88zz",
        b"\x00\x00\x00\x00\x01\x88",
        bytes(4),
        bytes(5),
        bytes(6),
        bytes(8),
        b"\x00\x00\x00\x01",
        b"\x7f\xff\xff\xff",
        b"\x00\x04\x7f\xff\xff\xff",
        b"\x00\x04\x80\x00\x00\x00",
        b"\x00\x05\x00\x00\x00\x01",
        b"\x00\x03\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\x00\x00\x00\x02",
        b"d" * 300,
        b"d" * 16384,
        b"d" * 16385,
    ]
) | st.binary(max_size=12)
frames = st.builds(
    frame,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 36, 44]),
    payloads,
    st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5]),
)
hostile = st.builds(
    lambda start, rest, cut: (start + b"".join(rest))[: cut or None],
    st.sampled_from([SETTINGS, SETTINGS, SETTINGS + frame(1, 4, b"\x88"), b""]),
    st.lists(frames | st.binary(max_size=12), max_size=8),
    st.sampled_from([0, 0, -1, -5]),
)


def answers_of(data: bytes, sizes: list[int], *, reset: bool = False) -> Answers:
    answers = Answers(ClientConnection())
    for _ in range(2):
        answers.client.request(REQUEST)
    if reset:
        answers.client.reset(3, 8)
    for piece in pieces(data, sizes):
        answers.receive(piece)
    answers.client.output()
    return answers


@settings(max_examples=300, deadline=None)
@given(hostile, st.lists(st.integers(0, 9), max_size=60), st.booleans())
def test_cutting_the_input_changes_nothing(data, sizes, reset):
    whole, cut = answers_of(data, [], reset=reset), answers_of(data, sizes, reset=reset)
    assert (whole.heads, whole.bodies, whole.ended) == (cut.heads, cut.bodies, cut.ended)
    assert whole.others == cut.others


def h2_accepts(data: bytes) -> bool:
    config = h2.config.H2Configuration(
        header_encoding=None, validate_inbound_headers=False, normalize_inbound_headers=False
    )
    client = h2.connection.H2Connection(config)
    client.initiate_connection()
    client.update_settings({h2.settings.SettingCodes.ENABLE_PUSH: 0})
    for stream in (1, 3):
        client.send_headers(
            stream,
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "l")],
            end_stream=True,
        )
    try:
        events = client.receive_data(data)
    except h2.exceptions.ProtocolError:
        return False
    # A stream that it gives up is a connection that the core gives up.
    return all(event.remote_reset for event in events if isinstance(event, h2.events.StreamReset))


def h2_is_lax(one: bytes) -> bool:
    """Tell whether h2 may accept a frame that RFC 9113 forbids.

    These are HEADERS and RST_STREAM of a stream that was never opened (5.1.1, 6.4), and PUSH_PROMISE (8.4).
    """
    return one[3] == 5 or (one[3] in (1, 3) and one[8] not in (1, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(frames.filter(lambda one: not h2_is_lax(one)), max_size=8))
@example([frame(8, 0, b"\x7f\xff\xff\xff")])
def test_no_server_is_refused_that_h2_takes(rest):
    data = SETTINGS + b"".join(rest) + frame(6, 0, bytes(8), 0)  # which ends what waits for more of it
    if h2_accepts(data):
        assert answers_of(data, []).broken == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, 4, b"\x88"), 1),
        (SETTINGS + frame(0, 0, b"x" * 16385), 6),
        (SETTINGS + frame(5, 4, b"\0\0\0\2\x88"), 1),
        (SETTINGS + frame(0, 0, b"early"), 1),
        (SETTINGS + frame(1, 4, b"\x88", 7), 1),
        (SETTINGS + frame(1, 4, b"\x88", 2), 1),
        (SETTINGS + frame(1, 0, b"\x88") + frame(0, 0, b"x"), 1),
        (SETTINGS + frame(1, 4, b"\x88\xff"), 9),
        (SETTINGS + frame(8, 0, bytes(4), 0), 1),
        (SETTINGS + frame(8, 0, b"\x7f\xff\xff\xff", 0) * 2, 3),
        (SETTINGS + frame(4, 0, b"\0\4\x80\0\0\0", 0), 3),
        (SETTINGS + frame(1, 4, b"\x88" + b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 20), 11),
        (SETTINGS + frame(1, 4, b"\x88") + frame(0, 0, b"x" * 16384) * 5, 3),
    ],
)
def test_which_frames_end_a_connection(data, code):
    client = ClientConnection(stream_window=65535, connection_window=65535, header_list=16384)
    answers = Answers(client)
    for body in (b"", b"", b"x" * 100_000):
        client.request(REQUEST, body)
    client.output()
    answers.receive(data)
    assert answers.broken == code
    assert frame(7, 0, bytes(4) + code.to_bytes(4, "big"), 0) in client.output()
    assert not client.usable


def test_an_answer_before_all_was_asked_ends_the_asking():
    client = ClientConnection()
    answers = Answers(client)
    stream = client.request(REQUEST, b"x" * 100_000)
    client.output()
    answers.receive(SETTINGS + frame(1, 5, b"\x8c"))
    assert (answers.ended, client.open) == ([stream], 0)
    assert client.output().endswith(frame(3, 0, bytes(4)))


def test_a_limit_of_streams_is_kept():
    client = ClientConnection(max_streams=3)
    answers = Answers(client)
    for _ in range(3):
        client.request(REQUEST)
    assert not client.ready
    with pytest.raises(RuntimeError, match="no further requests"):
        client.request(REQUEST)
    answers.receive(SETTINGS + frame(1, 5, b"\x88", 3))
    assert client.ready
    answers.receive(frame(4, 0, b"\0\3\0\0\0\2", 0))
    assert not client.ready
    assert client.usable
    answers.receive(frame(7, 0, bytes(8), 0))
    assert not client.usable


def test_pings_are_answered_and_a_flood_is_dropped():
    client = ClientConnection()
    client.output()
    client.receive(SETTINGS + frame(6, 0, b"abcdefgh", 0))
    assert client.output() == frame(4, 1, stream=0) + frame(6, 1, b"abcdefgh", 0)
    client.receive(frame(6, 0, b"abcdefgh", 0) * 3000)
    assert len(client.output()) < 1000
    client.ping(b"01234567")
    assert client.output() == frame(6, 0, b"01234567", 0)
    assert client.receive(frame(6, 1, b"01234567", 0)) == [(core.PONG, 0, None, 0)]
