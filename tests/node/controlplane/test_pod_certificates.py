"""Certificates in pods' volumes: their files, their renewal, and what keeps a pod from getting one."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from engine.cluster.certificates import pod_certificates
from engine.cluster.certificates.openssl import fits
from tests.cluster.signer import REQUESTS, Signer, source
from tests.cluster_rig import Cluster, Joined
from tests.node.controlplane.test_cluster_volumes import (
    DEFAULT_ACCESS,
    NAMESPACE,
    Object,
    is_in_memory,
    messages,
    run_with,
    volume,
)
from tests.waiting import eventually

pytestmark = pytest.mark.root

FAILED = 'MountVolume.SetUp failed for volume "v" : '


@pytest.fixture
def signer(joined: Joined, cluster: Cluster, tmp_path: Path) -> Signer:
    """Switch the gate on, and return a signer that waits to be told."""
    joined.config.feature_gates = {"PodCertificateRequest": True}
    cluster.server.create(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    return Signer(cluster.client, tmp_path / "signer")


def projected(*sources: Object) -> Object:
    return {"projected": {"sources": list(sources)}}


async def test_a_pod_certificate_is_refused_without_its_gate(joined: Joined, cluster: Cluster) -> None:
    await joined.start()
    await run_with(cluster, projected(source()))
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    assert messages(joined, "FailedMount") == [
        f"{FAILED}projected podCertificate: this node does not request any "
        "(the feature gate PodCertificateRequest is off)"
    ]
    assert cluster.asked("GET", REQUESTS) == 0


async def test_a_pod_starts_when_its_certificate_is_issued(
    joined: Joined, cluster: Cluster, signer: Signer
) -> None:
    await joined.start()
    assert cluster.asked("GET", REQUESTS) == 0
    files = {"keyPath": "key.pem", "certificateChainPath": "chain.pem"}
    await run_with(cluster, projected(source(**files)), securityContext={"runAsUser": 1234})
    (request,) = await signer.pending()
    await eventually(lambda: messages(joined, "FailedMount"))
    assert messages(joined, "FailedMount") == [f"{FAILED}credential bundle is not issued yet"]
    chain = await signer.issue(request)
    await cluster.ready("p")
    path = volume(joined, "projected")
    assert is_in_memory(path)
    key = (path / "key.pem").read_bytes()
    assert (path / "chain.pem").read_text() == chain
    assert (path / "bundle.pem").read_bytes() == key + chain.encode()
    assert await fits(chain.encode(), key)
    for name in ("key.pem", "chain.pem", "bundle.pem"):
        seen = (path / name).stat()
        assert (stat.S_IMODE(seen.st_mode), seen.st_uid) == (0o600, 1234)
    await cluster.delete("p")
    await cluster.gone("p")
    await eventually(lambda: REQUESTS not in {path for path, _ in cluster.server.open_watches})


async def test_a_renewed_certificate_replaces_the_old_one(
    joined: Joined, cluster: Cluster, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_certificates, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(pod_certificates, "MOST_JITTER", 0.0)
    await joined.start()
    await run_with(cluster, projected(source()))
    (request,) = await signer.pending()
    await signer.issue(request, lambda begin, end: begin)
    await cluster.ready("p")
    path = volume(joined, "projected") / "bundle.pem"
    first = path.read_bytes()
    (renewal,) = await signer.pending()
    assert path.read_bytes() == first
    chain = await signer.issue(renewal)
    await eventually(lambda: path.read_bytes().endswith(chain.encode()))
    assert path.read_bytes() != first
    assert await fits(chain.encode(), path.read_bytes())


async def test_a_refused_pod_waits_with_the_signers_reason(
    joined: Joined, cluster: Cluster, signer: Signer
) -> None:
    await joined.start()
    await run_with(cluster, projected(source()))
    (request,) = await signer.pending()
    await signer.refuse(request, "Denied", "UnsupportedKeyType", "use ECDSAP256")
    why = 'reason="UnsupportedKeyType" message="use ECDSAP256"'
    wanted = f"{FAILED}PodCertificateRequest was permanently denied: {why}"
    await eventually(lambda: wanted in messages(joined, "FailedMount"))
    name = f"default/{request['metadata']['name']}"
    assert messages(joined, "Denied") == [
        f'PodCertificateRequest {name} was denied, reason="UnsupportedKeyType", message="use ECDSAP256"'
    ]
    assert len(await signer.requests()) == 1


async def test_a_restarted_agent_requests_again_and_keeps_the_files_meanwhile(
    joined: Joined, cluster: Cluster, signer: Signer
) -> None:
    await joined.start()
    await run_with(cluster, projected(source()))
    (request,) = await signer.pending()
    await signer.issue(request)
    pod = await cluster.ready("p")
    started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    path = volume(joined, "projected") / "bundle.pem"
    before = path.read_bytes()
    await joined.restart()
    (again,) = await signer.pending()
    await asyncio.sleep(0.5)
    assert path.read_bytes() == before
    chain = await signer.issue(again)
    await eventually(lambda: path.read_bytes().endswith(chain.encode()))
    assert path.read_bytes() != before
    pod = await cluster.ready("p")
    status = pod["status"]["containerStatuses"][0]
    assert (status["restartCount"], status["state"]["running"]["startedAt"]) == (0, started)


async def test_a_pod_without_a_source_requests_nothing(
    joined: Joined, cluster: Cluster, signer: Signer
) -> None:
    cluster.server.create(
        f"{NAMESPACE}/configmaps", {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca": "it"}}
    )
    await joined.start()
    await run_with(cluster, DEFAULT_ACCESS)
    await cluster.ready("p")
    assert cluster.asked("GET", REQUESTS) == cluster.asked("POST", "podcertificaterequests") == 0
