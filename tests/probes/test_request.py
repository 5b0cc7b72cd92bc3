"""What HTTP probes send. The expected requests are those of the kubelet v1.36, recorded by a server."""

from __future__ import annotations

import pytest

from engine.probes.request import http_request


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/healthz?full=1", "/healthz?full=1"),
        ("healthz", "/healthz"),
        ("", "/"),
        ("/a b", "/a%20b"),
        ('/a|b"', "/a%7Cb%22"),
        ("/é(x)", "/%C3%A9%28x%29"),
        ("/(x)", "/(x)"),
        ("/%41/%2F", "/%41/%2F"),
        ('/%41%2F"', "/A/%22"),
        ("/x?y=|", "/x?y=|"),
        ("/x#frag", "/x"),
        ("/(x)%~?q#f", "/%28x%29%25~%3Fq%23f"),
        ("/x#%zz", "/x%23%25zz"),
    ],
)
def test_paths(path, sent):
    assert http_request("10.0.0.1", 80, path)[0] == sent.encode()


@pytest.mark.parametrize(
    ("headers", "host", "lines"),
    [
        ([], b"", ["User-Agent: kube-probe/1.36", "Accept: */*", "Connection: close"]),
        (
            [("Content-Length", "5"), ("transfer-encoding", "chunked"), ("Trailer", "X"), ("X-A", "1")],
            b"",
            ["User-Agent: kube-probe/1.36", "Accept: */*", "X-A: 1", "Connection: close"],
        ),
        (
            [("Host", "a.example"), ("host", "b.example"), ("User-Agent", "one"), ("User-Agent", "two")],
            b"a.example",
            ["Accept: */*", "User-Agent: one", "Connection: close"],
        ),
        ([("Accept", ""), ("User-Agent", "")], b"", ["Connection: close"]),
        ([("Host", ""), ("Host", "a.example"), ("Accept", "text/plain")], b"", None),
        ([("Connection", "close")], b"", ["User-Agent: kube-probe/1.36", "Accept: */*", "Connection: close"]),
    ],
)
def test_headers(headers, host, lines):
    _, sent_host, rest = http_request("10.0.0.1", 80, "/", headers)
    assert sent_host == host
    if lines is not None:
        assert rest.decode() == "".join(f"{line}\r\n" for line in lines) + "\r\n"
