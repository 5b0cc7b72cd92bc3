"""The shims' relay: which bytes it copies, when it waits, and which peers it drops."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engine.runtime.shim.relay import BACKLOG, CODE, EXIT, FRAME, STDIN, STDOUT, Relay


class NodeContext:
    """Connect a relay to the pipes of a made-up process and to one peer."""

    def __init__(self, **options: Any) -> None:
        self.process_in, stdin = os.pipe()
        out, self.process_out = os.pipe()
        self.teed = b""
        settings: dict[str, Any] = {"terminal": False, "ends_with_input": True, "tee": self._tee, **options}
        self.relay = Relay(stdin=stdin, outputs={out: STDOUT}, **settings)
        self.peer, theirs = socket.socketpair()
        self.relay.add(theirs)
        self._open = {self.process_in, self.process_out}

    def close(self, fd: int) -> None:
        self._open.remove(fd)
        os.close(fd)

    def clean_up(self) -> None:
        for fd in self._open:
            os.close(fd)
        for fd in self.relay.outputs:
            os.close(fd)
        self.relay._close_input()
        for peer in self.relay.peers.values():
            peer.close()
        self.peer.close()

    def frames(self) -> list[tuple[int, bytes]]:
        """Return the stream numbers and payloads of the frames that the peer has received so far."""
        self.peer.setblocking(False)
        data, found = b"", []
        while True:
            try:
                piece = self.peer.recv(1 << 20)
            except BlockingIOError:
                break
            if not piece:
                break
            data += piece
        while data:
            kind, size = FRAME.unpack_from(data)
            found.append((kind, data[FRAME.size : FRAME.size + size]))
            data = data[FRAME.size + size :]
        return found

    def _tee(self, kind: int, data: bytes) -> None:
        self.teed += data


@pytest.fixture
def made() -> Iterator[NodeContext]:
    made = NodeContext()
    yield made
    made.clean_up()


def test_output_reaches_peers_and_the_log_and_the_exit_is_reported(made: NodeContext) -> None:
    os.write(made.process_out, b"out")
    made.relay.wait(5)
    made.relay.finish(7, 5)
    assert made.frames() == [(STDOUT, b"out"), (EXIT, CODE.pack(7))]
    assert made.teed == b"out"
    made.peer.shutdown(socket.SHUT_WR)
    made.relay.part(5)
    assert not made.relay.peers


def test_unread_input_of_a_peer_does_not_cost_it_the_exit_code(made: NodeContext) -> None:
    made.peer.send(FRAME.pack(STDIN, 0))
    made.relay.finish(7, 5)
    made.peer.send(FRAME.pack(STDIN, 2) + b"in")
    made.relay.part(0.1)
    assert made.frames() == [(EXIT, CODE.pack(7))]  # unread input would reset the connection


def test_input_arrives_and_ends(made: NodeContext) -> None:
    made.peer.send(FRAME.pack(STDIN, 2) + b"in" + FRAME.pack(STDIN, 0))
    made.relay.wait(5)
    assert os.read(made.process_in, 10) == b"in"
    assert os.read(made.process_in, 10) == b""


def test_unread_input_is_closed_and_not_polled(made: NodeContext) -> None:
    made.close(made.process_in)
    made.relay.wait(5)
    assert made.relay._stdin == -1
    made.peer.send(FRAME.pack(STDIN, 2) + b"in")
    made.relay.wait(5)
    assert made.relay.peers


def test_a_peer_that_does_not_read_stops_the_output(made: NodeContext) -> None:
    os.set_blocking(made.process_out, False)
    written = 0
    while not made.relay.stuck:
        written += os.write(made.process_out, b"x" * 65536)
        made.relay.wait(5)
    before = made.teed
    os.write(made.process_out, b"more")
    made.relay.wait(0.01)
    assert made.teed == before
    assert len(made.teed) == written < 4 * BACKLOG
    got = 0
    while got < written + 4:
        got += sum(len(data) for _, data in made.frames())
        made.relay.wait(0.01)


def test_input_that_the_process_does_not_read_is_bounded(made: NodeContext) -> None:
    made.peer.setblocking(False)
    sent = 0
    try:
        while sent < 64 * BACKLOG:
            sent += made.peer.send(FRAME.pack(STDIN, 65536) + b"x" * 65536)
            made.relay.wait(0)
    except BlockingIOError:
        pass
    assert sent < 8 * BACKLOG
    assert len(made.relay._input) < 2 * BACKLOG


def test_a_peer_that_takes_nothing_for_too_long_is_dropped() -> None:
    made = NodeContext(patience=0.02)
    while made.relay.peers:
        os.write(made.process_out, b"x" * 1000)
        made.relay.wait(0.01)
    made.clean_up()


def test_the_end_of_a_peer_s_input_may_mean_three_things() -> None:
    for options, peers, ended in (
        ({"ends_with_input": True}, 1, True),
        ({"ends_with_input": False, "detaches": True}, 0, False),
        ({"ends_with_input": False}, 1, False),
    ):
        made = NodeContext(**options)
        made.peer.send(FRAME.pack(STDIN, 0))
        made.relay.wait(5)
        assert (len(made.relay.peers), made.relay._stdin == -1) == (peers, ended)
        made.clean_up()


def test_data_of_a_peer_that_hangs_up_is_kept(made: NodeContext) -> None:
    made.peer.send(FRAME.pack(STDIN, 4) + b"last")
    made.peer.close()
    made.relay.wait(5)
    assert not made.relay.peers
    assert os.read(made.process_in, 10) == b"last"
