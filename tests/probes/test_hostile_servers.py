"""Servers that mean harm or are broken: the right outcome, in time, in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct

import pytest

from tests.probes.probed_pods import OK, http, pod_with, replying, serving
from tests.waiting import eventually

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody"
QUICK = {"timeoutMilliseconds": 300}


async def drip(reader, writer):
    """Answer with a header that never ends, one byte at a time."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless(reader, writer):
    """Answer with a body that never ends."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def silent(reader, writer):
    await asyncio.sleep(60)


async def ping_flood(reader, writer):
    writer.write(b"\0\0\0\4\0\0\0\0\0")
    while True:
        writer.write(b"\0\0\x08\6\0\0\0\0\0abcdefgh" * 1000)
        await writer.drain()
        await asyncio.sleep(0)


HEADER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"


@pytest.mark.parametrize(
    ("handler", "outcome", "words"),
    [
        (drip, "failure", "Client.Timeout exceeded while awaiting headers"),
        (endless, "success", ""),
        (silent, "failure", "Client.Timeout exceeded while awaiting headers"),
        (replying(RESPONSE[:-2], pause=60), "error", "while reading body"),
        (replying(RESPONSE[:-2]), "error", "unexpected EOF"),
        (replying(b"hello, who is there?\r\n\r\n"), "failure", "malformed HTTP response"),
        (replying(b"HTTP/1.1 2x0 OK\r\n\r\n"), "failure", "malformed HTTP response"),
        (replying(HEADER + b"X: " + b"y" * 102_400 + b"\r\n\r\nok"), "success", ""),
        (replying(HEADER + b"Y: z\r\n" * 2_000_000 + b"\r\nok"), "failure", "malformed"),
        (replying(HEADER + b"X: a\0b\r\n\r\nok"), "failure", "malformed"),
        (replying(b"\0" * 100_000), "failure", "malformed"),
        (replying(), "failure", "EOF"),
        (replying(b"HTTP/1.1 302 F\r\nLocation: /" + b"a" * 5000 + b"\r\n\r\n"), "failure", "malformed"),
        (replying(b"HTTP/1.1 302 F\r\nLocation: http://[::1\r\n\r\n"), "failure", "Location"),
        (replying(b"HTTP/1.1 100 C\r\n\r\n" * 700_000), "failure", "malformed"),
    ],
    ids=[
        "drip", "endless-body", "silent", "stuck-body", "short-body", "not-http", "bad-status",
        "100-KiB-header", "12-MB-of-headers", "nul-in-header", "nuls", "closes", "long-location",
        "bad-location", "interim-flood",
    ],
)  # fmt: skip
async def test_http(rig, handler, outcome, words):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(handler) as port:
        times = QUICK if "Timeout" in words or "while reading" in words else {"timeoutMilliseconds": 20_000}
        rig.run(pod_with(readiness=http(port, ms=times, failureThreshold=1)))
        await eventually(lambda: rig.probe("readiness")["outcomes"][outcome] >= 1)
        outcomes = rig.probe("readiness")["outcomes"]
        assert {name for name, count in outcomes.items() if count} == {outcome}
        if words:
            await eventually(lambda: words in rig.probe("readiness")["output"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    assert rig.manager.describe()["loop"]["allocated_connections"] <= 2


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (replying(OK), "not HTTP/2"),
        (silent, "timeout: health rpc did not complete within 0.3s"),
        (ping_flood, "not HTTP/2"),
    ],
    ids=["http1", "silent", "ping-flood"],
)
async def test_grpc(rig, handler, words):
    async with serving(handler) as port:
        rig.run(pod_with(readiness={"grpc": {"port": port}, "ms": QUICK}))
        await eventually(lambda: rig.probe("readiness")["outcomes"]["failure"] >= 1)
        await eventually(lambda: words in rig.probe("readiness")["output"])


async def test_reset_after_every_byte(rig):
    """Before the headers end a reset is a failure, inside the body an error, after it nothing."""

    async def handler(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(RESPONSE[: int(request.split()[1][1:])])
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )

    headers = RESPONSE.index(b"\r\n\r\n") + 4
    async with serving(handler) as port:
        slow = {"periodMilliseconds": 60_000}
        for n in range(len(RESPONSE) + 1):
            rig.run(pod_with(f"u{n}", readiness=http(port, f"/{n}", ms=slow)))

        await eventually(lambda: all(sum(p["outcomes"].values()) for p in rig.manager.describe()["probes"]))
    for probe in rig.manager.describe()["probes"]:
        n = int(probe["pod_uid"][1:])
        expected = "failure" if n < headers else "error" if n < len(RESPONSE) else "success"
        assert [name for name, count in probe["outcomes"].items() if count] == [expected], n


async def test_a_port_that_takes_no_connections_times_out(rig):
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        await asyncio.sleep(0.05)
        rig.run(pod_with("tcp", liveness={"tcpSocket": {"port": port}, "ms": QUICK}))
        rig.run(pod_with("http", readiness=http(port, ms=QUICK)))
        await eventually(lambda: len({e.pod for e in rig.recorder}) == 2)
    assert f"Liveness probe failed: dial tcp 127.0.0.1:{port}: i/o timeout" in rig.messages("Unhealthy")


async def test_probes_wait_for_a_connection_when_all_are_taken():
    """With two connections allowed, stuck probes delay the others, but only they fail."""
    from engine.api.kubengine_config import ProbesSection
    from tests.probes.probed_pods import Rig

    rig = Rig(ProbesSection(max_connections=2))
    await rig.manager.start()
    patient = {"timeoutMilliseconds": 20_000}
    try:
        async with serving(silent) as stuck, serving(replying(OK)) as good:
            for n in range(4):
                rig.run(pod_with(f"s{n}", readiness=http(stuck, ms={"timeoutMilliseconds": 200})))
            for n in range(10):
                rig.run(pod_with(f"g{n}", readiness=http(good, ms=patient)))
            await eventually(lambda: all(rig.manager.is_ready(f"g{n}", "app") for n in range(10)))
            loop = rig.manager.describe()["loop"]
            probes = rig.manager.describe()["probes"]
            assert loop["most_open_connections"] == 2
            assert not any(p["outcomes"]["failure"] for p in probes if p["pod_uid"].startswith("g"))
    finally:
        await rig.manager.stop()
