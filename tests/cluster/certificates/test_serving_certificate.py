"""What the node's server shows: files of the configuration, of the cluster, or made here."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.cluster.certificates.openssl import certificate_facts, new_key, self_signed
from engine.cluster.certificates.serving import ServingCertificate, ServingPair


def serving(directory: Path, **fields: object) -> ServingCertificate:
    return ServingCertificate(KubeletConfiguration(**fields), directory, "n1", clock=time.time)  # type: ignore[arg-type]


def load(pair: ServingPair | None) -> None:
    assert pair is not None
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key)


async def test_one_that_vouches_for_itself_is_made_once(tmp_path: Path):
    directory = tmp_path / "pki"
    first = serving(directory)
    assert first.pair is None
    await first.start()
    load(first.pair)
    assert (directory / "kubelet.key").stat().st_mode & 0o777 == 0o600
    made = (directory / "kubelet.crt").read_bytes()
    assert (await certificate_facts(made)).names == {"n1"}
    again = serving(directory)
    await again.start()
    assert (directory / "kubelet.crt").read_bytes() == made


async def test_named_files_are_used_and_nothing_is_made(tmp_path: Path):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    key.write_bytes(await new_key())
    certificate.write_bytes(await self_signed(key.read_bytes(), "a", ["a"], 1))
    named = serving(tmp_path / "pki", tls_cert_file=str(certificate), tls_private_key_file=str(key))
    await named.start()
    assert named.pair == ServingPair(certificate, key)
    assert not (tmp_path / "pki").exists()


async def test_a_signed_certificate_is_awaited_and_used(tmp_path: Path):
    waiting = serving(tmp_path, server_tls_bootstrap=True)
    await waiting.start()
    assert waiting.pair is None
    key = await new_key()
    waiting.store.update(await self_signed(key, "a", ["a"], 1), key, time.time())
    load(waiting.pair)
    assert waiting.pair == ServingPair(*2 * [tmp_path / "kubelet-server-current.pem"])


async def test_where_nothing_can_be_made_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    without = serving(tmp_path / "pki")
    await without.start()
    assert without.pair is None
