"""A node's own certificates: the first one, those that follow, and how they are kept."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.duration import RetryDelays
from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.node import NodeAddress
from engine.cluster.certificates import node_identity
from engine.cluster.certificates import rotation as certificate_rotation
from engine.cluster.certificates.bootstrap import write_kubeconfig
from engine.cluster.certificates.metrics import CertificateMetrics
from engine.cluster.certificates.node_identity import NodeIdentity
from engine.cluster.certificates.openssl import (
    CertificateFacts,
    certificate_facts,
    certificate_request,
    new_key,
    self_signed,
)
from engine.cluster.certificates.request import (
    REQUESTS,
    client_certificate,
    request_certificate,
    request_name,
    serving_certificate,
    serving_names,
)
from engine.cluster.certificates.rotation import (
    CertificateRotation,
    RotationTiming,
    misses,
    renew_at,
    store_signed,
)
from engine.cluster.certificates.store import CertificateStore
from engine.cluster.client import ApiClient
from engine.cluster.credentials import client_pair
from engine.cluster.kubeconfig import load_kubeconfig
from engine.metrics import Registry
from engine.server.metrics_text import exposition
from engine.testing.apiserver import ApiServer
from engine.testing.apiserver.paths import parse_path
from tests.cluster.conftest import Connect
from tests.contexts import node_context
from tests.waiting import eventually

DAY = 86400.0
Sign = Callable[[Any], Awaitable[tuple[bytes, bytes]]]


# Deciding


def test_a_certificate_is_renewed_between_70_and_90_percent_of_its_life():
    facts = CertificateFacts(1000.0, 2000.0, frozenset())
    assert renew_at(facts, 0.0) == 1700.0
    assert renew_at(facts, 0.999999) == pytest.approx(1900.0, abs=0.01)


def test_a_missing_name_is_found_and_an_extra_one_is_no_fault():
    facts = CertificateFacts(0, 1, frozenset({"n1", "10.0.0.1", "fe80::1"}))
    assert not misses(facts, serving_certificate("n1", ["n1", "FE80:0::1"]))
    assert misses(facts, serving_certificate("n1", ["n1", "10.0.0.2"]))


def test_the_names_of_a_serving_certificate():
    addresses = [
        NodeAddress(type="InternalIP", address="10.0.0.2"),
        NodeAddress(type="ExternalIP", address="10.0.0.1"),
        NodeAddress(type="Hostname", address="n1"),
        NodeAddress(type="InternalDNS", address="a.example"),
        NodeAddress(type="Hostname", address=""),
    ]
    assert serving_names(addresses) == ["a.example", "n1", "10.0.0.1", "10.0.0.2"]
    assert serving_names([NodeAddress(type="Hostname", address="10.0.0.9")]) == ["10.0.0.9"]
    assert serving_names([NodeAddress(type="Hostname", address="n1")]) == []


# Keeping


async def test_pairs_are_kept_under_the_kubelets_names(tmp_path: Path):
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    assert store.current() is None
    first, second = await new_key(), await new_key()
    store.update(b"one\n", first, 1_000_000.0)
    store.update(b"two\n", second, 2_000_000.0)
    current = tmp_path / "pki" / "kubelet-client-current.pem"
    assert store.current() == current
    assert current.read_bytes() == b"two\n" + second
    assert current.resolve().name.startswith("kubelet-client-1970-01-")
    assert current.stat().st_mode & 0o777 == 0o600
    assert len(list((tmp_path / "pki").iterdir())) == 3


async def test_a_rotation_that_broke_off_is_ended(tmp_path: Path):
    store = CertificateStore(tmp_path, "kubelet-client")
    store.update(b"one\n", b"key\n", 1.0)
    store.path.rename(tmp_path / "kubelet-client-updated.pem")
    assert store.current() is not None
    assert store.path.read_bytes() == b"one\nkey\n"


async def test_a_certificate_for_another_key_is_not_kept(tmp_path: Path):
    store = CertificateStore(tmp_path, "kubelet-client")
    key, other = await new_key(), await new_key()
    certificate = await self_signed(key, "a", ["a"], 1)
    with pytest.raises(Refused, match="another key"):
        await store_signed(store, certificate, other, time.time())
    with pytest.raises(Refused, match="already expired"):
        await store_signed(store, certificate, key, time.time() + 2 * DAY)
    assert store.current() is None


# Asking


async def _asked(server: ApiServer, most: int = 1) -> list[Any]:
    await eventually(lambda: len(server.list(REQUESTS)) >= most)
    return server.list(REQUESTS)


async def test_a_request_is_waited_for_until_it_is_signed(server: ApiServer, client: ApiClient):
    key = await new_key()
    wanted = client_certificate("n1")
    asking = asyncio.create_task(request_certificate(client, wanted, key))
    (request,) = await _asked(server)
    assert request["metadata"]["name"].startswith("csr-")
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request["spec"]["usages"] == ["digital signature", "client auth"]
    signed = server.sign_request(request["metadata"]["name"])
    assert await asking == signed


async def test_denied_and_unsigned_requests_are_errors(server: ApiServer, client: ApiClient):
    key = await new_key()
    asking = asyncio.create_task(request_certificate(client, client_certificate("n1"), key))
    (request,) = await _asked(server)
    server.deny_request(request["metadata"]["name"])
    with pytest.raises(Refused, match="is denied, reason: Test"):
        await asking
    with pytest.raises(Unavailable, match=r"it was not signed within 0\.2 s"):
        await request_certificate(client, client_certificate("n1"), key, seconds=0.2)


@pytest.mark.parametrize("text", ["%%%", base64.b64encode(b"no certificate").decode()])
async def test_a_signer_that_answers_nonsense_is_an_error_and_is_asked_again(
    server: ApiServer, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(certificate_rotation, "RETRIES", RetryDelays(0.01, 32.0))
    identity = _identity(tmp_path, tmp_path / "kubelet.conf", server.kubeconfig("b", token="abc.def"))
    async with _running(identity):
        (request,) = await _asked(server)
        path = parse_path(f"{REQUESTS}/{request['metadata']['name']}")
        assert path is not None
        approved = {"conditions": [{"type": "Approved", "status": "True"}], "certificate": text}
        server.objects.replace(path, {**request, "status": approved})
        await eventually(lambda: sum(seen.method == "POST" for seen in server.requests) > 1)
        for each in server.list(REQUESTS):
            server.sign_request(each["metadata"]["name"])
        await identity.ready.wait()


async def test_a_signing_request_of_the_same_name_is_adopted(server: ApiServer, client: ApiClient):
    key, wanted = await new_key(), client_certificate("n1")
    name = await request_name(wanted, key)
    assert name == await request_name(wanted, key) != await request_name(wanted, await new_key())
    for _ in range(2):
        with pytest.raises(Unavailable, match="not signed"):
            await request_certificate(client, wanted, key, seconds=0.2, name=name)
    assert [each["metadata"]["name"] for each in server.list(REQUESTS)] == [name]
    signed = server.sign_request(name)
    assert await request_certificate(client, wanted, key, name=name) == signed


# Renewing


def metrics_of(registry: Registry) -> CertificateMetrics:
    return CertificateMetrics(registry, "client", time.time)


@asynccontextmanager
async def _rotating(store: CertificateStore, sign: Sign, **options: Any) -> AsyncIterator[list[None]]:
    changes: list[None] = []
    rotation = CertificateRotation(
        store,
        wanted=options.pop("wanted", lambda: client_certificate("n1")),
        sign=sign,
        metrics=options.pop("metrics", None) or metrics_of(Registry()),
        changed=lambda: changes.append(None),
        timing=RotationTiming(time.time, random.Random(1), options.pop("pause", lambda _: asyncio.sleep(0))),
        **options,
    )
    running = asyncio.create_task(rotation.run())
    try:
        yield changes
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _signed(server: ApiServer, begin: float, end: float) -> tuple[bytes, bytes]:
    key = await new_key()
    request = await certificate_request(key, "system:node:n1", "system:nodes")
    return server.authority.sign(request, time.time() + begin, time.time() + end), key


async def test_a_certificate_near_its_end_is_renewed_and_a_fresh_one_is_kept(
    server: ApiServer, tmp_path: Path
):
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -100 * DAY, DAY), time.time() - DAY)
    asked: list[Any] = []

    async def sign(wanted: Any) -> tuple[bytes, bytes]:
        asked.append(wanted)
        return await _signed(server, 0, DAY)

    async with _rotating(store, sign) as changes:
        await eventually(lambda: bool(changes))
    facts = await certificate_facts(store.path.read_bytes())
    assert facts.not_after > time.time()
    async with _rotating(store, sign):
        await asyncio.sleep(0.2)
    assert asked == [client_certificate("n1")]


async def test_a_failed_request_is_retried(server: ApiServer, tmp_path: Path):
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    failures = [Unavailable("away"), Refused("denied"), Refused("expired")]

    async def sign(wanted: Any) -> tuple[bytes, bytes]:
        if failures:
            raise failures.pop()
        return await _signed(server, 0, DAY)

    async with _rotating(store, sign) as changes:
        await eventually(lambda: bool(changes))
    assert not failures


async def test_a_signer_that_leaves_out_a_name_is_not_asked_without_end(server: ApiServer, tmp_path: Path):
    store = CertificateStore(tmp_path / "pki", "kubelet-server")
    pauses: list[float] = []
    asked: list[Any] = []

    async def sign(wanted: Any) -> tuple[bytes, bytes]:
        asked.append(wanted)
        return await _signed(server, 0, DAY)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            await asyncio.Event().wait()

    wanted = serving_certificate("n1", ["n1", "10.0.0.1"])
    async with _rotating(store, sign, wanted=lambda: wanted, pause=pause):
        await eventually(lambda: len(pauses) == 2 or len(asked) > 2)
    assert (pauses, len(asked)) == ([32.0, 32.0], 2)


async def test_certificate_lifetime_and_renewal_failures_are_counted(server: ApiServer, tmp_path: Path):
    registry, waited = Registry(), asyncio.Event()
    metrics = metrics_of(registry)

    def shown() -> dict[str, float]:
        lines = "".join(exposition(registry)).splitlines()
        return {name: float(value) for name, value in (s.split() for s in lines if s[0] != "#")}

    ttl, failures = "kubelet_certificate_manager_client_ttl_seconds", "expiration_renew_errors"
    failures = f"kubelet_certificate_manager_client_{failures}"
    assert shown() == {ttl: float("inf"), failures: 0}

    async def sign(wanted: Any) -> tuple[bytes, bytes]:
        if shown()[failures] < 2:
            raise Unavailable("nobody signs")
        return await _signed(server, 0, DAY)

    async def pause(seconds: float) -> None:
        if seconds == certificate_rotation.RETRIES.most:
            waited.set()
            await asyncio.Event().wait()

    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    async with _rotating(store, sign, pause=pause, metrics=metrics):
        await waited.wait()
    assert shown()[failures] == 2
    assert 0 < shown()[ttl] <= DAY
    async with _rotating(store, sign, pause=pause, metrics=(again := metrics_of(registry))):
        await eventually(lambda: again.ends < float("inf"))


async def test_another_name_is_asked_for_at_once(server: ApiServer, tmp_path: Path):
    store = CertificateStore(tmp_path / "pki", "kubelet-server")
    names, asked = ["n1"], list[tuple[str, ...]]()

    async def sign(wanted: Any) -> tuple[bytes, bytes]:
        asked.append(wanted.names)
        key = await new_key()
        request = await certificate_request(key, "system:node:n1", "system:nodes", wanted.names)
        return server.authority.sign(request, time.time(), time.time() + DAY), key

    rotation = CertificateRotation(
        store,
        wanted=lambda: serving_certificate("n1", names),
        sign=sign,
        metrics=metrics_of(Registry()),
        timing=RotationTiming(time.time, random.Random(1), lambda _: asyncio.sleep(0)),
    )
    running = asyncio.create_task(rotation.run())
    await eventually(lambda: len(asked) == 1 and store.current() is not None)
    rotation.check()
    names.append("10.0.0.1")
    rotation.check()
    await eventually(lambda: len(asked) == 2)
    running.cancel()
    await asyncio.wait({running})
    assert asked == [("n1",), ("n1", "10.0.0.1")]


# A node's way


def _identity(directory: Path, kubeconfig: Path, bootstrap: Path | None, **options: Any) -> NodeIdentity:
    config = KubeletConfiguration(rotate_certificates=options.get("rotate", True))
    return NodeIdentity(
        node_context(config, name="n1", clock=options.get("clock", time.time), registry=Registry()),
        kubeconfig,
        bootstrap,
        directory / "pki",
        user_agent="test",
        chance=random.Random(1),
    )


@asynccontextmanager
async def _running(identity: NodeIdentity) -> AsyncIterator[ApiClient]:
    client = ApiClient(identity.config, identity.credentials, user_agent="test")
    task = asyncio.create_task(identity.run(client))
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.wait({task})
        client.close()


async def test_a_node_with_a_bootstrap_token_gets_an_identity(server: ApiServer, tmp_path: Path):
    bootstrap = server.kubeconfig("system:bootstrap:abc", token="abc.def")
    kubeconfig = tmp_path / "etc" / "kubelet.conf"
    first = _identity(tmp_path, kubeconfig, bootstrap)
    async with _running(first):
        (request,) = await _asked(server)
        assert not first.ready.is_set()
        assert (tmp_path / "pki" / "kubelet-client.key.tmp").exists()
    again = _identity(tmp_path, kubeconfig, bootstrap)  # an agent that was started again finds its request
    async with _running(again) as client:
        server.sign_request(request["metadata"]["name"])
        await again.ready.wait()
        await client.create("/api/v1/nodes", {"metadata": {"name": "n1"}}, dict[str, Any])
    assert len(server.list(REQUESTS)) == 1
    assert server.requests[-1].user == "system:node:n1"
    assert not (tmp_path / "pki" / "kubelet-client.key.tmp").exists()
    user = load_kubeconfig(kubeconfig).user
    assert user.client_certificate == user.client_key
    assert user.client_certificate == str(tmp_path / "pki" / "kubelet-client-current.pem")
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    third = _identity(tmp_path, kubeconfig, bootstrap)
    async with _running(third):
        await third.ready.wait()
    assert len(server.list(REQUESTS)) == 1


async def test_a_certificate_that_is_renewed_is_used_at_once(server: ApiServer, tmp_path: Path):
    kubeconfig = server.kubeconfig("system:node:n1")
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -100 * DAY, DAY), time.time() - DAY)
    identity = _identity(tmp_path, kubeconfig, None)
    async with _running(identity) as client:
        await identity.ready.wait()
        await client.get("/api/v1/nodes", dict[str, Any])
        (request,) = await _asked(server)
        before = server.requests[-1].connection
        server.sign_request(request["metadata"]["name"])
        await eventually(lambda: len(list((tmp_path / "pki").glob("kubelet-client-2*.pem"))) == 2)

        async def on_another_connection() -> bool:
            await client.get("/api/v1/nodes", dict[str, Any])
            return server.requests[-1].connection != before

        await eventually(on_another_connection)


async def test_a_certificate_that_has_ended_is_asked_for_with_the_bootstrap_again(
    server: ApiServer, tmp_path: Path
):
    bootstrap = server.kubeconfig("system:bootstrap:abc", token="abc.def")
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -100 * DAY, -DAY), time.time())
    kubeconfig = tmp_path / "kubelet.conf"
    write_kubeconfig(kubeconfig, load_kubeconfig(bootstrap), store.path)
    identity = _identity(tmp_path, kubeconfig, bootstrap)
    async with _running(identity):
        (request,) = await _asked(server)
        assert server.requests[-1].user == "system:bootstrap:abc"
        server.sign_request(request["metadata"]["name"])
        await identity.ready.wait()


async def test_a_bootstrap_kubeconfig_that_is_not_needed_need_not_exist(server: ApiServer, tmp_path: Path):
    """kubeadm's unit names it on control planes, which never have one, and on workers after they joined."""
    missing = tmp_path / "bootstrap-kubelet.conf"
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -DAY, 100 * DAY), time.time())
    joined = tmp_path / "kubelet.conf"
    write_kubeconfig(joined, load_kubeconfig(server.kubeconfig("b", token="abc.def")), store.path)
    identity = _identity(tmp_path, joined, missing)
    async with _running(identity) as client:
        await identity.ready.wait()
        await client.get("/api/v1/nodes", dict[str, Any])
    assert server.requests[-1].user == "system:node:n1"
    assert server.list(REQUESTS) == []


async def test_a_certificate_that_a_busy_machine_cannot_check_stays_in_use(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without a bootstrap kubeconfig, the node would have no other."""

    async def late(_certificate: bytes) -> CertificateFacts:
        raise Unavailable("no answer within 30 s", subject="openssl x509")

    monkeypatch.setattr(node_identity, "certificate_facts", late)
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -DAY, 100 * DAY), time.time())
    kept = store.path.read_bytes()
    identity = _identity(tmp_path, server.kubeconfig("b"), tmp_path / "bootstrap-kubelet.conf")
    async with _running(identity) as client:
        await identity.ready.wait()
        await client.get("/api/v1/nodes", dict[str, Any])
    assert server.requests[-1].user == "system:node:n1"
    assert store.path.read_bytes() == kept


async def test_without_a_kubeconfig_a_missing_bootstrap_kubeconfig_ends_the_start(tmp_path: Path):
    kubeconfig, bootstrap = tmp_path / "kubelet.conf", tmp_path / "bootstrap.conf"
    with pytest.raises(InvalidInput) as raised:
        _identity(tmp_path, kubeconfig, bootstrap)
    missing = "No such file or directory"
    assert (
        str(raised.value) == f"{bootstrap}: {missing}; it is needed because of this: {kubeconfig}: {missing}"
    )


async def test_a_bootstrap_kubeconfig_may_come_after_the_certificate_has_ended(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(certificate_rotation, "RETRIES", RetryDelays(0.01, 32.0))
    given = server.kubeconfig("system:bootstrap:abc", token="abc.def")
    bootstrap, kubeconfig = tmp_path / "bootstrap-kubelet.conf", tmp_path / "kubelet.conf"
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -100 * DAY, -DAY), time.time())
    write_kubeconfig(kubeconfig, load_kubeconfig(given), store.path)
    identity = _identity(tmp_path, kubeconfig, bootstrap)
    async with _running(identity):
        await eventually(lambda: f"none was obtained: {bootstrap}: No such file" in caplog.text)
        assert not identity.ready.is_set()
        given.rename(bootstrap)
        (request,) = await _asked(server)
        server.sign_request(request["metadata"]["name"])
        await identity.ready.wait()


async def test_a_certificate_in_the_kubeconfig_is_stored_and_renewed_at_once(
    server: ApiServer, tmp_path: Path
):
    """`kubeadm init` writes one and waits for kubelet-client-current.pem; so does who repairs a node."""
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    store.update(*await _signed(server, -100 * DAY, -DAY), time.time() - 2 * DAY)
    kubeconfig = server.kubeconfig("system:node:n1")
    identity = _identity(tmp_path, kubeconfig, tmp_path / "bootstrap-kubelet.conf")
    async with _running(identity) as client:
        await identity.ready.wait()
        adopted = store.path.read_bytes()
        assert adopted == b"\n".join(part.rstrip(b"\n") for part in client_pair(identity.config)) + b"\n"
        (request,) = await _asked(server)
        assert server.requests[-1].user == "system:node:n1"
        server.sign_request(request["metadata"]["name"])
        await eventually(lambda: store.path.read_bytes() != adopted)
        await client.get("/api/v1/nodes", dict[str, Any])
    assert len(server.list(REQUESTS)) == 1


async def test_a_certificate_that_ends_while_the_agent_runs_leaves_no_key_behind(
    server: ApiServer, tmp_path: Path
):
    bootstrap = server.kubeconfig("system:bootstrap:abc", token="abc.def")
    store, later = CertificateStore(tmp_path / "pki", "kubelet-client"), [0.0]
    store.update(*await _signed(server, -100 * DAY, DAY / 2), time.time() - DAY)
    identity = _identity(
        tmp_path, server.kubeconfig("system:node:n1"), bootstrap, clock=lambda: time.time() + later[0]
    )
    async with _running(identity):
        await identity.ready.wait()
        later[0] = 0.6 * DAY
        (request,) = await _asked(server)
        assert server.requests[-1].user == "system:bootstrap:abc"
        assert (tmp_path / "pki" / "kubelet-client.key.tmp").exists()
        server.sign_request(request["metadata"]["name"])
        before = store.path.resolve()
        await eventually(lambda: store.path.resolve() != before)
    assert not (tmp_path / "pki" / "kubelet-client.key.tmp").exists()
    assert (await certificate_facts(store.path.read_bytes())).not_after > time.time() + DAY / 2


async def test_without_rotation_and_bootstrap_nothing_is_asked(
    server: ApiServer, tmp_path: Path, connect: Connect
):
    for kubeconfig in (server.kubeconfig("system:node:n1"), server.kubeconfig("n", token="t")):
        identity = _identity(tmp_path, kubeconfig, None, rotate=False)
        async with _running(identity):
            await identity.ready.wait()
    token = _identity(tmp_path, kubeconfig, None)
    async with _running(token):
        await token.ready.wait()
    assert server.list(REQUESTS) == []
