"""Calls to an API server that is well, and to one that is not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.errors import Refused, Unavailable
from engine.api.token_bucket import TokenBucket
from engine.cluster.client import ApiClient, ApiError, _seconds
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.metrics import Histogram, Metric, Registry
from engine.testing.apiserver import ApiServer, ApiServerFault
from engine.transport.http2 import WINDOW, Exchange
from engine.transport.tls import ClientTLS
from tests.cluster.conftest import Connect
from tests.waiting import PATIENCE, eventually

SECRETS = "/api/v1/namespaces/default/secrets"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
Object = dict[str, Any]


def put(server: ApiServer, name: str = "s", **fields: Any) -> None:
    server.create(SECRETS, {"metadata": {"name": name}, **fields})


async def test_many_requests_share_one_connection(server: ApiServer, client: ApiClient):
    put(server)
    await client.get(f"{SECRETS}/s", Object)
    await asyncio.gather(*(client.get(f"{SECRETS}/s", Object) for _ in range(60)))
    assert {seen.connection for seen in server.requests} == {1}
    assert {seen.user for seen in server.requests} == {"system:node:n1"}


async def test_a_servers_limit_of_streams_asks_for_another_connection(tmp_path: Path, connect: Connect):
    async with ApiServer(tmp_path, max_streams=3) as server:
        client = connect(server.kubeconfig("system:node:n1"))
        put(server)
        server.fail(None, delay=3600, times=None)
        asked = [asyncio.create_task(client.get(f"{SECRETS}/s", Object)) for _ in range(8)]
        await eventually(lambda: len(server.requests) == 8)
        assert server.open_connections == 3
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_requests_are_counted_by_result(server: ApiServer):
    config = load_kubeconfig(server.kubeconfig("system:node:n1"))
    registry = Registry()
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="test", registry=registry)
    put(server)
    await client.get(f"{SECRETS}/s", Object)
    with pytest.raises(ApiError):
        await client.get(f"{SECRETS}/none", Object)
    server.fail(ApiServerFault.DROP)
    with pytest.raises(Unavailable):
        await client.create(SECRETS, {"metadata": {"name": "t"}}, Object)
    client.close()
    host = client.peer
    total, seconds = (
        registry.metrics[f"rest_client_{name}"] for name in ("requests_total", "request_duration_seconds")
    )
    assert isinstance(total, Metric)
    assert isinstance(seconds, Histogram)
    assert total.values == {("200", "GET", host): 1, ("404", "GET", host): 1, ("<error>", "POST", host): 1}
    assert {labels: sum(counts) for labels, counts in seconds.counts.items()} == {
        ("GET", host): 2,
        ("POST", host): 1,
    }


@pytest.mark.parametrize("fault", [ApiServerFault.DROP, ApiServerFault.RESET, ApiServerFault.MALFORMED])
async def test_a_broken_answer_is_unavailable_and_the_next_call_works(
    server: ApiServer, client: ApiClient, fault: ApiServerFault
):
    put(server)
    await client.get(f"{SECRETS}/s", Object)
    server.fail(fault)
    with pytest.raises(Unavailable):
        await client.get(f"{SECRETS}/s", Object)
    assert (await client.get(f"{SECRETS}/s", Object))["metadata"]["name"] == "s"


async def test_an_answer_without_end_is_refused_at_its_bound(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.cluster.client.MAX_ANSWER", 1 << 20)
    monkeypatch.setattr("engine.cluster.client.MAX_LINE", 1 << 20)
    put(server)
    server.fail(ApiServerFault.ENDLESS)
    with pytest.raises(Refused, match="longer than 1048576 bytes"):
        await client.get(f"{SECRETS}/s", Object)
    server.fail(ApiServerFault.ENDLESS)
    async with client.lines(SECRETS, {"watch": "1"}) as lines:
        with pytest.raises(Refused, match="an event of more than 1048576 bytes"):
            await anext(lines)
    assert (await client.get(f"{SECRETS}/s", Object))["metadata"]["name"] == "s"


async def test_an_answer_that_trickles_ends_at_the_deadline(server: ApiServer, connect: Connect):
    hurried = connect(server.kubeconfig("system:node:n1"), 0.3)
    server.fail(ApiServerFault.TRICKLE)
    with pytest.raises(Unavailable, match="no answer within"):
        await hurried.get(f"{SECRETS}/s", Object)


@pytest.mark.parametrize("fault", [ApiServerFault.HANG, ApiServerFault.FREEZE])
async def test_no_answer_ends_at_the_deadline(server: ApiServer, connect: Connect, fault: ApiServerFault):
    hurried = connect(server.kubeconfig("system:node:n1"), 0.3)
    server.fail(fault)
    with pytest.raises(Unavailable, match="no answer within"):
        await hurried.get(f"{SECRETS}/s", Object)
    server.fail(fault)
    with pytest.raises(Unavailable, match="no answer within"):
        async with hurried.lines(SECRETS, {"watch": "1"}):
            pass


async def test_a_refusal_has_code_and_reason(server: ApiServer, client: ApiClient):
    for code, reason in ((403, "Forbidden"), (500, "InternalError"), (410, "Expired")):
        server.fail(code)
        with pytest.raises(ApiError) as refusal:
            await client.get(SECRETS, Object)
        assert (refusal.value.code, refusal.value.reason) == (code, reason)


async def test_a_busy_server_is_asked_again(server: ApiServer, client: ApiClient):
    put(server)
    server.fail(429, retry_after=0, times=2)
    client.timeout = 10
    await client.get(f"{SECRETS}/s", Object)
    assert [seen.status for seen in server.requests] == [429, 429, 200]


async def test_a_token_file_is_read_again_after_a_401(server: ApiServer, connect: Connect, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("old\n")
    server.tokens["old"] = "agent"
    client = connect(server.kubeconfig("agent", token_file=token))
    await client.get(SECRETS, Object)
    server.tokens = {"new": "agent"}
    with pytest.raises(ApiError, match="Unauthorized"):
        await client.get(SECRETS, Object)
    token.write_text("new\n")
    await client.get(SECRETS, Object)
    assert [seen.status for seen in server.requests] == [200, 401, 401, 401, 200]


async def test_a_burst_of_401_runs_the_plugin_once(server: ApiServer, connect: Connect, tmp_path: Path):
    runs, plugin = tmp_path / "runs", tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho run >> {runs}\n"
        'echo "{\\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"t$(wc -l < '
        f'{runs})\\"}}}}"\n'
    )
    plugin.chmod(0o700)
    path = server.kubeconfig("agent", token="unused")
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    }
    path.write_text(json.dumps(config))
    client = connect(path)
    server.tokens = {"t1": "agent"}
    await client.get(SECRETS, Object)
    server.tokens = {"t2": "agent"}
    await asyncio.gather(*(client.get(SECRETS, Object) for _ in range(20)))
    assert runs.read_text().count("run") == 2


async def test_a_rotated_certificate_brings_new_connections(
    server: ApiServer, tmp_path: Path, connect: Connect
):
    path = server.kubeconfig("system:node:n1")
    user = json.loads(path.read_text())["users"][0]["user"]
    client = connect(path)
    now = 0.0
    client._credentials._clock = lambda: now
    await client.get(SECRETS, Object)
    other = server.authority.issue("system:node:n1", organization="system:nodes")
    Path(user["client-certificate"]).write_bytes(other.certificate.read_bytes())
    now += 60
    await client.get(SECRETS, Object)  # the key is not yet the certificate's: the old ones stay
    Path(user["client-key"]).write_bytes(other.key.read_bytes())
    now += 60
    await client.get(SECRETS, Object)
    assert [seen.connection for seen in server.requests] == [1, 1, 2]


async def test_an_expired_certificate_is_reported(server: ApiServer, connect: Connect):
    client = connect(server.kubeconfig("system:node:n1"))
    names = "IP:127.0.0.1"
    good = server._pair
    await server.use_certificate(server.authority.issue("server", alternatives=names, expired=True))
    with pytest.raises(Unavailable, match="TLS: certificate has expired"):
        await client.get(SECRETS, Object)
    await server.use_certificate(good)
    await client.get(SECRETS, Object)
    path = server.kubeconfig("system:node:n1")
    config = json.loads(path.read_text())
    expired = server.authority.issue("system:node:n1", expired=True)
    config["users"][0]["user"] = {
        "client-certificate-data": base64.b64encode(expired.certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(expired.key.read_bytes()).decode(),
    }
    path.write_text(json.dumps(config))
    with pytest.raises(Unavailable, match=r"(?i)certificate.expired|connection"):
        await connect(path).get(SECRETS, Object)


async def test_answers_in_progress_complete_after_a_goaway(server: ApiServer, client: ApiClient):
    put(server)
    async with client.lines(SECRETS, {"watch": "1"}) as lines:
        assert b"ADDED" in await anext(lines)
        server.fail(ApiServerFault.GO_AWAY)
        await client.get(f"{SECRETS}/s", Object)
        await client.get(f"{SECRETS}/s", Object)
        put(server, "later")
        assert b"later" in await anext(lines)
    assert [seen.connection for seen in server.requests] == [1, 1, 2]


async def test_a_slow_reader_holds_its_window_and_delays_no_other(server: ApiServer, client: ApiClient):
    put(server)
    text = "x" * (1 << 20)
    async with client.lines(SECRETS, {"watch": "1"}) as lines:
        assert b"ADDED" in await anext(lines)
        for number in range(50):
            put(server, f"big{number}", data=text)
        await client.get(f"{SECRETS}/s", Object)
        held = [sum(map(len, body)) for body in _bodies(client)]
        assert 0 < sum(held) <= WINDOW
        read = 0
        async for line in lines:
            read += len(line)
            if b"big49" in line:
                break
        assert read > 50 << 20


async def test_closed_watches_return_their_window(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.transport.http2.CONNECTION_WINDOW", WINDOW)
    put(server, "big", data="x" * (1 << 20))
    for _ in range(5):
        async with client.lines(SECRETS, {"watch": "1"}):
            await _until(lambda: any(_bodies(client)))
    client.timeout = 5
    assert len((await client.get(f"{SECRETS}/big", Object))["data"]) == 1 << 20
    assert {seen.connection for seen in server.requests} == {1}


async def test_cancelled_calls_leave_nothing_behind(server: ApiServer, client: ApiClient):
    await client.get(SECRETS, Object)
    server.fail(ApiServerFault.HANG, times=None)
    calls = [asyncio.create_task(client.get(SECRETS, Object)) for _ in range(20)]
    await _until(lambda: len(server.requests) == 21)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    (connection,) = client._pool._connections
    assert connection.idle
    assert connection.free_streams == 100
    server.heal()
    await client.get(SECRETS, Object)


async def test_nothing_is_written_to_a_connection_that_is_closing(
    server: ApiServer, client: ApiClient, caplog: pytest.LogCaptureFixture
):
    """asyncio logs a line for each write to a transport whose peer is gone."""
    await client.get(SECRETS, Object)
    (connection,) = client._pool._connections
    assert connection._transport is not None
    connection._transport.abort()
    for _ in range(20):
        connection._core.ping(b"kubengin")
        connection.flush()
    assert caplog.text == ""


async def test_a_silent_connection_is_given_up(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("engine.transport.http2.PING_AFTER", 0.2)
    monkeypatch.setattr("engine.transport.http2.PING_WAIT", 0.2)
    put(server)
    async with client.lines(SECRETS, {"watch": "1"}) as lines:
        assert b"ADDED" in await anext(lines)
        server.fail(ApiServerFault.FREEZE)
        with pytest.raises(Unavailable, match="the server did not answer a ping"):
            await client.get(f"{SECRETS}/s", Object)
        with pytest.raises(Unavailable, match="the server did not answer a ping"):
            await anext(lines)
    await client.get(f"{SECRETS}/s", Object)


def _bodies(client: ApiClient) -> list[Sequence[bytes]]:
    """Return, for each request on the only connection, the chunks that have arrived and are not read yet."""
    (connection,) = client._pool._connections
    return [each._body.items for each in connection._streams.values() if isinstance(each, Exchange)]


async def _until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 (whatever it is, it tells nobody)
            await asyncio.sleep(0.01)


def test_an_unverified_server_needs_no_authorities():
    context = ClientTLS(insecure=True).context("it")
    assert context.verify_mode == ssl.CERT_NONE
    assert context.cert_store_stats()["x509"] == 0


async def test_a_server_that_is_not_verified_is_spoken_to(server: ApiServer, connect: Connect):
    put(server)
    kubeconfig = server.kubeconfig("n", token="t")
    config = json.loads(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["insecure-skip-tls-verify"] = True
    kubeconfig.write_text(json.dumps(config))
    known = await connect(kubeconfig).get(f"{SECRETS}/s", Object)
    assert known["metadata"]["name"] == "s"


async def test_closing_waits_for_no_peer(server: ApiServer, client: ApiClient):
    """TLS asks the other side for its last word, which a server that has gone never says."""
    put(server)
    await client.get(f"{SECRETS}/s", Object)
    (connection,) = client._pool._connections
    assert connection._transport is not None
    socket = connection._transport.get_extra_info("socket")
    client.close()
    for _ in range(3):  # turns of the loop, in which no answer is read
        await asyncio.sleep(0)
    assert socket.fileno() == -1


async def test_calls_are_held_to_the_rate_but_for_heartbeats_and_events(server: ApiServer):
    config = load_kubeconfig(server.kubeconfig("system:node:n1"))
    credentials = Credentials(config, clock=time.time)
    client = ApiClient(config, credentials, user_agent="test", rate=TokenBucket(0.001, 2))
    put(server)
    for _ in range(2):
        await client.get(f"{SECRETS}/s", Object)
    third = asyncio.create_task(client.get(f"{SECRETS}/s", Object))
    server.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
    for path in ("/api/v1/nodes/n1", LEASE):
        for _ in range(3):
            with contextlib.suppress(ApiError):
                await client.get(path, Object)
    event = {"metadata": {"name": "e"}, "involvedObject": {}}
    await client.create("/api/v1/namespaces/default/events", event, Object)
    assert not third.done()
    third.cancel()
    client.close()


@pytest.mark.parametrize("path", ["/api/v1/nodes/n1", "/api/v1/nodes/n1/status", LEASE])
async def test_a_slow_server_has_longer_for_other_calls_than_for_heartbeats(
    server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A heartbeat is worth more when it is sent again; a token or an object is not."""
    monkeypatch.setattr("engine.cluster.client.HEARTBEAT_SECONDS", 0.2)
    put(server)
    server.fail(None, delay=1.0, times=None)
    with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        await client.get(path, Object)
    assert (await client.get(f"{SECRETS}/s", Object))["metadata"]["name"] == "s"


@pytest.mark.parametrize(
    ("header", "in_details", "seconds"),
    [("\u00b2", 0, 0), ("9" * 5000, 0, 60), ("", -5, 0), ("", 1e300, 60), ("7", 3, 7), ("", 3, 3)],
)
def test_how_long_a_busy_server_is_waited_for(header: str, in_details: float, seconds: float) -> None:
    assert _seconds(header, in_details) == seconds


@pytest.mark.parametrize("body", [b'{"details":' * 3000, b'{"message": "\xff"}', b"[", b"\x00" * 400])
async def test_an_odd_error_is_an_api_error(server: ApiServer, client: ApiClient, body: bytes) -> None:
    """Whatever stands in the body of a refusal, a caller gets the status and at most a few hundred bytes."""

    async def read(limit: int) -> bytes:
        return body

    exchange: Any = SimpleNamespace(status=503, headers={"retry-after": "7"}, read=read)
    error = await client._error(exchange, "GET", "/x")
    assert (error.code, error.retry_after) == (503, 7)
    assert len(error.message) <= 300


@pytest.mark.parametrize("status", ["\u00b2\u00b20", "20", "2000", "+20", " 20", ""])
async def test_an_answer_with_an_odd_status_is_unavailable(status: str) -> None:
    """Digits of other scripts are digits to Python, too: they are no number."""
    exchange = Exchange("server")
    exchange.fields([(b":status", status.encode("latin-1"))])
    with pytest.raises(Unavailable, match="has no status"):
        await exchange.wait_for_head()
