"""Write the text of many objects; `members` describes the steps."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, PyObject
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcpy

from engine._fast.writing._bytes cimport (
    PIECE,
    PyBytes_FromStringAndSize,
    _PyBytes_Resize,
    e_longest,
    e_text,
    e_values,
    raw_bytes,
    take_values,
)

cdef extern from "members.h" nogil:
    enum:
        M_OPEN
        M_CLOSE
        M_MOMENT
        M_MOST_STEPS
    ctypedef struct m_step:
        e_text text
        e_values values
        int form
    ctypedef struct m_form:
        m_step steps[128]
        int count
        int64_t rows
    size_t m_most(const m_form *)
    char *m_members(char *, const char *, const m_form *, int64_t)


cdef class _Form:
    """One form, and the objects that own its memory."""

    cdef m_form form
    cdef list kept

    def __init__(self, steps):
        cdef bytes text
        cdef int at = 0, depth = 0, form
        self.kept = []
        self.form.count, self.form.rows = len(steps), INT64_MAX
        if len(steps) > M_MOST_STEPS:
            raise ValueError(f"a form of {len(steps)} steps")
        for text, values, form in steps:
            depth += (form == M_OPEN) - (form == M_CLOSE)
            if depth < 0 or not M_MOMENT <= form <= 18 or (values is None) != (form in (M_OPEN, M_CLOSE)):
                raise ValueError("not a form")
            self.form.steps[at] = m_step(
                e_text(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)), e_values(NULL, 0, NULL), form
            )
            if values is not None:
                self.form.rows = min(
                    self.form.rows, take_values(values, &self.form.steps[at].values, self.kept)
                )
            self.kept.append(text)
            at += 1
        if depth:
            raise ValueError(f"a form that leaves {depth} objects open")


cdef class _Page:
    """All forms of a page."""

    cdef bytes text
    cdef const int64_t[::1] ends
    cdef const int64_t[::1] which
    cdef const int64_t[::1] rows
    cdef list forms
    cdef Py_ssize_t next
    cdef size_t most

    def __init__(self, texts, forms, which, rows):
        cdef _Form form
        cdef int64_t longest
        cdef Py_ssize_t i
        self.text = texts[0]
        self.ends, self.which, self.rows = texts[1], which, rows
        if not self.ends.shape[0] == self.which.shape[0] == self.rows.shape[0]:
            raise ValueError(f"{len(texts[1])} texts, {len(which)} forms, {len(rows)} rows")
        longest = e_longest(&self.ends[0] if self.ends.shape[0] else NULL, self.ends.shape[0],
                            PyBytes_GET_SIZE(self.text))
        if longest < 0:
            raise ValueError("the ends of texts must not decrease")
        self.forms = [_Form(steps) for steps in forms]
        self.next = 0
        self.most = 0
        for form in self.forms:
            self.most = max(self.most, m_most(&form.form))
        self.most += longest
        for i in range(self.which.shape[0]):
            if self.which[i] < -1 or self.which[i] >= len(self.forms):
                raise ValueError("a row names a form that does not exist")
            if self.which[i] >= 0:
                form = self.forms[self.which[i]]
                if not 0 <= self.rows[i] < form.form.rows:
                    raise ValueError(
                        f"form {self.which[i]} has {form.form.rows} rows, and others are asked for"
                    )

    cdef bytes piece(self, Py_ssize_t size):
        cdef _Form form
        cdef PyObject *text = PyBytes_FromStringAndSize(NULL, size + self.most)
        cdef char *start = raw_bytes(text)
        cdef char *out = start
        cdef char *begin
        cdef const char *source = PyBytes_AS_STRING(self.text)
        cdef int64_t first, length
        while self.next < self.ends.shape[0] and out - start < size:
            first = self.ends[self.next - 1] if self.next else 0
            length = self.ends[self.next] - first
            memcpy(out, source + first, length)
            begin = out
            out += length
            if self.which[self.next] >= 0:
                form = <_Form>self.forms[self.which[self.next]]
                out = m_members(out, begin, &form.form, self.rows[self.next])
            self.next += 1
        _PyBytes_Resize(&text, out - start)
        result = <object>text
        Py_DECREF(result)
        return <bytes>result


def filled(texts, forms, which, rows, Py_ssize_t piece=PIECE):
    """Yield the text in pieces of `piece` bytes or a little more; the last may be shorter.

    The text is each of `texts`, followed by the members of its form (`which`, -1 for none) with the values
    of its row (`rows`). A comma comes before a member unless a brace does.

    Raise ValueError if columns differ in length, the ends of texts decrease, a form or row does not exist, or
    a form does not close each object that it opens.
    """
    return _pieces(_Page(texts, forms, which, rows), piece)


def _pieces(_Page page, Py_ssize_t piece):
    while page.next < page.ends.shape[0]:
        whole = page.piece(piece)
        if whole:
            yield whole
