"""The node's own port: which credentials give access to which paths."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.struct import decode_hook
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cri.client import Unimplemented
from engine.server.port.access import needs
from engine.server.port.server import MAX_CONNECTIONS, SecurePort
from engine.server.port.websocket_token import PREFIX
from engine.testing.apiserver import ApiServer, Authority, CertificatePair
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown
from tests.server.served import WITHOUT_DEBUGGING
from tests.waiting import PATIENCE, eventually

Open = Callable[..., Awaitable[Secured]]
NO_REVIEWS = {"authentication": {"webhook": {"enabled": False}}}
READER, NOBODY = "reader", "nobody"

PATHS = [
    ("GET", "/pods", 200),
    ("GET", "/runningpods/", 200),
    ("GET", "/healthz", 200),
    ("GET", "/healthz/ping", 200),
    ("GET", "/configz", 200),
    ("GET", "/flagz", 200),
    ("GET", "/statusz", 200),
    ("GET", "/stats/summary", 200),
    ("GET", "/metrics", 200),
    ("GET", "/metrics/resource", 200),
    ("GET", "/metrics/cadvisor", 200),
    ("GET", "/metrics/probes", 200),
    ("GET", "/metrics/slis", 200),
    ("GET", "/logs/", 200),
    ("GET", "/containerLogs/default/p/c", 400),
    ("POST", "/exec/default/p/c?output=1", 500),
    ("GET", "/attach/default/p/c?output=1", 500),
    ("POST", "/portForward/default/p", 500),
    ("POST", "/run/default/p/c?cmd=true", 500),
    ("POST", "/checkpoint/default/p/c", 500),
    ("GET", "/no/such/page", 404),
    ("DELETE", "/pods", 405),
]
"""Each path, with what it answers to whom it lets in: here nothing stands behind the streams."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "server") as running:
        running.tokens |= {"good": READER, "poor": NOBODY}
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[ApiClient]:
    config = load_kubeconfig(server.kubeconfig("system:node:n1"))
    opened = ApiClient(config, Credentials(config, clock=time.time), user_agent="test", timeout=5.0)
    yield opened
    opened.close()


@pytest.fixture
async def open_port(server: ApiServer, client: ApiClient, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[SecurePort] = []
    pair = server.authority.issue("n1", alternatives="IP:127.0.0.1")

    async def begin(*, api: bool = True, clock: Callable[[], float] = time.time, **fields: Any) -> Secured:
        document = {"authentication": {"x509": {"clientCAFile": str(server.authority.certificate)}}, **fields}
        config = msgspec.convert(document, KubeletConfiguration, dec_hook=decode_hook)
        view = SecuredView(config=config, serving_certificate=Shown(pair), logs=tmp_path)
        view.api = client if api else None
        view.runtime.error = Refused("nothing stands behind this")
        port = SecurePort(view, "127.0.0.1", number := free_port(), clock=clock)
        opened.append(port)
        await port.start()
        return Secured(view, port, number, server.authority)

    yield begin
    for port in opened:
        await port.stop()


async def test_the_matrix_of_paths_credentials_and_rights(server: ApiServer, open_port: Open) -> None:
    """An unknown user gets 401, a user without the right 403 with the missing permission, before anything is
    done.
    """
    port = await open_port()
    certificates = {name: server.authority.issue(name, organization="people") for name in (READER, NOBODY)}
    asked = [(method, path) for method, path, _ in PATHS]
    for bad in ({}, {"token": "bad"}):
        answers = await port.several(asked, **bad)  # type: ignore[arg-type]
        assert answers == [(401, b"Unauthorized")] * len(PATHS)
    for poor in ({"token": "poor"}, {"certificate": certificates[NOBODY]}):
        answers = await port.several(asked, **poor)  # type: ignore[arg-type]
        assert answers == [(403, refused(*each)) for each in asked]
    assert not port.view.runtime.asked
    wanted = {each: needs(each[0], each[1].partition("?")[0]).subresources for each in asked}
    for subresource in {"nothing", *(name for names in wanted.values() for name in names)}:
        server.reviews.allowed = {(READER, subresource)}
        expected = [status if subresource in wanted[method, path] else 403 for method, path, status in PATHS]
        for good in ({"token": "good"}, {"certificate": certificates[READER]}):
            fresh(port)
            answers = await port.several(asked, **good)  # type: ignore[arg-type]
            assert [status for status, _ in answers] == expected, subresource


def refused(method: str, path: str) -> bytes:
    wanted = needs(method, path.partition("?")[0])
    named = " ".join(wanted.subresources)
    text = f"Forbidden (user={NOBODY}, verb={wanted.verb}, resource=nodes, subresource(s)=[{named}])\n"
    return text.encode()


def fresh(port: Secured) -> None:
    """Forget the cached access reviews."""
    assert port.port._authorization is not None
    port.port._authorization._reviews._kept.clear()


async def test_reviews_are_kept_for_their_time_and_shared(server: ApiServer, open_port: Open) -> None:
    port = await open_port(authorization={"webhook": {"cacheUnauthorizedTTL": "1h"}})
    server.reviews.allowed = {(READER, "proxy")}
    await asyncio.gather(*(port.ask("GET", "/pods", token="good") for _ in range(8)))
    asked = [each.path.rpartition("/")[2] for each in server.requests]
    assert sorted(asked) == ["subjectaccessreviews", "subjectaccessreviews", "tokenreviews"]
    review = next(each.value for each in server.requests if each.path.endswith("subjectaccessreviews"))
    assert review["spec"]["resourceAttributes"] == {
        "verb": "get", "version": "v1", "resource": "nodes", "subresource": "pods", "name": "n1",
    }  # fmt: skip
    assert review["spec"]["groups"] == ["people", "system:authenticated"]
    server.reviews.allowed.clear()
    assert (await port.ask("GET", "/pods", token="good")).status == 200


@pytest.mark.parametrize(
    ("anonymous", "token", "webhook", "status"),
    [
        (False, "", True, 401),
        (True, "", True, 200),
        (True, "bad", True, 401),
        (True, "bad", False, 200),
        (False, "good", False, 401),
    ],
)
async def test_anonymous_access_follows_the_configuration(
    server: ApiServer, open_port: Open, anonymous: bool, token: str, webhook: bool, status: int
) -> None:
    port = await open_port(
        authentication={"anonymous": {"enabled": anonymous}, "webhook": {"enabled": webhook}},
        authorization={"mode": "AlwaysAllow"},
    )
    assert (await port.ask("GET", "/pods", token=token)).status == status


async def test_an_api_server_that_cannot_be_asked(server: ApiServer, open_port: Open) -> None:
    """Without a token review the answer is 401, without an access review 500."""
    port = await open_port()
    reader = server.authority.issue(READER)
    server.fail(403, path="reviews", times=None)
    assert (await port.ask("GET", "/pods", token="good")).status == 401
    answer = await port.ask("GET", "/pods", certificate=reader)
    assert answer.status == 500
    assert answer.body.decode() == (
        "Authorization error (user=reader, verb=get, resource=nodes, subresource=pods)"
    )
    server.heal()
    server.reviews.allowed = {(READER, "*")}
    assert (await port.ask("GET", "/pods", certificate=reader)).status == 200


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "authentication.webhook.enabled"),
        (NO_REVIEWS, "authorization.mode"),
        (
            {"authentication": {"webhook": {"enabled": False}}, "authorization": {"mode": "No"}},
            "authorization",
        ),
    ],
)
async def test_without_an_api_server_reviews_are_refused(
    open_port: Open, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        await open_port(api=False, **fields)


async def test_a_node_of_no_cluster_shows_its_configuration_there(open_port: Open) -> None:
    """The kubelet's own tests read the configuration there."""
    port = await open_port(
        api=False,
        authentication={"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        authorization={"mode": "AlwaysAllow"},
    )
    answer = await port.ask("GET", "/configz")
    assert answer.status == 200
    assert json.loads(answer.body)["kubeletconfig"]["maxPods"] == 110


async def test_a_checkpoint_that_the_runtime_refuses_shows_its_own_words(open_port: Open) -> None:
    """Clients search the answer for the gRPC status, to see whether the runtime can do it at all."""
    port = await open_port(
        api=False,
        authentication={"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        authorization={"mode": "AlwaysAllow"},
    )
    words = "rpc error: code = Unimplemented desc = method CheckpointContainer not implemented"
    port.view.runtime.error = Unimplemented("not implemented", subject="CRI", status_text=words)
    answer = await port.ask("POST", "/checkpoint/default/p/c")
    assert (answer.status, answer.body) == (500, f"checkpointing of default/p/c failed ({words})".encode())


async def test_anonymous_users_have_one_refusal_for_each_connection(
    server: ApiServer, open_port: Open
) -> None:
    """An unknown client that is refused needs another handshake; a known user keeps the connection."""
    port = await open_port(authentication={"anonymous": {"enabled": True}, "webhook": {"enabled": True}})
    request = "GET /pods HTTP/1.1\r\nHost: n\r\n{}\r\n"
    refused = await port.raw(2 * request.format("").encode())
    assert refused.count(b"HTTP/1.1 403 ") == 1
    last = "Authorization: Bearer good\r\nConnection: close\r\n"
    two_requests = request.format("Authorization: Bearer good\r\n") + request.format(last)
    assert (await port.raw(two_requests.encode())).count(b"HTTP/1.1 403 ") == 2


async def test_debugging_can_be_off(server: ApiServer, open_port: Open) -> None:
    port = await open_port(enableDebuggingHandlers=False)
    server.reviews.allowed = {(READER, "*")}
    for path, expected in WITHOUT_DEBUGGING:
        answer = await port.ask("GET", path, token="good")
        assert (answer.status, answer.body) == expected, path
    assert (await port.ask("GET", "/metrics", token="good")).status == 200


async def test_a_certificate_of_another_authority_does_not_come_in(
    server: ApiServer, open_port: Open, tmp_path: Path
) -> None:
    port = await open_port()
    server.reviews.allowed = {(READER, "*")}
    stranger = Authority(tmp_path / "other").issue(READER)
    try:
        answered = await port.raw(b"GET /pods HTTP/1.1\r\nHost: n\r\n\r\n", stranger)
    except (ssl.SSLError, ConnectionError):
        answered = b""
    assert answered == b""
    assert (await port.ask("GET", "/healthz", token="good")).status == 200


async def test_the_last_of_several_common_names_counts(server: ApiServer, open_port: Open) -> None:
    port = await open_port(authorization={"mode": "Webhook"})
    twice = server.authority.issue(f"{READER}/CN={NOBODY}")
    answer = await port.ask("GET", "/pods", certificate=twice)
    assert (answer.status, b"user=nobody" in answer.body) == (403, True)


@dataclass
class Clock:
    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"


async def used_connection(
    port: Secured, pair: CertificatePair
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection with this client certificate on which one request has been answered."""
    reader, writer = await port.connect(pair)
    writer.write(HEALTH)
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    return reader, writer


async def test_a_connection_ends_with_its_certificate(server: ApiServer, open_port: Open) -> None:
    clock = Clock()
    port = await open_port(clock=clock)
    server.reviews.allowed = {(READER, "*")}
    reader, writer = await used_connection(port, server.authority.issue(READER))
    clock.ahead = 3 * 86400
    writer.write(HEALTH)
    assert await closes(reader)
    writer.transport.abort()
    assert (await port.ask("GET", "/healthz", token="good")).status == 200


async def test_a_silent_connection_ends_with_its_certificate(server: ApiServer, open_port: Open) -> None:
    pair = server.authority.issue(READER)
    port = await open_port(clock=Clock(end_of(pair) - time.time() - 2))
    server.reviews.allowed = {(READER, "*")}
    reader, writer = await used_connection(port, pair)
    assert await closes(reader)
    writer.transport.abort()


def end_of(pair: CertificatePair) -> float:
    command = ["openssl", "x509", "-noout", "-enddate", "-in", pair.certificate]
    output = subprocess.check_output(command, text=True)
    return ssl.cert_time_to_seconds(output.strip().partition("=")[2])


@pytest.mark.parametrize("seen_by", ["another", "itself"])
async def test_a_connection_ends_with_the_authority_that_vouched_for_it(
    server: ApiServer, open_port: Open, tmp_path: Path, seen_by: str
) -> None:
    authorities = tmp_path / "authorities.crt"
    authorities.write_bytes(server.authority.certificate.read_bytes())
    port = await open_port(authentication={"x509": {"clientCAFile": str(authorities)}})
    server.reviews.allowed = {(READER, "*")}
    reader, writer = await used_connection(port, server.authority.issue(READER))
    by_token, other = await port.connect()
    authorities.write_bytes(authorities.read_bytes())
    assert (await port.ask("GET", "/healthz", token="good")).status == 200
    writer.write(HEALTH)
    await reader.readuntil(b"\r\n\r\nok")
    authorities.write_bytes(Authority(tmp_path / "other").certificate.read_bytes())
    if seen_by == "itself":
        writer.write(HEALTH)
    else:
        assert (await port.ask("GET", "/healthz", token="good")).status == 200
    assert await closes(reader)
    other.write(HEALTH.replace(b"Host: n", b"Host: n\r\nAuthorization: Bearer good"))
    assert (await by_token.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
    for each in (writer, other):
        each.transport.abort()


async def closes(reader: asyncio.StreamReader) -> bool:
    """Tell whether the connection ends and no more bytes arrive."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read() == b""
        except (ConnectionError, ssl.SSLError):
            return True


@pytest.mark.parametrize(
    ("subprotocols", "status"),
    [
        (f"v4.channel.k8s.io, {PREFIX}Z29vZA", 200),
        (f"{PREFIX}Z29vZA,v4.channel.k8s.io", 200),
        (f"{PREFIX}Z29vZA", 401),
        (f"v4.channel.k8s.io, {PREFIX}Z29vZA, {PREFIX}Z29vZA", 401),
        (f"v4.channel.k8s.io, {PREFIX}Z29vZA==", 401),
        (f"v4.channel.k8s.io, {PREFIX}YmFk", 401),
        (f"v4.channel.k8s.io, {PREFIX}_w", 401),
        (f"v4.channel.k8s.io, {PREFIX}", 401),
        ("v4.channel.k8s.io", 401),
    ],
)
async def test_a_websocket_may_name_its_token_among_the_subprotocols(
    server: ApiServer, open_port: Open, subprotocols: str, status: int
) -> None:
    port = await open_port()
    server.reviews.allowed = {(READER, "*")}
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Protocol: {subprotocols}"]
    assert (await port.ask("GET", "/pods", headers=upgrade)).status == status
    assert (await port.ask("GET", "/pods", headers=upgrade[2:])).status == 401, "this is no WebSocket"
    assert (await port.ask("GET", "/pods", token="good", headers=upgrade)).status == 200


async def test_files_that_change_are_used_from_the_next_connection_on(
    server: ApiServer, open_port: Open, caplog: pytest.LogCaptureFixture
) -> None:
    port = await open_port()
    shown = port.view.serving_certificate

    async def serial() -> str:
        _, writer = await port.connect()
        certificate = writer.get_extra_info("ssl_object").getpeercert()
        writer.transport.abort()
        return str(certificate["serialNumber"])

    before = await serial()
    assert await serial() == before
    shown.pair = server.authority.issue("n1", alternatives="IP:127.0.0.1")
    after = await serial()
    assert after != before
    shown.pair.key.write_text("half a key")
    for _ in range(3):
        assert await serial() == after, "an unreadable pair leaves the previous one in use"
    messages = [each for each in caplog.messages if "the previous one stays in use" in each]
    assert len(messages) == 1, "one message, however many clients connect"


@pytest.mark.parametrize(
    ("fields", "client", "comes_in"),
    [
        ({}, ssl.TLSVersion.TLSv1_2, True),
        ({"tlsMinVersion": "VersionTLS13"}, ssl.TLSVersion.TLSv1_2, False),
        ({"tlsMinVersion": "VersionTLS13"}, ssl.TLSVersion.TLSv1_3, True),
        ({"tlsCipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}, ssl.TLSVersion.TLSv1_2, False),
        ({"tlsCipherSuites": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]}, ssl.TLSVersion.TLSv1_2, True),
    ],
)
async def test_versions_and_ciphers(
    open_port: Open, fields: dict[str, Any], client: ssl.TLSVersion, comes_in: bool
) -> None:
    port = await open_port(**fields)
    try:
        _, writer = await port.connect(maximum_version=client)
    except (ssl.SSLError, ConnectionError):
        assert not comes_in
    else:
        assert comes_in
        writer.transport.abort()


@pytest.mark.parametrize(("offered", "comes_in"), [("secp384r1", True), ("prime256v1", False)])
async def test_the_first_preferred_curve_is_the_one(open_port: Open, offered: str, comes_in: bool) -> None:
    port = await open_port(tlsCurvePreferences=[24, 23])
    context = ssl.create_default_context(cafile=str(port.authority.certificate))
    context.set_ecdh_curve(offered)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=context)
    except (ssl.SSLError, ConnectionError):
        assert not comes_in
    else:
        assert comes_in
        writer.transport.abort()


@pytest.mark.parametrize(
    "fields",
    [
        {"tlsMinVersion": "TLS9"},
        {"tlsCipherSuites": ["NONE"]},
        {"tlsCurvePreferences": [0]},
        {"tlsCurvePreferences": [23, 23]},
        {"tlsCurvePreferences": [22]},
    ],
)
async def test_unknown_versions_and_ciphers_are_named(open_port: Open, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        await open_port(**fields)


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "half", "plain"]
)
async def test_unauthenticated_clients_leave_nothing_behind(
    server: ApiServer, open_port: Open, sent: bytes
) -> None:
    """A thousand clients never finish their handshake; a known user is served nevertheless."""
    port = await open_port()
    server.reviews.allowed = {(READER, "*")}
    crowd = []
    for count in range(1000):
        crowd.append(await asyncio.open_connection("127.0.0.1", port.number))
        crowd[-1][1].write(sent)
        if count % 250 == 249:
            assert (await port.ask("GET", "/healthz", token="good")).status == 200
            assert len(port.port._connections) <= MAX_CONNECTIONS + 10
    for _, writer in crowd:
        writer.transport.abort()
    await eventually(lambda: not port.port._connections)
    assert not port.port._limiter.idle


async def test_the_error_names_a_port_in_use(open_port: Open) -> None:
    port = await open_port()
    other = SecurePort(port.view, "127.0.0.1", port.number)
    with pytest.raises(Refused, match=f"port 127.0.0.1:{port.number}"):
        other.bind()
    await other.stop()
    await port.port.stop()
    await port.port.stop()
