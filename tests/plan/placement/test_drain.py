"""drain: a pod goes only where a scheduler could send it, and only such a node is `drained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.plan import Snapshot, load_snapshot, write_snapshot
from engine.plan.questions.drain import DrainParameters, drain
from tests.plan.placement.made_cluster import HOST, REQUIRED, ZONE, budget, device_objects, node, pod, read

CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def claimed(volume: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop"},
        "spec": {"volumeName": volume},
    }


def volume(**spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv", "labels": labels},
        "spec": spec,
    }


def reached_from(key: str, *values: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


def anti(key: str, app: str = "web") -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {REQUIRED: [term]}}


def near(key: str, app: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAffinity": {REQUIRED: [term]}}


CLAIM = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
SPREAD = {
    "topologySpreadConstraints": [
        {
            "topologyKey": ZONE,
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
}
ON_ZONE_B = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]
        }
    }
}
EITHER = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b", "c"]}]},
                {
                    "matchExpressions": [
                        {"key": ZONE, "operator": "DoesNotExist"},
                        {"key": "cpus", "operator": "Gt", "values": ["8"]},
                    ]
                },
            ]
        }
    }
}
DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
GCE = "pd.csi.storage.gke.io"
DEVICE = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}


def csi(**spec: Any) -> dict[str, Any]:
    """Return the volume of the claim `data`, which a CSI driver attaches."""
    return volume(csi={"driver": "disk.example.com", "volumeHandle": "v"}, **spec)


def attaches(name: str, count: int, driver: str = "disk.example.com") -> dict[str, Any]:
    """Return a CSINode whose driver can attach `count` volumes to the node."""
    drivers = [{"name": driver, "nodeID": name, "allocatable": {"count": count}}]
    meta = {"name": name}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": meta,
        "spec": {"drivers": drivers},
    }


def in_tree(**spec: Any) -> dict[str, Any]:
    """Return the volume of the claim `data`, of an in-tree plugin that a CSI driver has replaced."""
    return volume(gcePersistentDisk={"pdName": "v"}, **spec)


EPHEMERAL = {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}


def made_for(pod: str) -> list[dict[str, Any]]:
    """Return the claim and the volume of a pod's ephemeral volume, in zone a."""
    claim = claimed("pv")
    claim["metadata"]["name"] = f"{pod}-scratch"
    return [claim, csi(**reached_from(ZONE, "a"))]


def disk(plugin: str, **source: Any) -> dict[str, Any]:
    """Return a spec with a cloud disk that has no claim."""
    return {"volumes": [{"name": "disk", plugin: source}]}


DISK, READ_DISK = (disk("gcePersistentDisk", pdName="d", readOnly=read_only) for read_only in (False, True))
ISCSI, READ_ISCSI = (
    disk("iscsi", targetPortal="t", iqn="iqn.x", lun=lun, readOnly=lun == 1) for lun in (0, 1)
)
RBD, OTHER_RBD, READ_RBD = (
    disk("rbd", monitors=monitors, image="i", readOnly=monitors == ["b", "c"])
    for monitors in (["a", "b"], ["d"], ["b", "c"])
)
EBS = disk("awsElasticBlockStore", volumeID="d", readOnly=True)
# Without regard to disks, the emptier n2 would be chosen.
FULLER = [node("n2"), node("n3"), pod("one", "n3"), pod("two", "n3")]
PORT = {"container": {"ports": [{"containerPort": 80, "hostPort": 80}]}}


def rows(snapshot: Snapshot, name: str = "n1") -> list[tuple[str, str, str]]:
    answer = drain(snapshot, DrainParameters(nodes=[name]))
    return [(row["decision"], row["object"], row["reason"]) for row in answer.table.to_pylist()]


GOES = [
    ("no constraint", [node("n2")], {}, "n2"),
    ("tolerated", [node("n2", taints=[CONTROL_PLANE])], {"tolerations": [{"operator": "Exists"}]}, "n2"),
    ("soft taint", [node("n2", taints=[{"key": "x", "effect": "PreferNoSchedule"}])], {}, "n2"),
    ("the zone that it selects", [node("n2"), node("n3", "b")], {"nodeSelector": {ZONE: "b"}}, "n3"),
    ("the zone of its affinity", [node("n2"), node("n3", "b")], {"affinity": ON_ZONE_B}, "n3"),
    (
        "the volume's zone",
        [node("n2", "b"), node("n3"), claimed("pv"), volume(**reached_from(ZONE, "a"))],
        CLAIM,
        "n3",
    ),
    ("a volume without topology", [node("n2"), claimed("pv"), volume()], CLAIM, "n2"),
    (
        "where a volume can be attached",
        [node("n2"), node("n3"), attaches("n2", 0), attaches("n3", 1), claimed("pv"), csi()],
        CLAIM,
        "n3",
    ),
    (
        "where another pod has the volume already",
        [node("n2"), attaches("n2", 1), pod("other", "n2", **CLAIM), claimed("pv"), csi()],
        CLAIM,
        "n2",
    ),
    (
        "where an in-tree volume can be attached",
        [node("n2"), node("n3"), attaches("n2", 0, GCE), attaches("n3", 1, GCE), claimed("pv"), in_tree()],
        CLAIM,
        "n3",
    ),
    (
        "where another pod has its in-tree volume already",
        [node("n2"), attaches("n2", 1, GCE), pod("other", "n2", **CLAIM), claimed("pv"), in_tree()],
        CLAIM,
        "n2",
    ),
    (
        "where a disk without a claim can be attached",
        [node("n2"), node("n3"), attaches("n2", 0, GCE), attaches("n3", 1, GCE)],
        DISK,
        "n3",
    ),
    (
        "where another pod reads its disk without a claim already",
        [node("n2"), attaches("n2", 1, GCE), pod("other", "n2", **READ_DISK)],
        READ_DISK,
        "n2",
    ),
    (
        "away from a pod that writes to the disk which it reads",
        [*FULLER, pod("other", "n2", **DISK)],
        READ_DISK,
        "n3",
    ),
    (
        "away from a pod that reads the disk to which it writes",
        [*FULLER, pod("other", "n2", **READ_DISK)],
        DISK,
        "n3",
    ),
    (
        "away from a pod that has its EBS volume",
        [*FULLER, pod("other", "n2", **EBS)],
        EBS,
        "n3",
    ),
    ("away from a pod that reads its iSCSI target", [*FULLER, pod("other", "n2", **READ_ISCSI)], ISCSI, "n3"),
    (
        "to a pod that reads its iSCSI target, too",
        [*FULLER, pod("other", "n2", **READ_ISCSI)],
        READ_ISCSI,
        "n2",
    ),
    ("away from a pod that writes its RBD image", [*FULLER, pod("other", "n2", **RBD)], READ_RBD, "n3"),
    ("to a pod with an RBD image of other monitors", [*FULLER, pod("other", "n2", **RBD)], OTHER_RBD, "n2"),
    (
        "where an ephemeral volume can be attached, in another zone than the one that goes",
        [node("n2"), node("n3", "b"), attaches("n2", 0), attaches("n3", 1), *made_for("moving")],
        EPHEMERAL,
        "n3",
    ),
    ("where a device is free", [node("n2"), node("n3"), *device_objects("n3")], DEVICE, "n3"),
    ("a claim that is not bound", [node("n2"), claimed("")], CLAIM, "n2"),
    (
        "a zone label of the volume",
        [node("n2", "b"), node("n3"), claimed("pv"), volume(labels={ZONE: "a__c"})],
        CLAIM,
        "n3",
    ),
    ("away from its like", [node("n2"), pod("other", "n2"), node("n3")], {"affinity": anti(HOST)}, "n3"),
    (
        "near another",
        [node("n2"), node("n3"), pod("cache", "n3", app="cache")],
        {"affinity": near(HOST, "cache")},
        "n3",
    ),
    ("first of a group near itself", [node("n2")], {"affinity": near(HOST, "web")}, "n2"),
    ("the emptier zone", [node("n2"), pod("other", "n2"), node("n3", "b")], SPREAD, "n3"),
    ("where the port is free", [node("n2"), pod("other", "n2", **PORT), node("n3")], PORT, "n3"),
]
STAYS = [
    (
        "a taint",
        [node("n2", taints=[CONTROL_PLANE])],
        {},
        "1 excluded by a taint (node-role.kubernetes.io/control-plane:NoSchedule)",
    ),
    (
        "a cordoned node",
        [node("n2", unschedulable=True)],
        {},
        "1 excluded by a taint (node.kubernetes.io/unschedulable:NoSchedule)",
    ),
    (
        "several taints",
        [
            node("n2", taints=[CONTROL_PLANE, DEDICATED]),
            node("n3", taints=[DEDICATED], unschedulable=True),
            node(
                "n4",
                taints=[
                    DEDICATED,
                    {"key": "d", "effect": "NoExecute"},
                    {"key": "e", "effect": "PreferNoSchedule"},
                ],
            ),
        ],
        {},
        "3 excluded by a taint (3 dedicated=gpu:NoSchedule, 1 d:NoExecute, "
        "1 node-role.kubernetes.io/control-plane:NoSchedule and 1 more)",
    ),
    ("a node that is not ready", [node("n2", ready=False)], {}, "no node of 1: 1 not ready or unknown"),
    ("no such zone", [node("n2")], {"nodeSelector": {ZONE: "b"}}, f"affinity ({ZONE}=b)"),
    ("affinity", [node("n2")], {"affinity": ON_ZONE_B}, f"affinity ({ZONE}=b)"),
    (
        "several labels",
        [node("n2"), node("n3", "b"), node("n4", "c")],
        {"nodeSelector": {"disk": "ssd"}, "affinity": ON_ZONE_B},
        f"3 excluded by node selector or affinity (3 disk=ssd, 2 {ZONE}=b)",
    ),
    (
        "one of several terms",
        [node("n2"), node("n3", "d", taints=[CONTROL_PLANE])],
        {"affinity": EITHER},
        f"1 excluded by node selector or affinity ({ZONE} in (b, c) or !{ZONE} and cpus > 8)",
    ),
    (
        "a local volume",
        [node("n2"), claimed("pv"), volume(**reached_from(HOST, "n1"))],
        CLAIM,
        f"1 excluded by the topology of a volume (claim data: {HOST}=n1)",
    ),
    (
        "a zonal label",
        [node("n2", "b"), claimed("pv"), volume(labels={ZONE: "a__c"})],
        CLAIM,
        f"1 excluded by the topology of a volume (claim data: {ZONE} in (a, c))",
    ),
    (
        "anti-affinity",
        [node("n2"), pod("other", "n2")],
        {"affinity": anti(HOST)},
        f"1 excluded by its pod anti-affinity (app=web per {HOST})",
    ),
    (
        "somebody's anti-affinity",
        [node("n2"), pod("other", "n2", app="db", affinity=anti(HOST))],
        {},
        f"1 excluded by anti-affinity of a pod on the node (ReplicaSet shop/db: app=web per {HOST})",
    ),
    (
        "affinity to nobody",
        [node("n2")],
        {"affinity": near(HOST, "cache")},
        f"1 excluded by its pod affinity (app=cache per {HOST})",
    ),
    (
        "the skew",
        [node("n2"), pod("a", "n2"), pod("b", "n2"), node("n3", "b", taints=[CONTROL_PLANE])],
        SPREAD,
        f"1 excluded by its topology spread (app=web per {ZONE}, maxSkew 1)",
    ),
    ("a host port", [node("n2"), pod("other", "n2", **PORT)], PORT, "1 excluded by a host port (80/TCP)"),
    ("cpu", [node("n2", cpu="50m")], {}, "without enough cpu"),
    (
        "a node that attaches no more volumes",
        [node("n2"), attaches("n2", 0), claimed("pv"), csi()],
        CLAIM,
        "1 excluded by the number of volumes that they attach (disk.example.com: at most 0)",
    ),
    ("no device", [node("n2"), *device_objects()], DEVICE, "1 excluded by the devices that its claims need"),
    (
        "a claim that another pod keeps",
        [
            node("n2"),
            node("n4"),
            *device_objects("n2", on="n4"),
            pod("other", "n4", **DEVICE),
            pod("full", "n4", requests={"cpu": "4"}),
        ],
        DEVICE,
        "1 excluded by the devices that its claims need",
    ),
]
UNKNOWN = [
    ("no claim", [node("n2")], CLAIM, "claim data is not in the snapshot"),
    ("no slices", [node("n2")], DEVICE, "its device claims need ResourceSlices"),
    ("no claim of devices", [node("n2"), *device_objects()[:-1]], DEVICE, "resource claim gpu is not in the"),
    ("no volume", [node("n2"), claimed("pv")], CLAIM, "volume pv of claim data is not in the snapshot"),
    (
        "namespaces by label",
        [node("n2")],
        {
            "affinity": {
                "podAntiAffinity": {
                    REQUIRED: [
                        {
                            "topologyKey": HOST,
                            "labelSelector": {},
                            "namespaceSelector": {"matchLabels": {"team": "x"}},
                        }
                    ]
                }
            }
        },
        "namespaces by their labels",
    ),
]


@pytest.mark.parametrize(("others", "spec", "target"), [case[1:] for case in GOES], ids=[c[0] for c in GOES])
def test_a_pod_moves_only_where_a_scheduler_could_place_it(others, spec, target, tmp_path):
    snapshot = read(tmp_path, node("n1"), pod("moving", "n1", **spec), *others)
    for known in (snapshot, _rewritten(snapshot, tmp_path)):
        assert rows(known) == [
            ("move", "shop/moving", f"to {target}"),
            ("drained", "", "all its other pods fit elsewhere"),
        ]


@pytest.mark.parametrize(("others", "spec", "why"), [case[1:] for case in STAYS], ids=[c[0] for c in STAYS])
def test_a_node_with_an_unplaceable_pod_is_not_drained(others, spec, why, tmp_path):
    snapshot = read(tmp_path, node("n1"), pod("moving", "n1", **spec), *others)
    for known in (snapshot, _rewritten(snapshot, tmp_path)):
        (remains, verdict) = rows(known)
        assert remains[:2] == ("remains", "shop/moving")
        assert why in remains[2]
        assert verdict == ("not-drained", "", "1 pod that no other node takes")


@pytest.mark.parametrize(("others", "spec", "why"), [c[1:] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_missing_parts_of_a_snapshot_prove_nothing(others, spec, why, tmp_path):
    (unknown, verdict) = rows(read(tmp_path, node("n1"), pod("moving", "n1", **spec), *others))
    assert unknown[:2] == ("unknown", "shop/moving")
    assert why in unknown[2]
    assert verdict[0] == "not-drained"


def test_nodes_need_no_labels(tmp_path):
    nodes = [node(name) | {"metadata": {"name": name}} for name in ("n1", "n2")]
    assert rows(read(tmp_path, *nodes, pod("moving", "n1")))[0] == ("move", "shop/moving", "to n2")


def test_replicas_that_move_keep_away_from_each_other(tmp_path):
    apart = {"affinity": anti(HOST)}
    listed = [node(f"n{number}") for number in (1, 2, 3)]
    listed += [pod("a", "n1", **apart), pod("b", "n1", **apart)]
    found = rows(read(tmp_path, *listed))
    assert sorted(reason for decision, _, reason in found if decision == "move") == [
        "to n2 (equally good: 1 other)",
        "to n3",
    ]


def test_a_budget_that_allows_nothing_keeps_the_node(tmp_path):
    found = rows(read(tmp_path, node("n1"), node("n2"), pod("moving", "n1"), budget(maxUnavailable=0)))
    assert found[-1][0] == "not-drained"
    assert "allows no disruption" in found[-1][2]


def test_daemons_of_many_nodes_share_a_template(tmp_path):
    pinned = [
        pod(
            f"d{number}",
            f"n{number}",
            owner="DaemonSet",
            affinity={
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [
                            {
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}
                                ]
                            }
                        ]
                    }
                }
            },
        )
        for number in range(1, 5)
    ]
    snapshot = read(tmp_path, *(node(f"n{number}") for number in range(1, 5)), *pinned)
    assert snapshot.templates.num_rows == 1
    assert [decision for decision, _, _ in rows(snapshot)] == ["stays", "drained"]


def test_a_snapshot_without_constraints_proves_nothing(tmp_path):
    snapshot = read(tmp_path, node("n1"), node("n2"), pod("moving", "n1"))
    at = snapshot.pods.schema.get_field_index("claims")
    older = _rewritten(snapshot, tmp_path, pods=snapshot.pods.remove_column(at))
    assert [decision for decision, _, _ in rows(older)] == ["move", "unverified"]


def _rewritten(snapshot: Snapshot, tmp_path: Path, **changes: Any) -> Snapshot:
    """Write the snapshot with changes to a columnar file, and load it again."""
    from dataclasses import replace

    path = tmp_path / "cluster.kes"
    write_snapshot(replace(snapshot, **changes), path)
    return load_snapshot([str(path)])


def test_a_daemon_that_repels_pods_keeps_them_away(tmp_path):
    """Keep the anti-affinity of a daemon's pod: only its node affinity is left out of a snapshot."""
    pin = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
    repel = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOST}
    affinity = {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": pin}},
        "podAntiAffinity": {REQUIRED: [repel]},
    }
    daemon = pod("d", "n2", app="guard", owner="DaemonSet", affinity=affinity)
    nodes = [node(f"n{number}") for number in (1, 2, 3)]
    snapshot = read(tmp_path, *nodes, daemon, pod("a", "n1"))
    assert ("move", "shop/a", "to n3") in rows(snapshot)
    assert "nodeAffinity" not in "".join(snapshot.templates["spec"].to_pylist())


def test_pods_without_a_node_are_tried_again_after_a_preemption(tmp_path):
    """Free more than a preempting pod needs in the second round, for pods that found no node in the first."""
    urgent = {"app": "urgent", "priority": 100, "requests": {"cpu": "1"}}
    listed = [node("n1"), node("n2", cpu="4"), pod("u0", "n1", **urgent), pod("u1", "n1", **urgent)]
    listed += [pod("small", "n1", app="other", requests={"cpu": "1"})]
    # Of equal victims the later one goes first.
    listed += [pod(f"v{cpu}", "n2", app="other", requests={"cpu": cpu}) for cpu in ("3", "1")]
    one_at_once = budget("urgent", maxUnavailable=1, selector={"matchLabels": {"app": "urgent"}})
    found = rows(read(tmp_path, *listed, one_at_once))
    moves = {name: reason for decision, name, reason in found if decision in ("move", "displaced", "remains")}
    assert moves["shop/u0"] == "to n2, where it preempts shop/v1, in round 1"
    assert moves["shop/u1"] == "to n2, where it preempts shop/v3, in round 2"
    assert moves["shop/small"] == "to n2, in round 2"
    assert moves["shop/v1"] == "to n2, in round 2"
    assert "without enough cpu" in moves["shop/v3"]
