"""Pods with certificates of their own, on the test server, and on a real one where KUBE_BIN says so, whose
authorizer, admission and validation must accept what the node requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.certificates import pod_certificates
from engine.cluster.certificates.openssl import KEY_TYPES, fits
from tests.cluster.control_plane import Object, Plane, shown
from tests.cluster.objects import NAMESPACE, gone, is_ready, make, mounting, run, wait_for_event
from tests.cluster.signer import Signer, source
from tests.waiting import eventually

pytestmark = pytest.mark.root

Start = Callable[..., Any]
WITHOUT = {"automountServiceAccountToken": False}


@pytest.fixture
async def signer(plane: Plane, start: Start, tmp_path: Path) -> Signer:
    """Start a node whose gate is on, and return a signer that waits to be told."""
    await start(plane.node, feature_gates={"PodCertificateRequest": True})
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    signer = Signer(plane.admin, tmp_path / "signer")
    for request in await signer.requests():
        await signer.delete(request)
    return signer


def volume(tmp_path: Path, pod: Object) -> Path:
    return tmp_path / "root/pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~projected/v"


async def test_each_type_of_key_is_certified(plane: Plane, signer: Signer, tmp_path: Path) -> None:
    """TLS must be able to use the bundle as it is."""
    sources = [
        source(kind, credentialBundlePath=f"{kind}.pem", userAnnotations={"example.com/of": kind})
        for kind in KEY_TYPES
    ]
    await run(plane, "p", mounting({"projected": {"sources": sources}}, **WITHOUT))
    for request in await signer.pending(len(KEY_TYPES)):
        await signer.issue(request)
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/p", is_ready)
    path = volume(tmp_path, pod)
    requests = {r["spec"]["unverifiedUserAnnotations"]["example.com/of"]: r for r in await signer.requests()}
    for kind in KEY_TYPES:
        bundle = path / f"{kind}.pem"
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(bundle)
        spec = requests[kind]["spec"]
        assert (spec["podUID"], spec["nodeName"]) == (pod["metadata"]["uid"], "n1")
        assert spec["serviceAccountName"] == "default"
    await gone(plane, "p")


async def test_a_certificate_is_renewed_and_a_refused_one_is_told(
    plane: Plane, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real server admits no renewal within 10 minutes, so the agent is made to renew 12 minutes early.
    monkeypatch.setattr(pod_certificates, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(pod_certificates, "ABANDON_SECONDS", 3600.0)
    monkeypatch.setattr(pod_certificates.PodCertificates, "_jitter", lambda _: -720.0)
    files = {"keyPath": "key", "certificateChainPath": "chain", "maxExpirationSeconds": 86400}
    await run(plane, "p", mounting({"projected": {"sources": [source("ECDSAP256", **files)]}}, **WITHOUT))
    (request,) = await signer.pending()
    await signer.issue(request, lambda begin, end: begin + 600)
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/p", is_ready)
    path = volume(tmp_path, pod)
    (renewal,) = await signer.pending()
    assert renewal["spec"]["stubPKCS10Request"] != request["spec"]["stubPKCS10Request"]
    chain = await signer.issue(renewal)
    await eventually(lambda: (path / "chain").read_text() == chain)
    assert await fits(chain.encode(), (path / "key").read_bytes())
    assert (path / "bundle.pem").read_bytes() == (path / "key").read_bytes() + chain.encode()
    await run(plane, "refused", mounting({"projected": {"sources": [source("RSA3072")]}}, **WITHOUT))
    (request,) = await signer.pending()
    await signer.refuse(request, "Denied", "UnsupportedKeyType", "use ECDSAP256")
    why = 'reason="UnsupportedKeyType" message="use ECDSAP256"'
    await wait_for_event(
        plane,
        "refused",
        f'MountVolume.SetUp failed for volume "v" : PodCertificateRequest was permanently denied: {why}',
    )
    for name in ("p", "refused"):
        await gone(plane, name)


async def test_a_deleted_pod_no_longer_asks(plane: Plane, signer: Signer) -> None:
    await run(plane, "p", mounting({"projected": {"sources": [source()]}}, **WITHOUT))
    (request,) = await signer.pending()
    await gone(plane, "p")
    await signer.delete(request)
    await asyncio.sleep(1)
    assert await signer.requests() == []
    assert not [path for path, _ in plane.watched_by_node() if path.endswith("podcertificaterequests")]
