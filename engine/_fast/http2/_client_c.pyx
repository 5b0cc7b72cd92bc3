"""The Python interface of `client.h`: frames and flow control of one connection, without its socket."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef extern from "client.h" nogil:
    enum:
        HTTP2_MORE
        HTTP2_FIELD
        HTTP2_HEAD
        HTTP2_DATA
        HTTP2_END
        HTTP2_RESET
        HTTP2_GOAWAY
        HTTP2_SETTINGS
        HTTP2_WINDOW
        HTTP2_PONG
        HTTP2_BROKEN
        HTTP2_PREFACE_SIZE
        HPACK_FIELD_OVERHEAD
        FRAME_HEAD
        FRAME_DATA
        FRAME_HEADERS
        FRAME_RST_STREAM
        FRAME_PING
        FRAME_GOAWAY
        FRAME_CONTINUATION
        FRAME_LIMIT
        FLAG_END_STREAM
        FLAG_END_HEADERS
        WINDOW_DEFAULT
        WINDOW_LIMIT
    ctypedef struct hpack_table:
        pass
    ctypedef struct hpack_field:
        const char *name
        const char *value
        uint32_t name_len
        uint32_t value_len
    ctypedef struct http2_stream:
        uint32_t id
        uint8_t sent
        uint8_t ended
    ctypedef struct http2_event:
        uint8_t kind
        uint32_t stream
        uint32_t code
        uint32_t last
        const hpack_field *field
        const uint8_t *data
        size_t size
    ctypedef struct http2:
        http2_stream *streams
        uint32_t capacity
        uint32_t open
        uint32_t most_streams
        uint32_t list_limit
        uint32_t idle_limit
        uint8_t settled
        uint8_t broken
    void http2_reset(http2 *, http2_stream *, uint32_t, uint32_t, uint32_t, hpack_table *, char *, uint32_t)
    void http2_calm(http2 *)
    http2_stream *http2_find(const http2 *, uint32_t)
    int http2_usable(const http2 *)
    uint32_t http2_streams_left(const http2 *)
    http2_stream *http2_open(http2 *)
    void http2_remove_stream(http2 *, uint32_t)
    uint32_t http2_sendable(const http2 *, const http2_stream *)
    void http2_sent(http2 *, http2_stream *, uint32_t, int)
    void http2_take(http2 *, uint32_t, uint32_t)
    size_t http2_write_preface(const http2 *, uint8_t *)
    size_t http2_write_answers(http2 *, uint8_t *, size_t)
    uint8_t http2_receive(http2 *, const uint8_t *, size_t, size_t *, http2_event *)
    uint8_t *frame_write_head(uint8_t *, uint32_t, uint8_t, uint8_t, uint32_t)
    uint8_t *frame_write_one(uint8_t *, uint8_t, uint32_t, uint32_t)
    uint8_t *frame_write_number(uint8_t *, uint32_t)
    size_t hpack_write(uint8_t *, hpack_field, int)

HEAD, DATA, END, RESET, GOAWAY, SETTINGS, PONG, BROKEN = (
    HTTP2_HEAD, HTTP2_DATA, HTTP2_END, HTTP2_RESET, HTTP2_GOAWAY, HTTP2_SETTINGS, HTTP2_PONG, HTTP2_BROKEN
)


def encode(headers, secret=()):
    """Encode a header block of (name, value) bytes, which can be sent on any connection, any number of times.

    Values of the names in `secret` are marked as never indexed.
    """
    cdef hpack_field f
    cdef bytes name, value
    cdef size_t room = 1, at = 0
    for name, value in headers:
        room += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + HPACK_FIELD_OVERHEAD
    cdef bytearray out = bytearray(room)
    cdef uint8_t[::1] view = out
    for name, value in headers:
        f.name, f.name_len = PyBytes_AS_STRING(name), <uint32_t>PyBytes_GET_SIZE(name)
        f.value, f.value_len = PyBytes_AS_STRING(value), <uint32_t>PyBytes_GET_SIZE(value)
        at += hpack_write(&view[at], f, name in secret)
    return bytes(view[:at])


cdef class ClientConnection:
    """One connection: takes requests and received bytes, returns events and bytes to send.

    `stream_window` and `connection_window` bound the unread data that the server may send, and
    `header_list` the size of one header block, with 32 bytes for each field (RFC 9113, 6.5.2). The
    connection breaks if the server sends more than `idle_frames` frames without data for an open request
    between two responses or calls of `calm`.
    """

    cdef http2 _core
    cdef hpack_table *_table
    cdef char *_scratch
    cdef uint8_t *_out
    cdef size_t _out_len, _out_room
    cdef list _fields
    cdef uint32_t _fields_of
    cdef dict _bodies
    cdef uint32_t _most

    def __cinit__(self, *, uint32_t stream_window=1 << 20, uint32_t connection_window=1 << 26,
                  uint32_t header_list=1 << 16, uint32_t max_streams=10_000,
                  uint32_t idle_frames=10_000):
        if not WINDOW_DEFAULT <= stream_window <= WINDOW_LIMIT:
            raise ValueError(f"stream_window {stream_window} is not one of 65535 to 2147483647")
        if not WINDOW_DEFAULT <= connection_window <= WINDOW_LIMIT:
            raise ValueError(f"connection_window {connection_window} is not one of 65535 to 2147483647")
        if not 4096 <= header_list <= 1 << 24 or not max_streams:
            raise ValueError("header_list is not one of 4096 to 16777216, or max_streams is 0")
        self._table = <hpack_table *>malloc(sizeof(hpack_table))
        self._scratch = <char *>malloc(header_list)
        cdef http2_stream *streams = <http2_stream *>malloc(16 * sizeof(http2_stream))
        if self._table == NULL or self._scratch == NULL or streams == NULL:
            free(streams)
            raise MemoryError
        cdef uint32_t few = min(max_streams, 16)
        http2_reset(&self._core, streams, few, stream_window, connection_window, self._table, self._scratch,
                    header_list)
        self._core.list_limit = header_list
        self._core.idle_limit = idle_frames
        self._most = max_streams
        self._fields = []
        self._bodies = {}
        self._need(HTTP2_PREFACE_SIZE)
        self._out_len = http2_write_preface(&self._core, self._out)

    def __dealloc__(self):
        free(self._core.streams)
        free(self._table)
        free(self._scratch)
        free(self._out)

    @property
    def usable(self):
        """Whether requests can start, now or after others have ended."""
        return bool(http2_usable(&self._core))

    @property
    def ready(self):
        """Whether a request can start now."""
        if self._core.open == self._core.capacity and self._core.capacity < self._most:
            self._grow()
        return http2_streams_left(&self._core) > 0

    @property
    def open(self):
        """The number of requests without a complete response."""
        return self._core.open

    @property
    def settled(self):
        """Whether the server has sent valid HTTP/2."""
        return bool(self._core.settled)

    def request(self, const uint8_t[::1] block not None, bytes body not None=b""):
        """Start a request with the header block `block` and its whole body, and return its stream.

        Raises RuntimeError if the connection is not `ready`.
        """
        if not self.ready:
            raise RuntimeError("the connection accepts no further requests")
        cdef http2_stream *s = http2_open(&self._core)
        cdef size_t left = block.shape[0], at = 0, piece
        cdef bint empty = not body
        cdef uint8_t flags = FLAG_END_STREAM if empty else 0
        cdef uint8_t type = FRAME_HEADERS
        cdef uint32_t stream = s.id
        while True:
            piece = min(left, <size_t>FRAME_LIMIT)
            left -= piece
            self._need(FRAME_HEAD + piece)
            frame_write_head(self._out + self._out_len, <uint32_t>piece, type,
                             flags | (0 if left else FLAG_END_HEADERS), stream)
            if piece:
                memcpy(self._out + self._out_len + FRAME_HEAD, &block[at], piece)
            self._out_len += FRAME_HEAD + piece
            at += piece
            type, flags = FRAME_CONTINUATION, 0
            if not left:
                break
        if empty:
            s.sent = 1
        else:
            self._send(s, body, 0)
        return stream

    def receive(self, const uint8_t[::1] data not None):
        """Parse bytes from the server into a list of (kind, stream, what, number).

        HEAD: a header block as a list of (name, value); DATA: bytes, to acknowledge with `take`; END;
        RESET and BROKEN: the error code as number; GOAWAY: as stream the last one that gets a response, and
        the code; SETTINGS and PONG.
        """
        cdef list events = []
        cdef bytes data_read
        cdef http2_event e
        cdef size_t left = data.shape[0], used
        cdef const uint8_t *at = &data[0] if left else NULL
        while http2_receive(&self._core, at, left, &used, &e) != HTTP2_MORE:
            at += used
            left -= used
            if e.kind == HTTP2_FIELD:
                if self._fields_of != e.stream:  # a reset of its stream cut the earlier block off
                    self._fields, self._fields_of = [], e.stream
                self._fields.append((
                    PyBytes_FromStringAndSize(e.field.name, e.field.name_len),
                    PyBytes_FromStringAndSize(e.field.value, e.field.value_len),
                ))
            elif e.kind == HTTP2_HEAD:
                events.append((HTTP2_HEAD, e.stream, self._fields, 0))
                self._fields = []
            elif e.kind == HTTP2_DATA:
                data_read = PyBytes_FromStringAndSize(<const char *>e.data, <Py_ssize_t>e.size)
                events.append((HTTP2_DATA, e.stream, data_read, 0))
            elif e.kind == HTTP2_WINDOW:
                self._pump(e.stream)
            elif e.kind == HTTP2_SETTINGS:
                self._answer()  # must be sent before frames that only the new settings allow
                self._pump(0)
                events.append((HTTP2_SETTINGS, 0, None, 0))
            elif e.kind == HTTP2_GOAWAY:
                events.append((HTTP2_GOAWAY, e.last, None, e.code))
            else:
                if e.kind == HTTP2_RESET:
                    self._bodies.pop(e.stream, None)
                elif e.kind == HTTP2_END:
                    http2_calm(&self._core)
                    if e.stream in self._bodies:
                        self.reset(e.stream, 0)  # the server responded before it had read the whole request
                events.append((e.kind, e.stream, None, e.code))
                if e.kind == HTTP2_BROKEN:
                    self._write_goaway(e.code)
                    break
        return events

    def calm(self):
        """Count the frames without data from 0 again."""
        http2_calm(&self._core)

    def take(self, uint32_t stream, uint32_t size):
        """Record that `size` bytes of a stream's data were read: the server may send as many again."""
        http2_take(&self._core, stream, size)

    def reset(self, uint32_t stream, uint32_t code):
        """Cancel a request whose response, or the rest of it, is no longer needed."""
        if http2_find(&self._core, stream) == NULL:
            return
        http2_remove_stream(&self._core, stream)
        self._bodies.pop(stream, None)
        self._need(FRAME_HEAD + 4)
        frame_write_one(self._out + self._out_len, FRAME_RST_STREAM, stream, code)
        self._out_len += FRAME_HEAD + 4

    def ping(self, bytes data not None):
        """Ask for a PONG; `data` is 8 bytes."""
        if len(data) != 8:
            raise ValueError("a ping has 8 bytes")
        self._need(FRAME_HEAD + 8)
        frame_write_head(self._out + self._out_len, 8, FRAME_PING, 0, 0)
        memcpy(self._out + self._out_len + FRAME_HEAD, PyBytes_AS_STRING(data), 8)
        self._out_len += FRAME_HEAD + 8

    def output(self):
        """Return the bytes to send now."""
        self._answer()
        cdef bytes waiting = PyBytes_FromStringAndSize(<char *>self._out, <Py_ssize_t>self._out_len)
        self._out_len = 0
        if self._out_room > 1 << 16:
            free(self._out)
            self._out, self._out_room = NULL, 0
        return waiting

    cdef int _need(self, size_t size) except -1:
        """Make space for `size` more bytes to send."""
        cdef size_t room = max(self._out_len + size, 2 * self._out_room)
        cdef uint8_t *grown
        if self._out_len + size > self._out_room:
            grown = <uint8_t *>realloc(self._out, room)
            if grown == NULL:
                raise MemoryError
            self._out, self._out_room = grown, room
        return 0

    cdef int _grow(self) except -1:
        cdef uint32_t capacity = min(2 * self._core.capacity, self._most)
        cdef size_t size = capacity * sizeof(http2_stream)
        cdef http2_stream *grown = <http2_stream *>realloc(self._core.streams, size)
        if grown == NULL:
            raise MemoryError
        self._core.streams, self._core.capacity = grown, capacity
        return 0

    cdef int _answer(self) except -1:
        """Queue the frames that the server waits for."""
        cdef size_t size = 1
        while size:
            self._need(4096)
            size = http2_write_answers(&self._core, self._out + self._out_len, 4096)
            self._out_len += size
        return 0

    cdef int _write_goaway(self, uint32_t code) except -1:
        self._answer()
        self._need(FRAME_HEAD + 8)
        cdef uint8_t *at = frame_write_head(self._out + self._out_len, 8, FRAME_GOAWAY, 0, 0)
        frame_write_number(frame_write_number(at, 0), code)
        self._out_len += FRAME_HEAD + 8
        return 0

    cdef int _send(self, http2_stream *s, bytes body, Py_ssize_t at) except -1:
        """Queue as much of a body as the windows allow; the rest waits for them."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef uint32_t piece, stream = s.id
        cdef bint ends = False
        while not ends:
            piece = http2_sendable(&self._core, s)
            if piece == 0:
                self._bodies[stream] = (body, at)
                return 0
            if piece >= size - at:
                piece, ends = <uint32_t>(size - at), True
            self._need(FRAME_HEAD + piece)
            frame_write_head(self._out + self._out_len, piece, FRAME_DATA,
                             FLAG_END_STREAM if ends else 0, stream)
            memcpy(self._out + self._out_len + FRAME_HEAD, PyBytes_AS_STRING(body) + at, piece)
            self._out_len += FRAME_HEAD + piece
            at += piece
            http2_sent(&self._core, s, piece, ends)
        self._bodies.pop(stream, None)
        return 0

    cdef int _pump(self, uint32_t stream) except -1:
        """Continue bodies after the window of one stream, or (0) of all, has grown."""
        cdef http2_stream *s
        if not self._bodies or (stream and stream not in self._bodies):
            return 0
        for one in [stream] if stream else list(self._bodies):
            s = http2_find(&self._core, one)
            if s == NULL:
                self._bodies.pop(one, None)
            else:
                body, at = self._bodies[one]
                self._send(s, body, at)
        return 0
