"""The response reader: valid and refused responses, and the compiled form against its twin on any bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine._fast.probing import _response_c as compiled
from engine._fast.probing.response import BAD, BROKEN, DONE, FOREIGN, MALFORMED, SAME_HOST, TLS
from tests.fast.probing import response_twin as twin

FORMS = pytest.mark.parametrize("form", [twin, compiled], ids=["twin", "compiled"])
PIECES = [
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 302 \n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 204\r\n",
    b"HTTP/2.0  500 x\n",
    b"Content-Length: 3\r\n",
    b"Content-length:\t03 \n",
    b"Content-Length: 4\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Location: /x\r\n",
    b"Location: http://h/y\n",
    b" folded\r\n",
    b"\tmore\n",
    b"Location:\r\n",
    b"X-A: \x00\r\n",
    b"Bad Name : v\r\n",
    b": v\r\n",
    b"no colon\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"abc",
    b"3\r\n",
    b"3;ext=1\r\n",
    b"0\r\n",
    b"fffffffffffffff\n",
    b"3 \r\n",
    b"0\r\n\r\n",
    b"T: v\r\n",
    b"0\r\nT: v\r\n\r\n",
    b"3\r\nabc\r\n",
    b"x" * 11000,
    b"Location: " + b"v" * 2047 + b"\r\n",
    b"Location: " + b"v" * 2040 + b" " * 20 + b"\n",
    b"Transfer-Encoding: " + b"v" * 2049 + b"\n",
    b" " + b"w" * 2040,
    b" " * 3000,
    b"2800\r\n",
    b"HTTP/",
    b" ",
    b"\x00",
]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
stream = st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=12).map(b"".join)


@FORMS
@pytest.mark.parametrize(
    ("data", "verdict", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", DONE, 200),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", DONE, 200),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok and more", DONE, 200),
        (b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\n", DONE, 404),
        (b"HTTP/1.1 103 E\r\n\r\n" * 60 + b"HTTP/1.1 200 OK\r\n\r\n", DONE, 200),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 102_400 + b"\r\n\r\n", DONE, 200),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"z" * 1_000_000, DONE, 200),
        (b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n", MALFORMED, 0),
        (b"\x00" * 400, MALFORMED, 0),
        (b"SSH-2.0-OpenSSH\r\n", MALFORMED, 0),
        (b"HTTP/1.1 2000 OK\r\n\r\n", MALFORMED, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", BROKEN, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", MALFORMED, 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", BROKEN, 0),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", DONE, 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 00\r\n\r\n", MALFORMED, 0),
        (CHUNKED + b"2;x=y\r\nok\r\n0\r\nA: b\r\n\tc\r\n\r\n", DONE, 200),
        (CHUNKED + b"2\nok\r\n0\r\n\r\n", BROKEN, 0),
        (CHUNKED + b"2\r\nok\n0\r\n\r\n", BROKEN, 0),
        (CHUNKED + b"0\r\n\n", BROKEN, 0),
        (CHUNKED + b"0\r\nno colon\r\n\r\n", BROKEN, 0),
        (CHUNKED + b"0\r\n folded: a\r\n\r\n", BROKEN, 0),
        (b"HTTP/1.1 200 OK\r\n", MALFORMED, 0),
        (b"", MALFORMED, 0),
    ],
)
def test_verdicts(form, data, verdict, status):
    assert form.parse(data)[:2] == (verdict, status)


@settings(max_examples=500, deadline=None)
@given(stream, st.booleans())
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n 4\r\n\r\nabc", False)
@example(b"HTTP/1.1 302 F\nLocation: \nLocation: /x\n\n", False)
@example(b"HTTP/1.1 302 F\nLocation: " + b"v" * 2048 + b" \n\n", False)
@example(b"HTTP/1.1 302 F\nLocation: " + b"v" * 2048 + b" w\n\n", False)
@example(b"HTTP/1.1 302 F\nLocation: " + b"v" * 2047 + b"\n w\n\n", False)
@example(b"HTTP/1.1 302 F\nLocation: " + b"v" * 2048 + b"\n  \n\n", False)
@example(b"HTTP/1.1 100 C\nLocation: " + b"v" * 2049 + b"\n\nHTTP/1.1 200\n\n", False)
@example(b"HTTP/1.1 100 C\nContent-Length: x\n\nHTTP/1.1 200\n\n", False)
@example(b"HTTP/1.0 200 C\nTransfer-Encoding: " + b"v" * 2049 + b"\n\n", False)
def test_compiled_agrees_with_twin(data, reset):
    assert compiled.parse(data, reset=reset) == twin.parse(data, reset=reset)


@settings(max_examples=150, deadline=None)
@given(stream, st.integers(1, 7))
def test_cutting_the_input_changes_nothing(data, size):
    reader = compiled.HttpResponse()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    reader.eof()
    assert reader.result() == compiled.parse(data)


@settings(max_examples=600, deadline=None)
@given(
    st.text("ht/:.?#@[]%a15 \x00", max_size=14)
    | st.lists(
        st.sampled_from(
            [
                "http:",
                "HttpS:",
                "ftp:",
                "//",
                "h",
                "/",
                "..",
                ".",
                "a",
                "?q",
                "#f",
                ":80",
                ":x",
                "u@",
                "%4",
                "(",
                "é",
            ]
        )
    ).map("".join),
    st.sampled_from(["/", "/p/q?r=/s", "/p/"]),
)
def test_redirects_agree(value, base):
    assert compiled.resolve(value, "h", base) == twin.resolve(value, "h", base)


@FORMS
def test_redirects(form):
    for value, expected in {
        "/login": (SAME_HOST, 0, "/login"),
        "http://10.0.0.1:8080/x?y": (SAME_HOST, 8080, "/x?y"),
        "http://10.0.0.1": (SAME_HOST, 80, "/"),
        "http://10.0.0.10/": (FOREIGN, 0, ""),
        "http://0.0.0.0/": (FOREIGN, 0, ""),
        "//10.0.0.1/z": (SAME_HOST, 80, "/z"),
        "https://10.0.0.1/": (TLS, 0, ""),
        "../c": (SAME_HOST, 0, "/c"),
        "http://10.0.0.1:99999/": (BAD, 0, ""),
        "mailto:root": (FOREIGN, 0, ""),
        "HTTP://10.0.0.1/x": (SAME_HOST, 80, "/x"),
        "HTTPS://10.0.0.1/x": (TLS, 0, ""),
        "http://10.0.0.10:99999/": (FOREIGN, 0, ""),
        "ftp://10.0.0.1/": (BAD, 0, ""),
        "1http://x/": (BAD, 0, ""),
        "a:b": (FOREIGN, 0, ""),
        "_a:b": (BAD, 0, ""),
        "//": (SAME_HOST, 0, "/a/b"),
        "///x": (SAME_HOST, 0, "///x"),
        "/sign in?next=a b": (SAME_HOST, 0, "/sign%20in?next=a b"),
        "/(x)": (SAME_HOST, 0, "/(x)"),
        "/(é)": (SAME_HOST, 0, "/%28%C3%A9%29"),
        "/a%20b": (SAME_HOST, 0, "/a%20b"),
        "/%zz": (BAD, 0, ""),
        "/a?%zz": (SAME_HOST, 0, "/a?%zz"),
        "/a#%zz": (BAD, 0, ""),
    }.items():
        assert form.resolve(value, "10.0.0.1", "/a/b") == expected, value
