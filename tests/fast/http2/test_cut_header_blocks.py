"""Header fields belong to one stream, though its caller lets go in the middle of the block."""

from __future__ import annotations

import pytest

from engine._fast.http2._client_c import BROKEN, HEAD, ClientConnection, encode


def frame(kind: int, flags: int, payload: bytes = b"", stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@pytest.mark.parametrize("continued", [False, True], ids=["cut-by-a-read", "cut-by-a-frame"])
def test_fields_of_a_cancelled_stream_are_dropped(continued: bool) -> None:
    client = ClientConnection()
    client.receive(frame(4, 0))
    asked = encode([(b":method", b"GET")])
    first, second = client.request(asked), client.request(asked)
    block, secret = b"\x88", b"\x00\x0bretry-after\x043600"
    if continued:
        pieces = [frame(1, 0, block + secret, first), frame(9, 4, secret, first)]
    else:
        whole = frame(1, 4, block + secret + secret, first)
        pieces = [whole[:30], whole[30:]]
    assert client.receive(pieces[0]) == []
    client.reset(first, 8)
    events = client.receive(pieces[1] + frame(1, 4, b"\x8d", second))
    assert [each for each in events if each[0] == HEAD] == [(HEAD, second, [(b":status", b"404")], 0)]


def test_empty_frames_are_bounded_and_the_bound_recovers() -> None:
    client = ClientConnection(idle_frames=100)
    client.receive(frame(4, 0))
    for _ in range(5):
        assert BROKEN not in [each[0] for each in client.receive(frame(6, 0, bytes(8)) * 90)]
        client.calm()
    assert [each[0] for each in client.receive(frame(6, 0, bytes(8)) * 101)] == [BROKEN]
