"""Read responses over HTTP/2 to a health check, an exec or a GET; `grpc` names the verdicts."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef extern from "grpc.h" nogil:
    enum:
        GRPC_GET
    ctypedef struct grpc_buffers:
        pass
    ctypedef struct grpc_answer:
        int32_t detail
        uint8_t verdict
    void grpc_reset(grpc_answer *, uint8_t, grpc_buffers *, char *)
    uint8_t grpc_feed(grpc_answer *, const uint8_t *, size_t)
    uint8_t grpc_eof(grpc_answer *)
    size_t grpc_reply(grpc_answer *, uint8_t *)
    const char *grpc_text(const grpc_answer *, uint32_t *)


cdef class GrpcAnswer:
    """Read one response piece by piece. `feed` and `eof` return the verdict so far."""

    cdef grpc_answer _answer
    cdef grpc_buffers _buffers
    cdef char _output[10240]  # EXEC_OUTPUT_LIMIT

    def __cinit__(self, int call=0):
        if not 0 <= call <= GRPC_GET:
            raise ValueError(f"call {call} is not 0 (health), 1 (exec) or 2 (GET)")
        grpc_reset(&self._answer, <uint8_t>call, &self._buffers, self._output)

    def feed(self, const uint8_t[::1] data not None):
        if data.shape[0] == 0:
            return self._answer.verdict
        return grpc_feed(&self._answer, &data[0], data.shape[0])

    def eof(self):
        return grpc_eof(&self._answer)

    def result(self):
        """Return verdict, detail and text."""
        cdef uint32_t size = 0
        cdef const char *text = grpc_text(&self._answer, &size)
        return self._answer.verdict, self._answer.detail, text[:size]

    def reply(self):
        """Return the frames that the server waits for; call it once per piece."""
        cdef uint8_t waiting[256]  # GRPC_REPLY_SIZE
        cdef size_t size = grpc_reply(&self._answer, waiting)
        return (<char *>waiting)[:size]


def parse(bytes data, int call=0):
    """Return verdict, detail and text of everything that a server sent."""
    reader = GrpcAnswer(call)
    reader.feed(data)
    reader.eof()
    return reader.result()
