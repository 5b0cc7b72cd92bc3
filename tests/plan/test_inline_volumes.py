"""Cloud disks in the specs of pods are kept in a snapshot, and known by the driver that attaches them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from engine.plan import load_snapshot
from engine.plan.anonymize.anonymous import anonymous
from engine.plan.snapshot.inline_volumes import attached_as
from engine.plan.snapshot.json_writer import write_list
from tests.plan.placement import made_cluster

DISKS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "aws": (
        {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}},
        ("ebs.csi.aws.com", "vol-1"),
    ),
    "azure": (
        {"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/resourceGroups/g/disks/d e"}},
        ("disk.csi.azure.com", "/subscriptions/s/resourceGroups/g/disks/d e"),
    ),
    "read-only": (
        {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
    ),
    "cinder": ({"cinder": {"volumeID": "v1"}}, ("cinder.csi.openstack.org", "v1")),
    "gce": (
        {"gcePersistentDisk": {"pdName": "d"}},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
    ),
    "portworx": ({"portworxVolume": {"volumeID": "p1"}}, ("pxd.portworx.com", "p1")),
}


@pytest.mark.parametrize(("source", "attached"), DISKS.values(), ids=list(DISKS))
def test_a_disk_is_attached_by_the_driver_of_its_plugin(tmp_path: Path, source, attached) -> None:
    volumes = [{"name": "config", "emptyDir": {}}, {"name": "data", **source}]
    objects = [made_cluster.node("n1"), made_cluster.pod("p", "n1", volumes=volumes)]
    snapshot = made_cluster.read(tmp_path, *objects)
    (name,) = snapshot.pods["claims"].to_pylist()
    assert attached_as(name) == attached
    with io.BytesIO() as stream:
        write_list(snapshot, stream)
        path = tmp_path / "written.json"
        path.write_bytes(stream.getvalue())
    assert load_snapshot([str(path)]).pods["claims"].to_pylist() == [name]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (
            {"iscsi": {"targetPortal": "a:3260", "iqn": "iqn.2000-01.com:x", "lun": 1}},
            ["iscsi/iqn.2000-01.com%3Ax"],
        ),
        (
            {"rbd": {"monitors": ["a:1", "b"], "image": "i", "readOnly": True}},
            ["rbd/a%3A1,rbd,i/read-only", "rbd/b,rbd,i/read-only"],
        ),
        ({"rbd": {"monitors": ["a"], "pool": "p,q", "image": "i"}}, ["rbd/a,p%2Cq,i"]),
    ],
    ids=["iscsi", "rbd", "rbd-pool"],
)
def test_a_disk_of_the_network_is_kept_and_attached_by_no_driver(tmp_path: Path, source, names) -> None:
    objects = [made_cluster.node("n1"), made_cluster.pod("p", "n1", volumes=[{"name": "data", **source}])]
    snapshot = made_cluster.read(tmp_path, *objects)
    (claims,) = snapshot.pods["claims"].to_pylist()
    assert claims.split() == [f"inline/{name}" for name in names]
    assert [attached_as(name) for name in claims.split()] == [None] * len(names)
    for secrecy in (lambda given: given, lambda given: anonymous(given)[0]):
        kept = secrecy(snapshot)
        with io.BytesIO() as stream:
            write_list(kept, stream)
            path = tmp_path / "written.json"
            path.write_bytes(stream.getvalue())
        assert load_snapshot([str(path)]).pods["claims"].to_pylist() == kept.pods["claims"].to_pylist()


def test_disks_that_no_driver_counts_are_left_out(tmp_path: Path) -> None:
    volumes = [
        {"name": "a", "azureFile": {"secretName": "s", "shareName": "x"}},
        {"name": "b", "gcePersistentDisk": {"pdName": ""}},
        {"name": "c", "cinder": {"volumeID": 1}},
    ]
    objects = [made_cluster.node("n1"), made_cluster.pod("p", "n1", volumes=volumes)]
    assert made_cluster.read(tmp_path, *objects).pods["claims"].to_pylist() == [""]
