"""What pods need of a cluster beside secrets and config maps: runtime classes, trust bundles, devices."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput, NotFound
from engine.api.meta import ObjectMeta
from engine.api.objects.cluster_objects import ClusterTrustBundle, ClusterTrustBundleSpec
from engine.api.references import ClusterTrustBundleProjection, LabelSelector, LabelSelectorRequirement
from engine.node.volumes.contents import trust_anchors
from engine.runtime.hollow import HollowRuntime
from tests.cluster_rig import Cluster, Joined
from tests.node.controlplane.test_cluster_volumes import (
    UNABLE,
    claim,
    messages,
    pod_of_node,
    run_with,
    volume,
)
from tests.node_rig import Rig, container
from tests.waiting import eventually

pytestmark = pytest.mark.root

Object = dict[str, Any]
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
BUNDLES = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles"
NOT_FOUND = 'Failed to create pod sandbox: runtimeclass.node.k8s.io "own" not found'


# Runtime classes


def handlers(hollow: HollowRuntime) -> list[str]:
    return [sandbox.handler for sandbox in hollow.service.records.sandboxes.values()]


async def test_a_pods_sandbox_is_made_by_the_handler_of_its_class(
    joined: Joined, cluster: Cluster, hollow: HollowRuntime
) -> None:
    hollow.service.handlers = ("", "kata")
    await joined.start()
    await cluster.run("plain")
    await cluster.ready("plain")
    assert cluster.asked("GET", CLASSES) == 0
    await cluster.run("p", runtimeClassName="own", overhead={"cpu": "250m", "memory": "120Mi"})
    await eventually(lambda: messages(joined, "FailedCreatePodSandBox") == [NOT_FOUND])
    cluster.server.create(CLASSES, {"metadata": {"name": "own"}, "handler": "kata"})
    await cluster.ready("p")
    assert sorted(handlers(hollow)) == ["", "kata"]
    (made,) = [s for s in hollow.service.records.sandboxes.values() if s.handler == "kata"]
    assert (made.config.linux.overhead.cpu_shares, made.config.linux.overhead.memory_limit_in_bytes) == (
        256,
        120 << 20,
    )
    await joined.restart()
    await cluster.ready("p")
    for name in ("p", "plain"):
        await cluster.delete(name)
        await cluster.gone(name)
    await eventually(lambda: CLASSES not in {path for path, _ in cluster.server.open_watches})


async def test_a_handler_that_the_runtime_lacks_is_reported(joined: Joined, cluster: Cluster) -> None:
    cluster.server.create(CLASSES, {"metadata": {"name": "own"}, "handler": "kata"})
    await joined.start()
    await cluster.run("p", runtimeClassName="own")
    await eventually(lambda: len(messages(joined, "FailedCreatePodSandBox")) == 1)
    (said,) = messages(joined, "FailedCreatePodSandBox")
    assert "handler 'kata'" in said


async def test_without_a_cluster_a_class_is_configured_or_a_handler_by_its_name(
    rig: Rig, hollow: HollowRuntime
) -> None:
    hollow.service.handlers = ("", "kata", "gvisor")
    rig.section.runtime_classes = {"sandboxed": "gvisor"}
    await rig.start()
    rig.write("a", {"containers": [container()], "runtimeClassName": "sandboxed"})
    rig.write("b", {"containers": [container()], "runtimeClassName": "kata"})
    rig.write("c", {"containers": [container()], "runtimeClassName": "own"})
    await eventually(lambda: rig.phase("a") == rig.phase("b") == "Running")
    await eventually(lambda: "FailedCreatePodSandBox" in rig.reasons())
    assert sorted(handlers(hollow)) == ["gvisor", "kata"]
    assert rig.node is not None
    said = [e.message for e in rig.node.recorder if e.reason == "FailedCreatePodSandBox"]
    assert said == [NOT_FOUND]


# Trust bundles


def pem(*certificates: bytes) -> str:
    blocks = (base64.encodebytes(certificate).decode() for certificate in certificates)
    return "words\n" + "".join(
        f"-----BEGIN CERTIFICATE-----\n{block}-----END CERTIFICATE-----\n" for block in blocks
    )


def bundle(name: str, *certificates: bytes, signer: str = "", **labels: str) -> ClusterTrustBundle:
    return ClusterTrustBundle(
        ObjectMeta(name=name, labels=labels), ClusterTrustBundleSpec(signer, pem(*certificates))
    )


SIGNER = "example.com/ca"
KNOWN = {
    each.metadata.name: each
    for each in (
        bundle("plain", b"p" * 100, b"q"),
        bundle("a", b"1", b"2", signer=SIGNER, tier="live"),
        bundle("b", b"2", b"3", signer=SIGNER, tier="test"),
        bundle("c", b"4", signer="example.com/other", tier="live"),
    )
}


def by_signer(selector: LabelSelector | None, *, optional: bool = False) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection("p", signer_name=SIGNER, label_selector=selector, optional=optional)


def shown(wanted: ClusterTrustBundleProjection) -> list[bytes]:
    text = trust_anchors(wanted, KNOWN).decode()
    lines = text.replace("-----BEGIN CERTIFICATE-----\n", "").split("-----END CERTIFICATE-----\n")
    assert lines.pop() == ""
    return [base64.b64decode(each) for each in lines]


@pytest.mark.parametrize(
    ("selector", "anchors"),
    [
        (LabelSelector(), [b"1", b"2", b"3"]),
        (LabelSelector(match_labels={"tier": "live"}), [b"1", b"2"]),
        (
            LabelSelector(match_expressions=[LabelSelectorRequirement("tier", "NotIn", ["live"])]),
            [b"2", b"3"],
        ),
        (LabelSelector(match_expressions=[LabelSelectorRequirement("tier", "Exists")]), [b"1", b"2", b"3"]),
    ],
)
def test_anchors_of_a_signer_each_once(selector: LabelSelector, anchors: list[bytes]):
    assert shown(by_signer(selector)) == anchors


@pytest.mark.parametrize(
    "selector",
    [
        None,
        LabelSelector(match_labels={"tier": "none"}),
        LabelSelector(match_expressions=[LabelSelectorRequirement("tier", "DoesNotExist")]),
        LabelSelector(match_expressions=[LabelSelectorRequirement("tier", "Gt", ["1"])]),
    ],
)
def test_a_selector_that_takes_none(selector: LabelSelector | None):
    with pytest.raises(NotFound, match="combination of signerName and labelSelector matched zero"):
        shown(by_signer(selector))
    assert shown(by_signer(selector, optional=True)) == []


def test_anchors_by_name():
    assert shown(ClusterTrustBundleProjection("p", name="plain")) == [b"p" * 100, b"q"]
    with pytest.raises(NotFound, match='"no" not found'):
        shown(ClusterTrustBundleProjection("p", name="no"))
    assert shown(ClusterTrustBundleProjection("p", name="no", optional=True)) == []
    with pytest.raises(InvalidInput, match="requires either name or signerName"):
        shown(ClusterTrustBundleProjection("p"))


def test_blocks_that_are_not_pem_are_ignored():
    text = pem(b"1") + "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n" + pem(b"2")
    known = {"x": ClusterTrustBundle(ObjectMeta(name="x"), ClusterTrustBundleSpec("", text))}
    wanted = ClusterTrustBundleProjection("p", name="x")
    assert trust_anchors(wanted, known).count(b"BEGIN CERTIFICATE") == 2


async def test_a_trust_bundle_is_a_file_and_is_followed(joined: Joined, cluster: Cluster) -> None:
    wanted = {"path": "ca.pem", "signerName": SIGNER, "labelSelector": {"matchLabels": {"tier": "live"}}}
    await joined.start()
    await run_with(cluster, {"projected": {"sources": [{"clusterTrustBundle": wanted}]}})
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    assert messages(joined, "FailedMount")[0].endswith("the API server serves no ClusterTrustBundles")
    spec = {"signerName": SIGNER, "trustBundle": pem(b"1")}
    cluster.server.create(BUNDLES, {"metadata": {"name": "x", "labels": {"tier": "live"}}, "spec": spec})
    await cluster.ready("p")
    file = volume(joined, "projected") / "ca.pem"
    assert file.read_text() == pem(b"1").removeprefix("words\n")
    cluster.server.update(
        f"{BUNDLES}/x",
        {**cluster.server.get(f"{BUNDLES}/x"), "spec": {**spec, "trustBundle": pem(b"1", b"2")}},
    )
    await eventually(lambda: file.read_text().count("BEGIN") == 2)
    assert cluster.asked("GET", BUNDLES) == 1
    await cluster.delete("p")
    await cluster.gone("p")
    await eventually(lambda: BUNDLES not in {path for path, _ in cluster.server.open_watches})


async def test_a_deleted_trust_bundle_leaves_its_file(joined: Joined, cluster: Cluster) -> None:
    spec = {"trustBundle": pem(b"1")}
    cluster.server.create(BUNDLES, {"metadata": {"name": "x"}, "spec": spec})
    await joined.start()
    source = {"clusterTrustBundle": {"path": "ca.pem", "name": "x"}}
    context = {"runAsUser": 1234, "fsGroup": 77}
    await run_with(cluster, {"projected": {"sources": [source]}}, securityContext=context)
    await cluster.ready("p")
    file = volume(joined, "projected") / "ca.pem"
    assert (file.stat().st_uid, file.stat().st_gid, stat.S_IMODE(file.stat().st_mode)) == (1234, 77, 0o640)
    cluster.server.delete(f"{BUNDLES}/x")
    await eventually(lambda: len(messages(joined, "FailedMount")) == 1)
    assert 'clustertrustbundle.certificates.k8s.io "x" not found' in messages(joined, "FailedMount")[0]
    assert file.read_text().count("BEGIN") == 1


# Block devices


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return the path of a block device's node, which is never opened."""
    path = tmp_path / "disk"
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 250))
    return path


async def run_with_device(cluster: Cluster, **source: Any) -> None:
    devices = [{"name": "v", "devicePath": "/dev/data"}]
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c", **source}}]
    await cluster.run("p", containers=[container(volumeDevices=devices)], volumes=volumes)


@pytest.mark.parametrize(("read_only", "permissions"), [(False, "mrw"), (True, "r")])
async def test_a_container_gets_the_device_of_its_claim(
    joined: Joined,
    cluster: Cluster,
    hollow: HollowRuntime,
    device: Path,
    *,
    read_only: bool,
    permissions: str,
) -> None:
    (device.parent / "by-id").symlink_to(device)
    claim(cluster, volumeMode="Block", local={"path": str(device.parent / "by-id")})
    await joined.start()
    await run_with_device(cluster, readOnly=read_only)
    await cluster.ready("p")
    (config,) = [c.config for c in hollow.service.records.containers.values()]
    given = [(d.host_path, d.container_path, d.permissions) for d in config.devices]
    assert given == [(str(device), "/dev/data", permissions)]
    link = joined.root / "pods" / pod_of_node(joined).uid / "volumeDevices/kubernetes.io~local-volume/pv"
    assert link.readlink() == device
    await joined.restart()
    await cluster.delete("p")
    await cluster.gone("p")
    assert list((joined.root / "pods").iterdir()) == []
    assert device.is_block_device()


@pytest.mark.parametrize(
    ("made", "reason", "words"),
    [
        (
            {"local": {"path": "/tmp"}},
            "FailedMount",
            UNABLE + "volume v has volumeMode Filesystem, but is specified in volumeDevices",
        ),
        (
            {"volumeMode": "Block", "local": {"path": "/tmp"}},
            "FailedMapVolume",
            'MapVolume.SetUpDevice failed for volume "pv" : /tmp: not a block device',
        ),
        (
            {"volumeMode": "Block", "local": {"path": "/dev/../etc"}},
            "FailedMapVolume",
            'MapVolume.SetUpDevice failed for volume "pv" : invalid path: ',
        ),
        (
            {"volumeMode": "Block", "local": {"path": "/nowhere"}},
            "FailedMapVolume",
            'MapVolume.SetUpDevice failed for volume "pv" : /nowhere: No such file or directory',
        ),
        (
            {"volumeMode": "Block", "hostPath": {"path": "/dev/null"}},
            "FailedMount",
            'MapVolume.SetUpDevice failed for volume "pv" : no volume plugin matched',
        ),
    ],
)
async def test_a_device_that_cannot_be_given_holds_the_pod_up(
    joined: Joined, cluster: Cluster, made: Object, reason: str, words: str
) -> None:
    claim(cluster, **made)
    await joined.start()
    await run_with_device(cluster)
    await eventually(lambda: len(messages(joined, reason)) == 1)
    assert messages(joined, reason)[0].startswith(words)


async def test_only_claims_become_devices(joined: Joined, cluster: Cluster) -> None:
    """An API server refuses such a pod."""
    await joined.start()
    devices = [{"name": "v", "devicePath": "/dev/data"}]
    volumes = [{"name": "v", "emptyDir": {}}]
    await cluster.run("p", containers=[container(volumeDevices=devices)], volumes=volumes)
    await eventually(lambda: len(messages(joined, "Failed")) == 1)
    assert messages(joined, "Failed") == ['Error: cannot find volume "v" to pass into container "c"']
