"""Certificates of pods: requested, awaited, renewed, refused; their keys are in memory only."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cluster.certificates import pod_certificates
from engine.cluster.certificates.openssl import KEY_TYPES, fits, new_key, stub_request
from engine.cluster.certificates.pem import certificates_only, pem_blocks
from engine.cluster.certificates.pod_certificates import CertificateTiming, PodCertificates
from engine.cluster.certificates.pod_request import Ended, PodCertificateRequest, outcome
from engine.host.child import run_child
from engine.host.node_context import NodeContext
from engine.server.metrics_text import exposition
from engine.testing.apiserver import ApiServer
from tests.cluster.conftest import Connect
from tests.cluster.signer import REQUESTS, SIGNER, Object, Signer, source
from tests.contexts import node_context
from tests.waiting import eventually

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


class Life:
    """Run the certificates of a node: tests set `now` (Unix seconds), and no pause lasts."""

    def __init__(self, server: ApiServer, connect: Connect, directory: Path) -> None:
        self.now = time.time()
        self.node_uid = "node-uid"
        self.pauses: list[float] = []
        self.changed: list[str] = []
        self.server = server
        self.context: NodeContext = node_context(name="n1", clock=lambda: self.now)
        client = connect(server.kubeconfig("system:node:n1"))
        timing = CertificateTiming(lambda: 0.5, self._pause)
        self.certificates = PodCertificates(self.context, client, lambda: self.node_uid, timing)
        self.certificates.on_change(self.changed.append)
        self.signer = Signer(connect(server.kubeconfig("admin")), directory)
        server.create(ACCOUNTS, {"metadata": {"name": "me", "uid": "account-uid"}})

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.02)

    def events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.context.recorder]

    def states(self) -> list[str]:
        lines = "".join(exposition(self.context.registry)).splitlines()
        return [line for line in lines if line.startswith("kubelet_podcertificate_states{")]

    async def chain(self, pod: Pod) -> str:
        return (await self.certificates.certificate(pod, "v", 0)).chain.decode()

    async def until_chain(self, pod: Pod, chain: str) -> None:
        async def has_it() -> bool:
            try:
                return await self.chain(pod) == chain
            except Unavailable:
                return False

        await eventually(has_it)


@pytest.fixture
async def life(
    server: ApiServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Life]:
    monkeypatch.setattr(pod_certificates, "CHECK_SECONDS", 0.05)
    life = Life(server, connect, tmp_path / "signer")
    yield life
    await life.certificates.stop()


def pod(*sources: Object, uid: str = "u1") -> Pod:
    value = {
        "metadata": {"name": "p", "namespace": "default", "uid": uid},
        "spec": {
            "serviceAccountName": "me",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "projected": {"sources": list(sources)}}],
        },
    }
    return msgspec.convert(value, Pod, dec_hook=decode_hook)


# Keys and text


@pytest.mark.parametrize("key_type", KEY_TYPES)
async def test_a_stub_names_nothing_and_proves_possession_of_its_key(key_type: str) -> None:
    key = await new_key(key_type)
    assert key.startswith(b"-----BEGIN PRIVATE KEY-----")
    shown = await run_child(
        ["openssl", "req", "-inform", "DER", "-noout", "-subject", "-verify"],
        stdin=await stub_request(key, key_type),
        seconds=60,
        most=1 << 16,
        subject="req",
    )
    assert "subject=\n" in shown.out.decode()
    assert "verify OK" in shown.out.decode() + shown.errors


async def test_an_unknown_type_of_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match='unknown key type "RSA1024"'):
        await new_key("RSA1024")


def test_only_the_blocks_of_a_chain_stay() -> None:
    first, second = (base64.b64encode(each * 60).decode() for each in (b"a", b"b"))
    text = (
        f"words\n-----BEGIN CERTIFICATE-----\nProc-Type: x, y\nName: a-b\n\n{first}\n"
        "-----END CERTIFICATE-----\n"
        "-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----\n"
        f"between\r\n-----BEGIN X-----\r\n{second}\r\n-----END X-----\r\n"
    )
    assert list(pem_blocks(text)) == [b"a" * 60, b"b" * 60]
    clean = certificates_only(text).decode()
    assert list(pem_blocks(clean)) == [b"a" * 60, b"b" * 60]
    kinds = [line for line in clean.splitlines() if "-----" in line]
    assert kinds == ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"] * 2
    assert "words" not in clean
    assert "Proc-Type" not in clean


def test_a_refusal_is_told_in_the_kubelets_words() -> None:
    condition = {"type": "Denied", "status": "True", "reason": "UnsupportedKeyType", "message": 'use "X"'}
    request = msgspec.convert({"status": {"conditions": [condition]}}, PodCertificateRequest)
    ended = outcome(request)
    assert isinstance(ended, Ended)
    text = r'reason="UnsupportedKeyType" message="use \"X\""'
    assert ended.refusal() == f"PodCertificateRequest was permanently denied: {text}"


def test_a_request_is_pending_until_it_has_all_that_is_issued() -> None:
    issued = {"type": "Issued", "status": "True"}
    for status in ({}, {"conditions": []}, {"conditions": [issued], "certificateChain": "x"}):
        assert outcome(msgspec.convert({"status": status}, PodCertificateRequest)) is None


# Life


async def test_a_request_names_the_pod_its_account_and_its_node(life: Life) -> None:
    wanted = source(maxExpirationSeconds=7200, userAnnotations={"example.com/a": "b"})
    asking = pod({"downwardAPI": {}}, wanted)
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    stub = request["spec"]["stubPKCS10Request"]
    assert request["spec"] == {
        "stubPKCS10Request": stub,
        "signerName": SIGNER,
        "podName": "p",
        "podUID": "u1",
        "serviceAccountName": "me",
        "serviceAccountUID": life.server.get(f"{ACCOUNTS}/me")["metadata"]["uid"],
        "nodeName": "n1",
        "nodeUID": "node-uid",
        "maxExpirationSeconds": 7200,
        "unverifiedUserAnnotations": {"example.com/a": "b"},
    }
    assert request["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}
    ]
    assert base64.b64decode(stub)
    with pytest.raises(Unavailable, match=r"^credential bundle is not issued yet$"):
        await life.certificates.certificate(asking, "v", 1)
    assert life.states() == [
        f'kubelet_podcertificate_states{{signer_name="{SIGNER}",state="not_yet_issued"}} 1'
    ]
    chain = await life.signer.issue(request)
    await eventually(lambda: life.changed == ["u1"])
    found = await life.certificates.certificate(asking, "v", 1)
    assert found.chain.decode() == chain
    assert await fits(found.chain, found.key)
    assert "PRIVATE" not in repr(found)
    assert life.states() == [f'kubelet_podcertificate_states{{signer_name="{SIGNER}",state="fresh"}} 1']


async def test_a_certificate_is_renewed_when_its_signer_wants_it(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (first,) = await life.signer.pending()
    old = await life.signer.issue(first, lambda begin, end: begin + 3600)
    await life.until_chain(asking, old)
    await eventually(lambda: len(life.pauses) >= 3)
    assert len(await life.signer.requests()) == 1
    life.now += 3600 + 140  # with half of the jitter of five minutes, it is due 10 s later
    await asyncio.sleep(0.2)
    assert len(await life.signer.requests()) == 1
    life.now += 20
    (second,) = await life.signer.pending()
    assert second["spec"]["stubPKCS10Request"] != first["spec"]["stubPKCS10Request"]
    assert await life.chain(asking) == old
    new = await life.signer.issue(second)
    await life.until_chain(asking, new)
    found = await life.certificates.certificate(asking, "v", 0)
    assert await fits(found.chain, found.key)
    assert life.events() == []
    assert life.changed == ["u1", "u1"]


async def test_a_due_certificate_is_not_renewed_in_a_loop(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    await life.signer.issue(request, lambda begin, end: begin - 86400)
    await life.signer.pending()
    assert 0.05 in life.pauses


@pytest.mark.parametrize(("kind", "verb"), [("Denied", "was denied"), ("Failed", "failed")])
async def test_a_refusal_is_for_good(life: Life, kind: str, verb: str) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    await life.signer.refuse(request, kind, "No", "never")
    await eventually(lambda: life.changed)
    with pytest.raises(Refused) as caught:
        await life.chain(asking)
    why = 'reason="No" message="never"'
    assert str(caught.value) == f"PodCertificateRequest was permanently {kind.lower()}: {why}"
    name = f"default/{request['metadata']['name']}"
    text = f'PodCertificateRequest {name} {verb}, reason="No", message="never"'
    assert life.events() == [(kind, text)]
    assert life.states() == [
        f'kubelet_podcertificate_states{{signer_name="{SIGNER}",state="{kind.lower()}"}} 1'
    ]
    life.now += 86400
    await asyncio.sleep(0.2)
    assert len(await life.signer.requests()) == 1


async def test_a_refused_renewal_takes_the_certificate_away(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    await life.until_chain(asking, await life.signer.issue(request))
    life.now += 86400
    (second,) = await life.signer.pending()
    await life.signer.refuse(second, "Denied", "No", "never")
    await eventually(lambda: len(life.changed) == 2)
    with pytest.raises(Refused, match="permanently denied"):
        await life.chain(asking)


async def test_a_late_renewal_and_the_end_of_a_certificate_are_reported_once(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    old = await life.signer.issue(request, lambda begin, end: begin + 3600)
    await life.until_chain(asking, old)

    def state(name: str) -> list[str]:
        return [f'kubelet_podcertificate_states{{signer_name="{SIGNER}",state="{name}"}} 1']

    life.now += 3600 + 160
    await life.signer.pending()
    assert (life.events(), life.states()) == ([], state("fresh"))
    life.now += 600
    overdue = ("CertificateOverdueForRefresh", "PodCertificate refresh overdue")
    await eventually(lambda: life.events() == [overdue])
    assert life.states() == state("overdue_for_refresh")
    life.now += 86400
    expired = ("CertificateExpired", "PodCertificate expired")
    await eventually(lambda: life.events() == [overdue, expired])
    assert life.states() == state("expired")
    await asyncio.sleep(0.2)
    assert life.events() == [overdue, expired]
    (second,) = await life.signer.pending()
    life.now = time.time()
    await life.until_chain(asking, await life.signer.issue(second))
    assert life.states() == state("fresh")


async def test_a_deleted_request_is_repeated_after_ten_minutes(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (first,) = await life.signer.pending()
    await life.signer.delete(first)
    life.now += 700
    await asyncio.sleep(0.2)
    assert await life.signer.requests() == []
    life.now += 60
    (second,) = await life.signer.pending()
    assert second["metadata"]["name"] != first["metadata"]["name"]
    life.now += 3600  # a request that is there may be pending for as long as its signer likes
    await asyncio.sleep(0.2)
    assert len(await life.signer.requests()) == 1
    chain = await life.signer.issue(second)
    await life.until_chain(asking, chain)


async def test_what_keeps_a_request_from_being_made_is_told(life: Life) -> None:
    life.node_uid = ""
    asking = pod(source(), source("RSA1024"))
    life.certificates.follow(asking)
    begin = "credential bundle is not issued yet: "
    with pytest.raises(Unavailable, match=f"^{begin}the API server has no Node object for this node yet$"):
        await life.certificates.certificate(asking, "v", 0)
    with pytest.raises(Unavailable, match=f'^{begin}unknown key type "RSA1024"$'):
        await life.certificates.certificate(asking, "v", 1)
    life.server.fail(403, path="/namespaces/default/podcertificaterequests$", times=2)
    life.node_uid = "node-uid"
    (request,) = await life.signer.pending()
    await life.until_chain(asking, await life.signer.issue(request))
    assert {1.05, 2.1, 4.2} <= {round(pause, 2) for pause in life.pauses}


async def test_the_node_follows_its_requests_only_while_a_pod_needs_it(life: Life) -> None:
    plain, first, second = pod(), pod(source(), uid="u1"), pod(source(), source(), uid="u2")
    life.certificates.follow(plain)
    assert life.server.open_watches == []
    life.certificates.follow(first)
    life.certificates.follow(second)
    life.certificates.follow(second)
    await life.signer.pending(3)
    await eventually(lambda: life.server.open_watches == [(REQUESTS, "spec.nodeName=n1")])
    life.certificates.forget("u1")
    with pytest.raises(Unavailable, match="not issued yet"):
        await life.chain(first)
    for request in await life.signer.requests():
        await life.signer.issue(request)
    await eventually(lambda: life.changed == ["u2", "u2"])
    life.certificates.forget("u2")
    await eventually(lambda: life.server.open_watches == [])
    assert life.states() == []


async def test_requests_are_found_again_after_the_watch_broke(life: Life) -> None:
    asking = pod(source())
    life.certificates.follow(asking)
    (request,) = await life.signer.pending()
    await life.server.stop()
    await life.server.start()
    chain = await life.signer.issue(request)
    await life.until_chain(asking, chain)
