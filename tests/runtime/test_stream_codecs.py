"""SPDY and WebSocket codecs, sessions, tickets and protocol names, tested without sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.objects.failures import Exhausted
from engine.runtime.streaming import protocol
from engine.runtime.streaming.server import Tickets
from engine.transport import spdy, websocket
from engine.transport.spdy_session import WINDOW, Event, Left, Opened, Received, Reset, SpdySession
from engine.transport.stream_protocols import COMMAND_OVER_SPDY, V1, V2, V3, V4, V5
from tests.runtime.stream_clients import masked

ids = st.integers(1, 0x7FFFFFFF)
numbers = st.integers(0, 0x7FFFFFFF)
names = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1).map(str.lower)
values = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=3)
headers = st.dictionaries(names, values, max_size=5)
frames = st.one_of(
    st.builds(spdy.SynStream, ids, headers, st.booleans()),
    st.builds(spdy.SynReply, ids, headers, st.booleans()),
    st.builds(spdy.MoreHeaders, ids, headers, st.booleans()),
    st.builds(spdy.Data, ids, st.binary(max_size=300), st.booleans()),
    st.builds(spdy.RstStream, ids, numbers),
    st.builds(spdy.Settings, st.dictionaries(st.integers(0, 0xFFFFFF), numbers, max_size=4)),
    st.builds(spdy.Ping, st.integers(0, 0xFFFFFFFF)),
    st.builds(spdy.GoAway, numbers, numbers),
    st.builds(spdy.WindowUpdate, numbers, numbers),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def joined(found: list[spdy.Frame]) -> list[spdy.Frame]:
    """Return the frames with adjacent data frames of a stream merged into one."""
    whole: list[spdy.Frame] = []
    for frame in found:
        last = whole[-1] if whole else None
        if isinstance(frame, spdy.Data) and isinstance(last, spdy.Data) and last.stream == frame.stream:
            whole[-1] = spdy.Data(frame.stream, last.data + frame.data, frame.last or last.last)
        else:
            whole.append(frame)
    return whole


def test_dictionary_is_the_specification_s() -> None:
    """Its Adler-32 begins every SPDY/3 header stream (after the two bytes of zlib's own head)."""
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2
    assert len(spdy.DICTIONARY) == 1423


@given(st.lists(frames, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_frames_survive_any_cutting(sent: list[spdy.Frame], cuts: list[int]) -> None:
    writer, reader = spdy.FrameWriter(), spdy.FrameReader()
    data = b"".join(writer.encode(frame) for frame in sent)
    found = [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)]
    assert joined(found) == joined(sent)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
def test_noise_is_refused_or_ignored(noise: bytes, cuts: list[int]) -> None:
    session = SpdySession()
    try:
        for piece in pieces(noise, cuts):
            session.receive(piece)
    except spdy.SpdyError:
        assert struct.unpack("!HH", session.output()[-16:-12]) == (0x8003, spdy.GOAWAY)


@given(st.lists(frames, min_size=1, max_size=5), st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_byte_breaks_nothing_else(sent: list[spdy.Frame], place: int, value: int) -> None:
    writer = spdy.FrameWriter()
    data = bytearray(b"".join(writer.encode(frame) for frame in sent))
    data[place % len(data)] = value
    session = SpdySession()
    with contextlib.suppress(spdy.SpdyError):
        session.receive(bytes(data))


def control(kind: int, payload: bytes, version: int = 3) -> bytes:
    return struct.pack("!HHI", 0x8000 | version, kind, len(payload)) + payload


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (control(6, b"\0\0\0\1", version=2), "version 2"),
        (struct.pack("!HHI", 0x8003, 1, 0xFFFFFF), "control frame of 16777215"),
        (control(6, b"\0"), "type 6 with 1 bytes"),
        (control(9, b"\0\0\0\1"), "type 9"),
        (control(4, struct.pack("!I", 9)), "9 settings in 4 bytes"),
        (control(1, b"\0\0"), "type 1"),
        (control(1, struct.pack("!IIH", 1, 0, 0) + b"not zlib"), "header block"),
    ],
)
def test_broken_frames_are_named(data: bytes, word: str) -> None:
    session = SpdySession()
    with pytest.raises(spdy.SpdyError, match=word):
        session.receive(data)


def test_header_bombs_stay_small() -> None:
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    bomb = struct.pack("!II", 1, 4) + b"name" + struct.pack("!I", 50 << 20) + b"x" * (50 << 20)
    block = deflate.compress(bomb) + deflate.flush(zlib.Z_SYNC_FLUSH)
    frame = control(1, struct.pack("!IIH", 1, 0, 0) + block)
    with pytest.raises(spdy.SpdyError, match="more than 65536"):
        list(spdy.FrameReader().feed(frame))


class Client:
    """Encode frames for a session, and decode its answers."""

    def __init__(self, **options: int) -> None:
        self.session = SpdySession(**options)
        self.writer, self.reader = spdy.FrameWriter(), spdy.FrameReader()

    def send(self, *sent: spdy.Frame) -> list[Event]:
        return self.session.receive(b"".join(self.writer.encode(frame) for frame in sent))

    def answers(self) -> list[spdy.Frame]:
        return list(self.reader.feed(self.session.output()))


def test_streams_open_carry_data_and_close() -> None:
    client = Client()
    assert client.send(spdy.SynStream(1, {"streamtype": ["stdin"]})) == [
        Opened(1, {"streamtype": ["stdin"]}, False)
    ]
    client.session.accept(1)
    assert client.answers() == [spdy.SynReply(1, {})]
    assert client.send(spdy.Data(1, b"ab"), spdy.Data(1, b"c", True)) == [
        Received(1, b"ab", False),
        Received(1, b"c", True),
    ]
    client.session.send(1, b"bye", last=True)
    assert client.answers() == [spdy.Data(1, b"bye", True)]
    assert not client.session.writable(1)
    assert client.send(spdy.Data(1, b"late")) == []


def test_resets_pings_and_farewells() -> None:
    client = Client()
    client.send(spdy.SynStream(1, {}))
    assert client.send(spdy.RstStream(1, 5)) == [Reset(1)]
    assert client.send(spdy.RstStream(1, 5)) == []
    assert client.session.sendable(1) == 0
    client.send(spdy.Ping(7), spdy.Ping(2))
    assert client.answers() == [spdy.Ping(7)]
    assert client.send(spdy.GoAway(0)) == [Left()]
    client.session.go_away()
    assert client.answers() == [spdy.GoAway(1, 0)]


def test_stream_ids_rise_and_are_odd() -> None:
    for bad in (2, 1):
        client = Client()
        client.send(spdy.SynStream(1, {}))
        with pytest.raises(spdy.SpdyError, match="after stream 1"):
            client.send(spdy.SynStream(bad, {}))


def test_too_many_streams_are_refused_one_by_one() -> None:
    client = Client(max_streams=2)
    events = client.send(*(spdy.SynStream(number, {}) for number in (1, 3, 5)))
    assert [event.stream for event in events if isinstance(event, Opened)] == [1, 3]
    assert client.answers() == [spdy.RstStream(5, spdy.REFUSED_STREAM)]
    client.send(spdy.RstStream(1, 5))
    assert len(client.send(spdy.SynStream(7, {}))) == 1


def test_data_of_no_stream_is_answered() -> None:
    client = Client()
    assert client.send(spdy.Data(9, b"x")) == []
    assert client.answers() == [spdy.RstStream(9, spdy.INVALID_STREAM)]


def test_windows_count_once_the_client_shows_that_it_keeps_them() -> None:
    client = Client()
    client.send(spdy.SynStream(1, {}), spdy.SynStream(3, {}))
    assert client.session.sendable(1) > WINDOW
    client.session.send(1, b"x" * 1000)
    client.send(spdy.WindowUpdate(1, 500))
    assert client.session.sendable(1) == WINDOW - 1000  # the connection's
    client.send(spdy.WindowUpdate(0, 5000))
    assert client.session.sendable(1) == WINDOW - 500
    client.send(spdy.Settings({spdy.INITIAL_WINDOW: 100}))
    assert client.session.sendable(3) == 100
    assert client.session.sendable(1) == 0
    with pytest.raises(spdy.SpdyError, match="window"):
        client.send(spdy.Settings({spdy.INITIAL_WINDOW: 0xFFFFFFFF}))


def test_consumed_bytes_are_credited_to_the_client() -> None:
    client = Client()
    client.send(spdy.SynStream(1, {}), spdy.Data(1, b"x" * WINDOW))
    client.session.consumed(1, WINDOW // 2 - 1)
    assert client.answers() == []
    client.session.consumed(1, 1)
    assert client.answers() == [spdy.WindowUpdate(0, WINDOW // 2), spdy.WindowUpdate(1, WINDOW // 2)]


def test_a_client_gives_no_credit_to_a_server_without_windows() -> None:
    """Frames that it has not read when it ends make the kernel reset the connection, and output is lost."""
    server = Client(client=True)
    stream = server.session.open({})
    server.answers()
    server.send(spdy.SynReply(stream, {}), spdy.Data(stream, b"x" * WINDOW))
    server.session.consumed(stream, WINDOW)
    assert server.answers() == []
    server.send(spdy.WindowUpdate(stream, 1))
    server.session.consumed(stream, 1)
    assert server.answers() == [spdy.WindowUpdate(0, WINDOW + 1), spdy.WindowUpdate(stream, WINDOW + 1)]


texts = st.tuples(st.just(websocket.TEXT), st.text(max_size=150).map(str.encode), st.integers(0, 3))
binaries = st.tuples(st.just(websocket.BINARY), st.binary(max_size=400), st.integers(0, 3))


@given(
    st.lists(texts | binaries, max_size=5),
    st.lists(st.integers(0, 4000), max_size=10),
)
def test_messages_survive_fragments_and_cutting(sent: list[tuple[int, bytes, int]], cuts: list[int]) -> None:
    data = b""
    for kind, payload, fragments in sent:
        parts = pieces(payload, list(range(0, fragments * 50, 50))) or [b""]
        for number, part in enumerate(parts):
            data += masked(part, kind if number == 0 else 0, final=number == len(parts) - 1)
            data += masked(b"between", websocket.PING)
    reader = websocket.Framing()
    found = [message for piece in pieces(data, cuts) for message in reader.feed(piece)]
    assert [(m.kind, m.data) for m in found if m.kind != websocket.PING] == [(k, p) for k, p, _ in sent]


@given(st.binary(max_size=300))
def test_websocket_noise_is_refused_or_waited_for(noise: bytes) -> None:
    with contextlib.suppress(websocket.WebSocketError):
        list(websocket.Framing().feed(noise))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\x82\x01x", "unmasked"),
        (b"\xc2\x81", "Reserved bit"),
        (b"\x83\x80", "Invalid opcode 0x3"),
        (b"\x89\xfe\x01\x00", "Control frame"),
        (b"\x09\x80", "control frame"),
        (masked(b"x", 0), "unexpected CONTINUATION"),
        (masked(b"x", 2, final=False) + masked(b"y", 2), "expected CONTINUATION"),
        (masked(b"\xff\xfe", 1), "decode"),
        (b"\x82\xff" + struct.pack("!Q", 1 << 40), "more than"),
        (b"".join(masked(b"x" * 60_000, 0 if n else 2, final=False) for n in range(20)), "more than"),
    ],
    ids=[
        "unmasked", "reserved-bit", "unknown-opcode", "long-ping", "split-ping", "continues-nothing",
        "begins-twice", "no-text", "too-long", "too-long-in-pieces",
    ],
)  # fmt: skip
def test_broken_websocket_frames_are_named(data: bytes, word: str) -> None:
    with pytest.raises(websocket.WebSocketError, match=word):
        list(websocket.Framing().feed(data))


def test_websocket_key_of_the_rfc() -> None:
    assert websocket.accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_server_frames_tell_their_length(size: int) -> None:
    frame = websocket.Framing().message(b"x" * size)
    head = {0: 2, 125: 2, 126: 4, 65_535: 4, 65_536: 10}[size]
    assert len(frame) == head + size
    assert not frame[1] & 0x80


def test_tickets_are_good_once_for_a_while_and_limited() -> None:
    now = 0.0
    tickets: Tickets[str] = Tickets(lambda: now, lifetime=60, limit=2)
    first, second = tickets.issue("a"), tickets.issue("b")
    assert first != second
    with pytest.raises(Exhausted):
        tickets.issue("c")
    assert tickets.redeem(first) == "a"
    assert tickets.redeem(first) is None
    assert tickets.redeem("made up") is None
    now = 60.0
    assert tickets.redeem(second) is None
    tickets.issue("c")
    now = 121.0
    tickets.issue("d")
    tickets.issue("e")


def test_status_before_v4_is_empty_or_text() -> None:
    assert protocol.exit_status(0, V2) == b""
    assert protocol.exit_status(5, V1) == b"command terminated with non-zero exit code: 5"
    assert protocol.failure_status("gone", V3) == b"gone"


def test_status_since_v4_is_a_document() -> None:
    assert json.loads(protocol.exit_status(0, V4)) == {"metadata": {}, "status": "Success"}
    failed = json.loads(protocol.exit_status(5, V5))
    assert failed["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]
    broken = json.loads(protocol.failure_status("gone", V4))
    assert (broken["code"], broken["reason"]) == (500, "InternalError")


def test_terminal_sizes_arrive_in_any_pieces() -> None:
    text = b'{"Width":80,"Height":24}\n {"Width":1,"Height":65535}{"Width":0,"Height":1}[] {"Width":true}'
    for cut in range(len(text)):
        reader = protocol.SizeReader()
        assert reader.feed(text[:cut]) + reader.feed(text[cut:]) == [(80, 24), (1, 65535)]


def test_endless_sizes_are_forgotten() -> None:
    reader = protocol.SizeReader()
    assert reader.feed(b'{"Width":' + b"8" * 5000) == []
    assert reader.feed(b'{"Width":80,"Height":24}') == [(80, 24)]


def test_the_client_s_first_wish_wins() -> None:
    assert protocol.negotiated(["v9", V2, V4], COMMAND_OVER_SPDY) == V2
    assert protocol.negotiated(["v9"], COMMAND_OVER_SPDY) is None
