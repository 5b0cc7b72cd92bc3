"""The reason why no node takes a pod names each cause, with the number of nodes that it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.plan.questions.drain import DrainParameters, drain
from tests.plan.placement.made_cluster import HOST, REQUIRED, ZONE, node, pod, read

NODES = [node("n2"), node("n3"), node("n4", "b")]


def ports(*wanted: tuple[int, str]) -> dict[str, Any]:
    """Return a spec with host ports, each a number and an address."""
    each = [{"containerPort": number, "hostPort": number, "hostIP": address} for number, address in wanted]
    return {"container": {"ports": each}}


def apart(*terms: tuple[str, str], **fields: Any) -> dict[str, Any]:
    """Return a spec with required anti-affinity, each term an app and a topology key."""
    made = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **fields}
            for app, key in terms]  # fmt: skip
    return {"affinity": {"podAntiAffinity": {REQUIRED: made}}}


def together(*selectors: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with required affinity to the pods of each selector, on one node."""
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": one}
                                                    for one in selectors]}}}  # fmt: skip


def spread(key: str, skew: int, **fields: Any) -> dict[str, Any]:
    one = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule",
           "labelSelector": {"matchLabels": {"app": "web"}}, **fields}  # fmt: skip
    return {"topologySpreadConstraints": [one]}


def disks(*names: str) -> dict[str, Any]:
    return {"volumes": [{"name": name, "gcePersistentDisk": {"pdName": name}} for name in names]}


def claims(*names: str) -> dict[str, Any]:
    """Return a spec with claims."""
    return {"volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in names]}


def bound(claim: str, zone: str, driver: str = "") -> list[dict[str, Any]]:
    """Return a claim and its volume, which nodes of a zone reach (every node for an empty text)."""
    meta = {"name": f"pv-{claim}", "labels": {ZONE: zone} if zone else {}}
    csi = {"csi": {"driver": driver, "volumeHandle": claim}} if driver else {}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
         "metadata": {"name": claim, "namespace": "shop"}, "spec": {"volumeName": meta["name"]}},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": csi},
    ]  # fmt: skip


def attaching(name: str, **counts: int) -> dict[str, Any]:
    """Return a CSINode whose drivers can attach so many volumes to the node."""
    drivers = [{"name": driver, "nodeID": name, "allocatable": {"count": most}}
               for driver, most in counts.items()]  # fmt: skip
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": drivers}}  # fmt: skip


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "host ports": (
        [pod("a", "n2", **ports((80, ""))), pod("b", "n3", **ports((80, ""), (443, "10.0.0.1"))),
         pod("c", "n4", **ports((443, "10.0.0.1")))],
        ports((80, ""), (443, "10.0.0.1")),
        "3 excluded by a host port (2 10.0.0.1:443/TCP, 2 80/TCP)",
    ),
    "volumes of two zones": (
        [*bound("data", "b"), *bound("logs", "a")],
        claims("data", "logs"),
        f"2 excluded by the topology of a volume (claim data: {ZONE}=b), "
        f"1 excluded by the topology of a volume (claim logs: {ZONE}=a)",
    ),
    "limits of two drivers": (
        [*bound("data", "", "disk"), *bound("logs", "", "nfs"), attaching("n2", disk=0, nfs=0),
         attaching("n3", disk=0), attaching("n4", nfs=0)],
        claims("data", "logs"),
        "3 excluded by the number of volumes that they attach (2 disk: at most 0, 2 nfs: at most 0)",
    ),
    "disks": (
        [pod("a", "n2", **disks("one")), pod("b", "n3", **disks("one", "two")),
         pod("c", "n4", **disks("two"))],
        disks("one", "two"),
        "3 excluded by a disk that another pod of the node has "
        "(2 gcePersistentDisk one, 2 gcePersistentDisk two)",
    ),
    "pods that keep others away": (
        [pod("db", "n2", app="db", **apart(("web", ZONE))),
         pod("own", "n4", app="own", owner="", **apart(("web", HOST), namespaces=["shop", "x"]))],
        {},
        f"3 excluded by anti-affinity of a pod on the node (2 ReplicaSet shop/db: app=web per {ZONE}, "
        f"1 pods of shop without a controller: app=web of shop, x per {HOST})",
    ),
    "pods that it keeps away from": (
        [pod("db", "n2", app="db"), pod("cache", "n4", app="cache")],
        apart(("db", ZONE), ("cache", HOST), namespaceSelector={}),
        f"3 excluded by its pod anti-affinity (2 app=db of all namespaces per {ZONE}, "
        f"1 app=cache of all namespaces per {HOST})",
    ),
    "pods that it wants near": (
        [pod("db", "n2", app="db")],
        together({"matchExpressions": [{"key": "app", "operator": "In", "values": ["cache", "queue"]}]}),
        f"3 excluded by its pod affinity (app in (cache, queue) per {HOST})",
    ),
    "a spread by a label that nodes lack": (
        [pod("a", "n2")],
        spread("rack", 2, matchLabelKeys=["track"]),
        "3 excluded by its topology spread (app=web per rack, maxSkew 2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_cause_is_named_with_its_nodes(name: str, tmp_path: Path) -> None:
    others, spec, reason = CASES[name]
    snapshot = read(tmp_path, node("n1"), *NODES, pod("moving", "n1", **spec), *others)
    rows = drain(snapshot, DrainParameters(nodes=["n1"])).table.to_pylist()
    (found,) = [row["reason"] for row in rows if row["decision"] == "remains"]
    assert found == f"no node of 3: {reason}"
