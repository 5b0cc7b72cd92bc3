"""Write the text of many series; `exposition` describes the format."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport int64_t

from engine._fast.writing._bytes cimport (
    PIECE,
    PyBytes_FromStringAndSize,
    _PyBytes_Resize,
    e_all_within,
    e_longest,
    e_text,
    e_values,
    raw_bytes,
    take_values,
)

cdef extern from "exposition.h" nogil:
    ctypedef struct e_series:
        e_text heading
        e_text opening
        e_text ending
        const char *labels
        const int64_t *ends
        const int64_t *picked
        e_values values
        int64_t count
        int64_t next
        int point
    size_t e_most(const e_series *, int64_t)
    char *e_lines(e_series *, char *, const char *)


cdef e_text _text(bytes text):
    return e_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef class _Run:
    """One series, and the objects that own its memory."""

    cdef list kept
    cdef const int64_t[::1] ends
    cdef const int64_t[::1] picked
    cdef e_series series
    cdef size_t most

    def __init__(self, bytes heading, bytes opening, labels, values, int point, bytes ending, picked):
        cdef bytes text = labels[0]
        cdef int64_t longest
        self.kept = [heading, opening, text, ending]
        self.ends = labels[1]
        self.picked = self.ends if picked is None else picked
        self.series.count = take_values(values, &self.series.values, self.kept)
        if self.picked.shape[0] != self.series.count or not 0 <= point <= 18:
            raise ValueError(
                f"{opening!r}: {self.picked.shape[0]} labels, {self.series.count} values, point {point}"
            )
        self.series.heading, self.series.opening = _text(heading), _text(opening)
        self.series.ending, self.series.labels = _text(ending), PyBytes_AS_STRING(text)
        self.series.next, self.series.point = 0, point
        self.series.ends = self.series.picked = NULL
        if self.ends.shape[0]:
            self.series.ends = &self.ends[0]
        if picked is not None and self.picked.shape[0]:
            self.series.picked = &self.picked[0]
            if not e_all_within(self.series.picked, self.series.count, 0, self.ends.shape[0]):
                raise ValueError(f"{opening!r}: a point picks a label that does not exist")
        longest = e_longest(self.series.ends, self.ends.shape[0], PyBytes_GET_SIZE(text))
        if longest < 0:
            raise ValueError(f"{opening!r}: the ends of labels must not decrease")
        self.most = e_most(&self.series, longest)


def exposition(series, Py_ssize_t piece=PIECE):
    """Yield the text in pieces of whole lines, each of `piece` bytes or a little more; the last may be
    shorter.

    Raise `ValueError` if labels and values differ in number, labels do not end one after another, a picked
    label is out of range, or the point is out of range.
    """
    return _pieces([_Run(*one) for one in series], piece)


def _pieces(list runs, Py_ssize_t piece):
    cdef _Run run
    cdef size_t most = 0
    cdef Py_ssize_t at = 0
    for run in runs:
        most = max(most, run.most)
    while at < len(runs):
        whole, at = _piece(runs, at, piece, piece + most)
        if whole:
            yield whole


cdef tuple _piece(list runs, Py_ssize_t at, Py_ssize_t piece, size_t room):
    cdef _Run run
    cdef PyObject *text = PyBytes_FromStringAndSize(NULL, room)
    cdef char *start = raw_bytes(text)
    cdef char *out = start
    while at < len(runs) and out - start < piece:
        run = runs[at]
        with nogil:
            out = e_lines(&run.series, out, start + piece)
        if run.series.next == run.series.count:
            at += 1
    _PyBytes_Resize(&text, out - start)
    result = <object>text
    Py_DECREF(result)
    return result, at
