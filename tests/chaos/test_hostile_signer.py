"""Let a signer of certificates mistreat the requests of a running agent.

The agent goes on with its current certificate, asks again with pauses, and accepts the first good one.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.certificates.metrics import CertificateMetrics
from engine.cluster.certificates.openssl import certificate_facts, new_key, self_signed
from engine.cluster.certificates.request import REQUESTS, client_certificate, request_certificate
from engine.cluster.certificates.rotation import CertificateRotation, RotationTiming
from engine.cluster.certificates.store import CertificateStore, read_certificates
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.testing.apiserver import ApiServer
from tests.waiting import eventually

HOUR = 3600.0
WAIT_SECONDS = 1.0
"""In the place of 15 minutes."""


class Signer:
    """Find the node's certificate requests, and answer them."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._seen: set[str] = set()

    @property
    def asked(self) -> int:
        return len(self._server.list(REQUESTS))

    def new(self) -> list[str]:
        names = {each["metadata"]["name"] for each in self._server.list(REQUESTS)} - self._seen
        self._seen |= names
        return sorted(names)

    def answer(self, name: str, certificate: str) -> None:
        request = self._server.get(f"{REQUESTS}/{name}")
        approved = {"type": "Approved", "status": "True", "reason": "Test"}
        request["status"] = {"conditions": [approved], "certificate": certificate}
        self._server.update(f"{REQUESTS}/{name}", request)

    def sign(self, name: str, **times: float) -> bytes:
        return self._server.sign_request(name, **times)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def silence(signer: Signer, name: str) -> None:
    """Never answer."""


async def no_base64(signer: Signer, name: str) -> None:
    signer.answer(name, "%%%")


async def garbage(signer: Signer, name: str) -> None:
    signer.answer(name, encoded(random.Random(1).randbytes(4000)))


async def half(signer: Signer, name: str) -> None:
    good = signer.sign(name)
    signer.answer(name, encoded(good[: len(good) // 2]))


async def of_another_key(signer: Signer, name: str) -> None:
    signer.answer(name, encoded(await self_signed(await new_key(), "n1", ["n1"], 1)))


async def expired(signer: Signer, name: str) -> None:
    signer.sign(name, begin=time.time() - 2 * HOUR, end=time.time() - HOUR)


async def a_huge_chain(signer: Signer, name: str) -> None:
    """Answer with megabytes of other certificates, of which none has the key."""
    other = await self_signed(await new_key(), "n1", ["n1"], 1)
    signer.answer(name, encoded(other * 2000))


async def much_text(signer: Signer, name: str) -> None:
    signer.answer(name, encoded(b"x" * (3 << 20)))


WORST = (silence, no_base64, garbage, half, of_another_key, expired, a_huge_chain, much_text)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "server") as running:
        yield running


@pytest.mark.parametrize("worst", WORST, ids=lambda worst: worst.__name__)
async def test_the_first_good_certificate_is_taken(
    server: ApiServer, tmp_path: Path, worst: Callable[[Signer, str], Any]
) -> None:
    config = load_kubeconfig(server.kubeconfig("system:node:n1"))
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="test")
    store = CertificateStore(tmp_path / "pki", "kubelet-client")
    key = await new_key()
    before = await self_signed(key, "system:node:n1", ["n1"], 365)
    store.update(before, key, time.time())
    signer, wanted, pauses = Signer(server), client_certificate("n1"), []

    async def sign(_: Any) -> tuple[bytes, bytes]:
        key = await new_key()
        return await request_certificate(client, wanted, key, seconds=WAIT_SECONDS), key

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    rotation = CertificateRotation(
        store, wanted=lambda: wanted, sign=sign, metrics=CertificateMetrics(Registry(), "client", time.time),
        timing=RotationTiming(time.time, random.Random(1), pause), at_once=True,
    )  # fmt: skip
    task = Tasks().task("rotation")
    task.start(rotation.run)
    try:
        for number in range(3):
            await eventually(lambda number=number: signer.asked > number)
            for name in signer.new():
                await worst(signer, name)
            await eventually(lambda number=number: len(pauses) > number)
            path = store.current()
            assert path is not None
            assert read_certificates(path).startswith(before.strip()[:200]), "the old one stays in use"
        assert pauses[0] < pauses[1] < pauses[2], "a pause that grows"
        await eventually(lambda: signer.asked > 3)
        (name, *_) = signer.new()
        good = signer.sign(name)
        await eventually(lambda: read_certificates(store.path).strip().startswith(good.strip()[:200]))
        assert (await certificate_facts(good)).not_after > time.time()
        assert len(list((tmp_path / "pki").iterdir())) <= 3, "no refused certificate is left there"
    finally:
        await task.stop()
        client.close()
