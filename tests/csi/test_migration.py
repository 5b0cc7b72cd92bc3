"""Persistent volumes of the former in-tree cloud plugins are those of CSI drivers, as in kubelet v1.36."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.objects.storage import PersistentVolume
from engine.api.pod import Volume
from engine.api.struct import to_builtins
from engine.csi.migration import migrated, migrated_inline
from engine.csi.paths import published
from tests.csi_rig import CLAIMED, CsiRig
from tests.waiting import eventually

GA, BETA = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
DISK = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d"


def volume(spec: dict[str, Any], **metadata: Any) -> PersistentVolume:
    return convert({"metadata": {"name": "pv", **metadata}, "spec": spec}, PersistentVolume, "test")


def source(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(migrated(volume(spec, **metadata)).spec.csi)
    return found


def affinity(*terms: dict[str, list[str]]) -> dict[str, Any]:
    listed = [
        {"matchExpressions": [{"key": k, "operator": "In", "values": v} for k, v in term.items()]}
        for term in terms
    ]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": listed}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {
                "awsElasticBlockStore": {
                    "volumeID": "aws://us-east-1a/vol-1",
                    "fsType": "ext4",
                    "partition": 2,
                }
            },
            {
                "driver": "ebs.csi.aws.com",
                "volumeHandle": "vol-1",
                "fsType": "ext4",
                "volumeAttributes": {"partition": "2"},
            },
        ),
        (
            {"awsElasticBlockStore": {"volumeID": "vol-2", "readOnly": True}},
            {
                "driver": "ebs.csi.aws.com",
                "volumeHandle": "vol-2",
                "readOnly": True,
                "volumeAttributes": {"partition": "0"},
            },
        ),
        (
            {"azureDisk": {"diskURI": DISK, "kind": "Managed", "cachingMode": "None", "fsType": "xfs"}},
            {
                "driver": "disk.csi.azure.com",
                "volumeHandle": DISK,
                "fsType": "xfs",
                "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "xfs"},
            },
        ),
        (
            {
                "azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "share"},
                "claimRef": {"namespace": "team"},
            },
            {
                "driver": "file.csi.azure.com",
                "volumeHandle": "#acc#share#pv#team",
                "volumeAttributes": {"sharename": "share"},
                "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "team"},
            },
        ),
        (
            {"azureFile": {"secretName": "s", "shareName": "share", "secretNamespace": "own"}},
            {
                "driver": "file.csi.azure.com",
                "volumeHandle": "#s#share#pv#own",
                "volumeAttributes": {"sharename": "share"},
                "nodeStageSecretRef": {"name": "s", "namespace": "own"},
            },
        ),
        (
            {"gcePersistentDisk": {"pdName": "d", "fsType": "ext4"}},
            {
                "driver": "pd.csi.storage.gke.io",
                "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
                "fsType": "ext4",
                "volumeAttributes": {"partition": ""},
            },
        ),
        (
            {"cinder": {"volumeID": "v", "readOnly": True}},
            {
                "driver": "cinder.csi.openstack.org",
                "volumeHandle": "v",
                "readOnly": True,
                "volumeAttributes": {},
            },
        ),
        (
            {"vsphereVolume": {"volumePath": "[ds] v.vmdk", "storagePolicyName": "gold"}},
            {
                "driver": "csi.vsphere.vmware.com",
                "volumeHandle": "[ds] v.vmdk",
                "volumeAttributes": {"storagepolicyname": "gold"},
            },
        ),
        (
            {"portworxVolume": {"volumeID": "v", "fsType": "ext4"}},
            {
                "driver": "pxd.portworx.com",
                "volumeHandle": "v",
                "fsType": "ext4",
                "volumeAttributes": {},
            },
        ),
    ],
)
def test_a_source_is_its_drivers(given: dict[str, Any], expected: dict[str, Any]):
    assert source(given) == expected


@pytest.mark.parametrize(
    ("labels", "handle"),
    [
        ({GA: "us-central1-a"}, "projects/UNSPECIFIED/zones/us-central1-a/disks/d"),
        ({BETA: "us-central1-b"}, "projects/UNSPECIFIED/zones/us-central1-b/disks/d"),
        ({GA: "us-central1-a__us-central1-c"}, "projects/UNSPECIFIED/regions/us-central1/disks/d"),
    ],
)
def test_a_gce_disk_is_named_by_its_zone_or_region(labels: dict[str, str], handle: str):
    assert source({"gcePersistentDisk": {"pdName": "d"}}, labels=labels)["volumeHandle"] == handle


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (["ReadWriteMany"], ["ReadWriteOnce"]),
        (["ReadOnlyMany"], ["ReadOnlyMany"]),
        (["ReadOnlyMany", "ReadWriteOnce"], ["ReadWriteOnce"]),
        (None, None),
    ],
)
def test_access_modes_of_a_gce_disk(modes: list[str] | None, expected: list[str] | None):
    found = migrated(volume({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes}))
    assert found.spec.access_modes == expected


def test_portworx_secrets_are_annotated():
    annotations = {"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"}
    found = source({"portworxVolume": {"volumeID": "v"}}, annotations=annotations)
    for field in ("nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"):
        assert found[field] == {"name": "s", "namespace": "n"}


@pytest.mark.parametrize(
    ("spec", "labels", "expected"),
    [
        (affinity({GA: ["a"]}, {GA: ["b"], "x": ["1"]}), {}, [{"EBS": ["a"]}, {"EBS": ["b"], "x": ["1"]}]),
        (
            affinity({BETA: ["a"], "failure-domain.beta.kubernetes.io/region": ["r"]}),
            {},
            [{"EBS": ["a"], "topology.kubernetes.io/region": ["r"]}],
        ),
        ({}, {GA: "b__a"}, [{"EBS": ["a", "b"]}]),
        (affinity({"x": ["1"]}), {BETA: "a"}, [{"x": ["1"], "EBS": ["a"]}]),
        ({}, {}, []),
    ],
)
def test_zones_are_the_drivers(spec: dict[str, Any], labels: dict[str, str], expected: list[dict[str, Any]]):
    given = volume({"awsElasticBlockStore": {"volumeID": "vol-1"}, **spec}, labels=labels)
    before = to_builtins(given)
    found = migrated(given)
    assert to_builtins(given) == before
    required = found.spec.node_affinity.required if found.spec.node_affinity is not None else None
    terms = (required.node_selector_terms or []) if required is not None else []
    key = "topology.ebs.csi.aws.com/zone"
    assert [
        {"EBS" if one.key == key else one.key: one.values for one in term.match_expressions or ()}
        for term in terms
    ] == expected


def test_a_vsphere_volume_has_a_zone_and_a_region():
    labels = {GA: "z", "topology.kubernetes.io/region": "r"}
    found = migrated(volume({"vsphereVolume": {"volumePath": "p"}}, labels=labels))
    assert found.spec.node_affinity is not None
    required = found.spec.node_affinity.required
    assert required is not None
    (term,) = required.node_selector_terms or []
    assert [(one.key, one.values) for one in term.match_expressions or ()] == [
        ("topology.csi.vmware.com/zone", ["z"]),
        ("topology.csi.vmware.com/region", ["r"]),
    ]


@pytest.mark.parametrize(
    ("spec", "labels", "fault"),
    [
        ({"awsElasticBlockStore": {"volumeID": "aws://z/disk"}}, {}, "Invalid format for AWS volume"),
        ({"azureDisk": {"diskURI": DISK, "kind": "Shared"}}, {}, "kind(Shared) is not supported"),
        ({"azureFile": {"secretName": "s", "shareName": "x"}}, {}, "could not find a secret namespace"),
        ({"gcePersistentDisk": {"pdName": "d"}}, {GA: "a__b"}, "zone in unexpected format"),
        ({"gcePersistentDisk": {"pdName": "d"}}, {GA: "a-b-c__a-x-c"}, "multiple or no regions"),
    ],
)
def test_a_volume_without_a_driver_is_named(spec: dict[str, Any], labels: dict[str, str], fault: str):
    with pytest.raises(InvalidInput) as caught:
        migrated(volume(spec, labels=labels))
    assert str(caught.value).startswith("failed to translate in-tree volume to CSI: ")
    assert fault in str(caught.value)


def test_other_volumes_are_not_translated():
    given = volume({"csi": {"driver": "d", "volumeHandle": "h"}})
    assert migrated(given) is given


async def test_a_pod_gets_an_in_tree_volume_from_its_driver(csi: CsiRig) -> None:
    name = "ebs.csi.aws.com"
    csi.known(name)
    driver = await csi.driver(name=name)
    csi.claim(csi=None, awsElasticBlockStore={"volumeID": "aws://us-east-1a/vol-1", "fsType": "ext4"})
    await csi.run(CLAIMED)
    (call,) = driver.called("NodePublishVolume")
    assert (call.volume_id, call.volume_context["partition"]) == ("vol-1", "0")
    await csi.delete()
    await eventually(csi.is_cleaned_up)
    assert csi.csi_node()["metadata"]["annotations"]["storage.alpha.kubernetes.io/migrated-plugins"] == (
        "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,"
        "kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
    )


@pytest.mark.parametrize(
    ("given", "name", "handle", "mode"),
    [
        (
            {"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}},
            "ebs.csi.aws.com-vol-1",
            "vol-1",
            "ReadWriteOnce",
        ),
        (
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "ReadOnlyMany",
        ),
        ({"azureDisk": {"diskName": "d", "diskURI": DISK}}, DISK, DISK, "ReadWriteOnce"),
        (
            {"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "x"}},
            "#acc#x#v#ns",
            "#acc#x#v#ns",
            "ReadWriteMany",
        ),
        ({"cinder": {"volumeID": "c"}}, "cinder.csi.openstack.org-c", "c", "ReadWriteOnce"),
        ({"vsphereVolume": {"volumePath": "p"}}, "csi.vsphere.vmware.com-p", "p", "ReadWriteOnce"),
        (
            {"portworxVolume": {"volumeID": "p", "readOnly": True}},
            "pxd.portworx.com-p",
            "p",
            "ReadOnlyMany",
        ),
    ],
)
def test_a_cloud_volume_of_a_pods_own_spec(given: dict[str, Any], name: str, handle: str, mode: str) -> None:
    found = migrated_inline(convert({"name": "v", **given}, Volume, "test"), "ns")
    assert found is not None
    assert found.spec.csi is not None
    assert (found.metadata.name, found.spec.csi.volume_handle) == (name, handle)
    assert found.spec.access_modes == [mode]


def test_a_bad_cloud_volume_of_a_pods_own_spec_is_named() -> None:
    with pytest.raises(InvalidInput, match="failed to translate in-tree volume to CSI: Expected `str`"):
        migrated_inline(Volume(name="v", cinder={"volumeID": 1}), "ns")


async def test_a_pod_gets_a_cloud_volume_of_its_own_spec_from_the_driver(csi: CsiRig) -> None:
    name = "disk.csi.azure.com"
    csi.known(name)
    driver = await csi.driver(name=name)
    pod = await csi.run({"azureDisk": {"diskName": "d", "diskURI": "d1"}})
    (call,) = driver.called("NodePublishVolume")
    assert call.volume_id == "d1"
    assert csi.published(pod, "d1").is_dir()
    await csi.delete()
    await eventually(csi.is_cleaned_up)


def test_a_slash_in_a_volumes_name_is_no_step_in_the_path(tmp_path: Path) -> None:
    assert published(tmp_path, "u", DISK).name == DISK.replace("/", "~")
