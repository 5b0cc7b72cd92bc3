"""Probes over HTTP/2 beyond the kubelet's: gRPC over TLS, and GET without TLS (h2c)."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.probes.request import MAX_AUTHORITY, h2c_request
from engine.probes.spec import probe_specs
from tests.probes.probed_pods import Handler, pod_with, replying, serving
from tests.waiting import eventually

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
GRPC_HEADERS = b"\0\0\1\1\4\0\0\0\1\x88"
TRAILERS = b"\0\0\x0f\1\5\0\0\0\1\x40\x0bgrpc-status\0010"
H2C = {"ms": {"http2": True}, "failureThreshold": 1}
TLS = {"ms": {"tls": True}, "failureThreshold": 1}


def health(status: int) -> bytes:
    return SETTINGS + GRPC_HEADERS + b"\0\0\7\0\0\0\0\0\1\0\0\0\0\2\x08" + bytes((status,)) + TRAILERS


def answer(status: bytes, body: int = 0, *, ends: bool = True) -> bytes:
    """Return an answer: `status` as one byte of HPACK, and DATA frames of at most 5,000 bytes."""
    flags = 5 if ends and not body else 4
    frames = SETTINGS + b"\0\0\1\1" + bytes((flags,)) + b"\0\0\0\1" + status
    for at in range(0, body, 5000):
        size = min(5000, body - at)
        last = ends and at + size == body
        frames += size.to_bytes(3, "big") + b"\0" + bytes((last,)) + b"\0\0\0\1" + bytes(size)
    return frames


def sending(reply: bytes) -> Handler:
    """Return a handler that answers the preface at once, and waits until the peer closes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        writer.write(reply)
        await writer.drain()
        await reader.read(-1)

    return handler


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    path = tmp_path_factory.mktemp("tls") / "wrong.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=wrong.example"
    subprocess.run([*make.split(), "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize("host", ["", "localhost"], ids=["native", "by-name"])
@pytest.mark.parametrize(
    ("reply", "outcome", "words"),
    [
        (answer(b"\x88", 2), "success", ""),
        (answer(b"\x89"), "success", ""),
        (answer(b"\x88", 40_000, ends=False), "success", ""),
        (answer(b"\x8b"), "warning", "redirects"),
        (answer(b"\x8d", 3), "failure", "statuscode: 404"),
        (answer(b"\x8e"), "failure", "statuscode: 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "failure", "is not HTTP/2"),
        (SETTINGS + b"\0\0\4\3\0\0\0\0\1\0\0\0\2", "failure", "HTTP/2 error 2"),
        (b"", "failure", "closed"),
    ],
    ids=["200", "204", "endless", "304", "404", "500", "http1", "reset", "silent-close"],
)
async def test_h2c(rig, host: str, reply: bytes, outcome: str, words: str):
    handler = sending(reply)
    if not reply:

        async def handler(reader, writer):
            await reader.readexactly(24)

    async with serving(handler) as port:
        get = {"port": port, **({"host": host} if host else {})}
        rig.run(pod_with(readiness={"httpGet": get, **H2C}))
        await eventually(lambda: rig.probe("readiness")["outcomes"][outcome])
        await eventually(lambda: words in rig.probe("readiness")["output"])


async def test_the_request_of_an_h2c_probe(rig):
    """Read by another implementation of HTTP/2."""
    requests: list[dict[str, str]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65536):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    assert event.stream_ended is not None
                    requests.append({k.decode(): v.decode() for k, v in event.headers})
                    connection.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
            writer.write(connection.data_to_send())
            await writer.drain()

    headers = [{"name": "X-Probe", "value": "1"}, {"name": "Connection", "value": "keep-alive"}]
    async with serving(handler) as port:
        plain = {"httpGet": {"port": port, "path": "/a?b=c", "httpHeaders": headers}, **H2C}
        rig.run(pod_with("a", readiness=plain))
        await eventually(lambda: rig.manager.is_ready("a", "app"))
        named = {"port": port, "httpHeaders": [{"name": "Host", "value": "web.example"}]}
        rig.run(pod_with("b", readiness={"httpGet": named, **H2C}))
        await eventually(lambda: rig.manager.is_ready("b", "app"))
    first, last = requests[0], requests[-1]
    assert (first[":method"], first[":scheme"], first[":path"]) == ("GET", "http", "/a?b=c")
    assert first[":authority"] == f"127.0.0.1:{port}"
    assert first["x-probe"] == "1"
    assert first["user-agent"].startswith("kube-probe/")
    assert "connection" not in first
    assert any(request[":authority"] == "web.example" for request in requests), last


@pytest.mark.parametrize(
    ("reply", "outcome", "words"),
    [
        (health(1), "success", ""),
        (health(2), "failure", "NOT_SERVING"),
        (b"garbage that is nothing", "failure", "is not HTTP/2"),
    ],
)
async def test_grpc_over_tls(rig, tls, reply: bytes, outcome: str, words: str):
    async with serving(sending(reply), ssl=tls) as port:
        rig.run(pod_with(readiness={"grpc": {"port": port}, **TLS}))
        await eventually(lambda: rig.probe("readiness")["outcomes"][outcome])
        await eventually(lambda: words in rig.probe("readiness")["output"])
    assert rig.probe("readiness")["kind"] == "grpcs"


async def test_grpc_over_tls_with_a_server_that_has_none(rig):
    async with serving(replying(health(1))) as port:
        rig.run(pod_with(liveness={"grpc": {"port": port}, **TLS}))
        await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
        assert "failed to connect service" in rig.probe("liveness")["output"]


async def test_grpc_over_tls_times_out(rig, tls):
    async with serving(sending(b""), ssl=tls) as port:
        ms = {"tls": True, "timeoutMilliseconds": 300}
        rig.run(pod_with(liveness={"grpc": {"port": port}, "ms": ms, "failureThreshold": 1}))
        await eventually(lambda: rig.manager.failed("u1", "app", "c1") == "liveness")
        assert "health rpc did not complete" in rig.probe("liveness")["output"]


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ({"httpGet": {"port": 1}, "ms": {"tls": True}}, "tls is for grpc"),
        ({"tcpSocket": {"port": 1}, "ms": {"http2": True}}, "http2 is for httpGet without TLS"),
        (
            {"httpGet": {"port": 1, "scheme": "HTTPS"}, "ms": {"http2": True}},
            "http2 is for httpGet without TLS",
        ),
        ({"httpGet": {"port": 1}, "ms": {"network": "host"}}, "Invalid enum value 'host'"),
    ],
)
def test_impossible_requests_are_refused(probe: dict[str, Any], words: str):
    with pytest.raises(InvalidInput, match=words):
        probe_specs(pod_with(readiness=probe), ProbesSection())


def test_a_request_that_no_server_takes():
    with pytest.raises(InvalidInput, match=f"longer than {MAX_AUTHORITY} bytes"):
        h2c_request("127.0.0.1", 80, "/", [("Host", "x" * 127)])
    with pytest.raises(InvalidInput, match="longer than 16000 bytes"):
        h2c_request("127.0.0.1", 80, "/" + "x" * 16_000)
