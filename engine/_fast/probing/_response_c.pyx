"""Read HTTP responses and resolve redirects; `response` states the rules."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef extern from "response.h" nogil:
    enum:
        HTTP_DONE
        AT_LENGTH
    ctypedef struct http_response:
        uint32_t body_bytes
        uint16_t status
        uint16_t location_len
        uint16_t excerpt_len
        uint8_t phase
        uint8_t verdict
        char location[2048]
        char excerpt[512]
    void http_reset(http_response *)
    uint8_t http_feed(http_response *, const uint8_t *, size_t, size_t *)
    uint8_t http_eof(http_response *, int)

cdef extern from "location.h" nogil:
    enum:
        LOCATION_SAME_HOST
    ctypedef struct http_location:
        uint16_t port
        size_t path_len
    uint8_t location_resolve(const char *, size_t, const char *, size_t, const char *, size_t,
                             char *, size_t, http_location *)


cdef class HttpResponse:
    """Read one response piece by piece. `feed` and `eof` return the verdict so far."""

    cdef http_response _response

    def __cinit__(self):
        http_reset(&self._response)

    def feed(self, const uint8_t[::1] data not None):
        cdef size_t at = 0
        cdef size_t used = 0
        cdef size_t n = data.shape[0]
        cdef uint8_t verdict = 0
        while True:
            verdict = http_feed(&self._response, &data[0] + at if n > at else NULL, n - at, &used)
            at += used
            if verdict != 1:
                return verdict

    def eof(self, *, bint reset=False):
        return http_eof(&self._response, reset)

    def result(self):
        """Return verdict, status, location and excerpt; only DONE fills the last three."""
        if self._response.verdict != HTTP_DONE:
            return self._response.verdict, 0, b"", b""
        return HTTP_DONE, self._response.status, self.location, self.excerpt

    @property
    def status(self):
        return self._response.status

    @property
    def in_body(self):
        """Whether the headers have ended."""
        return self._response.phase >= AT_LENGTH

    @property
    def location(self):
        return self._response.location[:self._response.location_len]

    @property
    def excerpt(self):
        return self._response.excerpt[:self._response.excerpt_len]


def parse(bytes data, *, bint reset=False):
    """Read a whole response, whose connection was closed or reset after `data`."""
    reader = HttpResponse()
    if reader.feed(data) < HTTP_DONE:
        reader.eof(reset=reset)
    return reader.result()


def resolve(str value, str host, str base):
    """Resolve a Location: verdict, port (0 if unchanged), path."""
    cdef bytes v = value.encode(), h = host.encode(), b = base.encode()
    cdef char out[8192]
    cdef http_location found
    cdef uint8_t verdict = location_resolve(v, len(v), h, len(h), b, len(b), out, sizeof(out), &found)
    if verdict != LOCATION_SAME_HOST:
        return verdict, 0, ""
    return verdict, found.port, out[:found.path_len].decode(errors="surrogateescape")
