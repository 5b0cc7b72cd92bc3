"""Run one side of a SPDY/3.1 connection, without I/O: bytes in, events and bytes to send out.

The client opens streams (odd, rising ids). A server's user of the session accepts or refuses each; a client's
session refuses streams that the server opens.

Flow control has two sides. Towards us, a stream may have WINDOW bytes that have not been read yet: `consumed`
gives credit back. A peer that ignores windows, as those in kubectl, crictl, the kubelet and containerd do, is
not cut off: instead, the reader of the connection stops reading. Towards the peer, windows count from the
moment it shows that it uses them (WINDOW_UPDATE, or SETTINGS with a window). Until then only TCP slows us
down, since a peer without windows would never open one.

A client gives credit back only to a server that uses windows. Others end the connection as soon as a command
has ended, and where the kernel then finds frames that nobody has read, it resets the connection: the end of
the output and the exit code would be lost on their way.
"""

from __future__ import annotations

import msgspec

from engine.transport import spdy

WINDOW = 64 * 1024


class Opened(msgspec.Struct, frozen=True):
    """Report a new stream. `last`: the client sends nothing on it."""

    stream: int
    headers: spdy.Headers
    last: bool


class Received(msgspec.Struct, frozen=True):
    """Report data. `last` ends the client's half of the stream."""

    stream: int
    data: bytes
    last: bool


class Reset(msgspec.Struct, frozen=True):
    """Report that the client has abandoned both halves of the stream."""

    stream: int


class Left(msgspec.Struct, frozen=True):
    """Report that the client opens no further streams; open ones continue."""


Event = Opened | Received | Reset | Left


class _Stream(msgspec.Struct):
    """Track a stream: `credit` is what we may send; `owed` what was read and not yet returned to the client
    as credit.
    """

    credit: int
    owed: int = 0
    receiving: bool = True
    sending: bool = True


class SpdySession(msgspec.Struct):
    """Run a session of which `max_streams` may be open at once; further ones are refused.

    `client`: this side opens the streams.
    """

    max_streams: int = 256
    client: bool = False
    _reader: spdy.FrameReader = msgspec.field(default_factory=spdy.FrameReader)
    _writer: spdy.FrameWriter = msgspec.field(default_factory=spdy.FrameWriter)
    _streams: dict[int, _Stream] = msgspec.field(default_factory=dict)
    _newest: int = 0
    _keeps_windows: bool = False
    _initial: int = WINDOW
    _credit: int = WINDOW
    _owed: int = 0
    _output: bytearray = msgspec.field(default_factory=bytearray)

    def receive(self, data: bytes) -> list[Event]:
        """Return the events of `data`. Raise SpdyError, after which only a GOAWAY may be sent."""
        events: list[Event] = []
        try:
            for frame in self._reader.feed(data):
                event = self._on_frame(frame)
                if event is not None:
                    events.append(event)
        except spdy.SpdyError:
            self._emit(spdy.GoAway(self._newest, spdy.PROTOCOL_ERROR))
            raise
        return events

    def output(self) -> bytes:
        """Return the bytes to send now, once."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def open(self, headers: spdy.Headers) -> int:
        """Open a stream and return its id. A client may send on it before the server has accepted it."""
        # A client's streams have odd ids, a server's would have even ones.
        self._newest += 1 if self._newest == 0 else 2
        self._streams[self._newest] = _Stream(self._initial)
        self._emit(spdy.SynStream(self._newest, headers))
        return self._newest

    def accept(self, stream: int) -> None:
        self._emit(spdy.SynReply(stream, {}))

    def refuse(self, stream: int) -> None:
        self._streams.pop(stream, None)
        self._emit(spdy.RstStream(stream, spdy.REFUSED_STREAM))

    def sendable(self, stream: int) -> int:
        """Return how many bytes the stream may send now; 0 if our half is closed."""
        state = self._streams.get(stream)
        if state is None or not state.sending:
            return 0
        # Both may be negative: what was sent before the peer used windows counts, and a peer may lower them.
        return max(0, min(state.credit, self._credit)) if self._keeps_windows else 1 << 30

    def writable(self, stream: int) -> bool:
        """Tell whether our half is open."""
        state = self._streams.get(stream)
        return state is not None and state.sending

    def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send at most `sendable` bytes; nothing if our half is closed."""
        state = self._streams.get(stream)
        if state is None or not state.sending:
            return
        state.credit -= len(data)
        self._credit -= len(data)
        self._emit(spdy.Data(stream, data, last))
        if last:
            state.sending = False
            self._forget_closed(stream, state)

    def consumed(self, stream: int, count: int) -> None:
        """Return credit for `count` bytes of the stream that were read, so that the peer may send as many
        again.
        """
        self._owed += count
        state = self._streams.get(stream)
        if state is not None and state.receiving:
            state.owed += count
        if self.client and not self._keeps_windows:
            return
        # Half a window at a time, so that a peer that sends small frames does not get an update for each.
        if self._owed >= WINDOW // 2:
            self._emit(spdy.WindowUpdate(0, self._owed))
            self._owed = 0
        if state is not None and state.receiving and state.owed >= WINDOW // 2:
            self._emit(spdy.WindowUpdate(stream, state.owed))
            state.owed = 0

    def ping(self, number: int) -> None:
        """Send a ping; a server's `number` is even, a client's is odd."""
        self._emit(spdy.Ping(number))

    def go_away(self) -> None:
        self._emit(spdy.GoAway(self._newest))

    def _on_frame(self, frame: spdy.Frame) -> Event | None:
        match frame:
            case spdy.SynStream(stream) if self.client:
                self._emit(spdy.RstStream(stream, spdy.REFUSED_STREAM))
            case spdy.SynStream():
                return self._on_open(frame)
            case spdy.SynReply(stream, _, last) if last:
                return self._on_data(stream, b"", last)
            case spdy.Data(stream, data, last):
                return self._on_data(stream, data, last)
            case spdy.RstStream(stream):
                return Reset(stream) if self._streams.pop(stream, None) else None
            case spdy.Ping(number):
                # Odd pings are the client's, even ones the server's; each side answers the other's.
                if number % 2 != self.client:
                    self._emit(frame)
            case spdy.WindowUpdate(stream, delta):
                self._on_window(stream, delta)
            case spdy.Settings(values):
                self._on_settings(values.get(spdy.INITIAL_WINDOW))
            case spdy.GoAway():
                return Left()
        return None

    def _on_open(self, frame: spdy.SynStream) -> Event | None:
        if frame.stream % 2 == 0 or frame.stream <= self._newest:
            raise spdy.SpdyError(f"stream {frame.stream} after stream {self._newest}")
        self._newest = frame.stream
        if len(self._streams) >= self.max_streams:
            self._emit(spdy.RstStream(frame.stream, spdy.REFUSED_STREAM))
            return None
        self._streams[frame.stream] = _Stream(self._initial, receiving=not frame.last)
        return Opened(frame.stream, frame.headers, frame.last)

    def _on_data(self, stream: int, data: bytes, last: bool) -> Event | None:
        state = self._streams.get(stream)
        if state is None or not state.receiving:
            if self.client and (stream > self._newest or stream == 0):
                raise spdy.SpdyError(f"data on stream {stream}, which is not open")
            # The bytes count in the connection's window all the same, although nobody reads them.
            self.consumed(stream, len(data))
            if stream > self._newest or stream == 0:
                self._emit(spdy.RstStream(stream, spdy.INVALID_STREAM))
            return None
        if last:
            state.receiving = False
            self._forget_closed(stream, state)
        return Received(stream, data, last)

    def _on_window(self, stream: int, delta: int) -> None:
        self._keeps_windows = True
        if stream == 0:
            self._credit += delta
        elif stream in self._streams:
            self._streams[stream].credit += delta

    def _on_settings(self, window: int | None) -> None:
        if window is None:
            return
        if window > 0x7FFFFFFF:
            raise spdy.SpdyError(f"an initial window of {window} bytes")
        self._keeps_windows = True
        for state in self._streams.values():
            # As in HTTP/2: a new initial window changes the windows of open streams by the difference.
            state.credit += window - self._initial
        self._initial = window

    def _forget_closed(self, stream: int, state: _Stream) -> None:
        if not state.receiving and not state.sending:
            self._streams.pop(stream, None)

    def _emit(self, frame: spdy.Frame) -> None:
        self._output += self._writer.encode(frame)
