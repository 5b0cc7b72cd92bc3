"""Copy between a process's standard streams and its clients, with bounded memory.

A connection carries frames: kind, size, bytes. An empty STDIN frame is the end of input, RESIZE holds
columns and rows, EXIT the exit code. Nothing is read that cannot be passed on, so a client that does not
read its output blocks the process's output instead of filling memory; `patience` limits for how long.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

STDIN, STDOUT, STDERR, EXIT, RESIZE = range(5)
FRAME = struct.Struct("<BI")
SIZE = struct.Struct("<HH")
CODE = struct.Struct("<I")
CHUNK = 64 * 1024
BACKLOG = 256 * 1024


class Peer:
    """Hold one connection. `silent_since` is when it last accepted data while data was waiting."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.silent_since = 0.0

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def waiting(self) -> int:
        """Return the number of bytes waiting for it."""
        return len(self._outgoing)

    def receive(self) -> bool:
        """Read the available data; return False if it has closed the connection."""
        while len(self._incoming) < BACKLOG:
            try:
                data = self._connection.recv(CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._incoming += data
        return True

    def frames(self) -> Iterator[tuple[int, bytes]]:
        while len(self._incoming) >= FRAME.size:
            kind, size = FRAME.unpack_from(self._incoming)
            if len(self._incoming) < FRAME.size + size:
                return
            data = bytes(self._incoming[FRAME.size : FRAME.size + size])
            del self._incoming[: FRAME.size + size]
            yield kind, data

    def put(self, kind: int, data: bytes) -> None:
        if not self._outgoing:
            self.silent_since = time.monotonic()
        self._outgoing += FRAME.pack(kind, len(data)) + data

    def flush(self) -> bool:
        """Send what it accepts; return False if it has closed the connection."""
        while self._outgoing:
            try:
                sent = self._connection.send(self._outgoing[:CHUNK])
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self._outgoing[:sent]
            self.silent_since = time.monotonic()
        return True

    def close(self) -> None:
        self._connection.close()


class Relay:
    """Relay the streams of one process: `stdin` (-1 if it has none), and `outputs` by descriptor.

    A terminal is both. `tee` also receives all output. With `ends_with_input`, the end of a peer's input
    ends the process's input; otherwise such a peer is disconnected if `detaches`, or keeps listening. A peer
    that accepts nothing for `patience` seconds is dropped.
    """

    def __init__(
        self,
        *,
        stdin: int,
        outputs: Mapping[int, int],
        terminal: bool,
        ends_with_input: bool,
        detaches: bool = False,
        patience: float = float("inf"),
        tee: Callable[[int, bytes], None] = lambda kind, data: None,
        closed: Callable[[int], None] = lambda kind: None,
    ) -> None:
        self.outputs = dict(outputs)
        self.peers: dict[int, Peer] = {}
        self.patience = patience
        self._stdin = stdin
        self._terminal = terminal
        self._ends_with_input = ends_with_input
        self._detaches = detaches
        self._tee = tee
        self._closed = closed
        self._input = bytearray()
        self._input_ended = False
        self._poll = select.poll()
        self._masks: dict[int, int] = {}
        if stdin >= 0:
            os.set_blocking(stdin, False)

    def watch(self, fds: Iterable[int]) -> None:
        """Add other descriptors for `wait` to report when they are readable."""
        for fd in fds:
            self._interest(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        if self._masks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def add(self, connection: socket.socket) -> None:
        peer = Peer(connection)
        self.peers[peer.fileno()] = peer

    @property
    def stuck(self) -> bool:
        """Tell whether output waits for a peer."""
        return any(peer.waiting >= BACKLOG for peer in self.peers.values())

    def wait(self, seconds: float | None) -> list[int]:
        """Copy what can be copied, waiting `seconds` at most; return which watched descriptors are ready."""
        self._register()
        if self.peers and self.patience != float("inf"):
            seconds = min(self.patience, seconds) if seconds is not None else self.patience
        ready = []
        for fd, event in self._poll.poll(None if seconds is None else max(0, int(seconds * 1000) + 1)):
            done = False
            if fd in self.outputs and event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._read_output(fd)
                done = True
            if fd == self._stdin and event & select.POLLERR and fd not in self.outputs:
                self._input.clear()  # the process will not read it
                self._close_input()
                done = True
            elif fd == self._stdin and event & select.POLLOUT:
                self._write_input()
                done = True
            if fd in self.peers:
                self._serve(self.peers[fd], event)
                done = True
            if not done:
                ready.append(fd)
        now = time.monotonic()
        for peer in list(self.peers.values()):
            if peer.waiting and now - peer.silent_since > self.patience:
                self._drop(peer)
        return ready

    def finish(self, code: int, seconds: float) -> None:
        """Tell every peer how the process ended, and wait up to `seconds` for them to read the rest."""
        deadline = time.monotonic() + seconds
        for fd in self._masks.keys() - self.peers.keys():
            self.forget(fd)
        self.outputs.clear()
        self._stdin = -1
        for peer in list(self.peers.values()):
            peer.put(EXIT, CODE.pack(code))
            if not peer.flush():
                self._drop(peer)
        while any(peer.waiting for peer in self.peers.values()) and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())

    def part(self, seconds: float) -> None:
        """Read from the peers until they close, for `seconds` at most.

        Closing a socket with unread bytes resets its connection, and the peer may then lose data sent
        before.
        """
        deadline = time.monotonic() + seconds
        while self.peers and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        for peer in list(self.peers.values()):
            self._drop(peer)

    def _register(self) -> None:
        stuck, full = self.stuck, len(self._input) >= BACKLOG
        for fd in self.outputs:
            self._interest(fd, 0 if stuck else select.POLLIN)
        if self._stdin >= 0:
            output = self._masks.get(self._stdin, 0) if self._stdin in self.outputs else 0
            self._interest(self._stdin, output | (select.POLLOUT if self._input else 0))
        for fd, peer in self.peers.items():
            self._interest(fd, (0 if full else select.POLLIN) | (select.POLLOUT if peer.waiting else 0))

    def _interest(self, fd: int, mask: int) -> None:
        if self._masks.get(fd) != mask:
            self._masks[fd] = mask
            self._poll.register(fd, mask)

    def _read_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal that no process has open
            data = b""
        kind = self.outputs[fd]
        if not data:
            del self.outputs[fd]
            self._closed(kind)
            if fd == self._stdin:
                self._stdin = -1
                self._input.clear()
            self.forget(fd)
            os.close(fd)
            return
        self._tee(kind, data)
        for peer in list(self.peers.values()):
            peer.put(kind, data)
            if not peer.flush():
                self._drop(peer)

    def _write_input(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._stdin, self._input[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self._input_ended = True
            self._input.clear()
        if self._input_ended:
            self._close_input()

    def _close_input(self) -> None:
        if self._stdin >= 0 and self._stdin not in self.outputs:
            self.forget(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _serve(self, peer: Peer, event: int) -> None:
        there = True
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
            there = peer.receive()
            for kind, data in peer.frames():
                there &= self._obey(kind, data)
        if there and event & select.POLLOUT:
            there = peer.flush()
        if not there:
            self._drop(peer)

    def _obey(self, kind: int, data: bytes) -> bool:
        """Handle a frame; return False if the peer is to be disconnected."""
        if kind == RESIZE and self._terminal and self._stdin >= 0:
            columns, rows = SIZE.unpack(data)
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        elif kind == STDIN and data and self._stdin >= 0 and not self._input_ended:
            self._input += data
            self._write_input()
        elif kind == STDIN and not data and self._ends_with_input:
            self._input_ended = True
            if not self._input:
                self._close_input()
        elif kind == STDIN and not data:
            return not self._detaches
        return True

    def _drop(self, peer: Peer) -> None:
        self.peers.pop(peer.fileno(), None)
        self.forget(peer.fileno())
        peer.close()
