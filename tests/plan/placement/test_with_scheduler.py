"""The planner places pods where a real scheduler binds them: same filters, same scores, same victims.

Nodes are objects without a kubelet. Pods are created one at a time, and the planner repeats each step from
what the scheduler had before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.plan import Snapshot
from engine.plan.placement.node_capacity import request_matrix
from engine.plan.placement.preemption import Preemptor
from engine.plan.placement.scheduler import PodScheduler
from engine.plan.snapshot.columns import NO_NODE
from tests.cluster.control_plane import Object
from tests.plan.placement.scheduler_site import (
    GATE,
    NAMESPACE,
    NODE_COUNT,
    PODS,
    RepeatedScheduling,
    Site,
    scheduler_site,
)

POD_COUNT, VOLUME_PODS = 100, 60
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GPU, DISK, GCE = "gpu.example.com", "disk.example.com", "pd.csi.storage.gke.io"


@pytest.fixture(params=[1, 2, 3])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with scheduler_site(tmp_path, request.param) as made:
        yield made


async def test_pods_are_placed_where_the_scheduler_binds_them(site: Site) -> None:
    bound = {f"p{number:03}": "" for number in range(POD_COUNT)}
    for name in bound:
        bound[name] = await site.run(site.pod(name))
    assert not await differences(site, bound)
    assert len(set(bound.values())) > 2


async def test_volumes_and_devices_leave_the_nodes_that_the_scheduler_takes(site: Site) -> None:
    """Each node attaches two volumes of each of two drivers, one of which has replaced an in-tree plugin.
    Every second one has devices; a claim takes some of them on one NUMA node. Some pods share a volume or a
    claim.
    """
    await offer(site)
    bound = {}
    for number in range(VOLUME_PODS):
        name = f"p{number:03}"
        spec = await volume_of(site, number) if site.draw.random() < 0.6 else await claim_of(site, number)
        bound[name] = await site.run(plain(name, "100m", **spec))
    assert not await differences(site, bound)
    assert "" in bound.values()
    assert len(set(bound.values())) > 3


async def test_ephemeral_volumes_leave_the_nodes_that_the_scheduler_takes(site: Site) -> None:
    await offer(site)
    bound = {}
    for number in range(4 * NODE_COUNT + 10):
        name = f"p{number:03}"
        bound[name] = await run_with_ephemeral_volume(site, name)
    assert not await differences(site, bound)
    assert "" in bound.values()


async def test_disks_without_a_claim_leave_the_nodes_that_the_scheduler_takes(site: Site) -> None:
    """Each node attaches two GCE disks; one pod in three has the disk of another one, and some write.

    Some disks are EBS volumes, iSCSI targets or RBD images, which no node attaches through CSI.
    """
    await offer(site)
    bound, disks = {}, list[Object]()
    for number in range(6 * NODE_COUNT + 10):
        name = f"p{number:03}"
        if not disks or site.draw.random() > 0.3:
            others = {
                "awsElasticBlockStore": {"volumeID": f"vol-{number}"},
                "iscsi": {"targetPortal": "t", "iqn": f"iqn.2000-01.com:{number}", "lun": number % 3},
                "rbd": {"monitors": site.draw.sample("abc", 2), "image": f"i{number % 5}"},
            }
            plugin = site.draw.choice(list(others))
            other = {plugin: others[plugin]}
            disks.append(other if site.draw.random() < 0.4 else {"gcePersistentDisk": {"pdName": name}})
        ((plugin, source),) = site.draw.choice(disks[-5:]).items()
        disk = {"name": "data", plugin: source | {"readOnly": site.draw.random() < 0.6}}
        bound[name] = await site.run(plain(name, "100m", volumes=[disk]))
    assert not await differences(site, bound)
    assert "" in bound.values()


async def test_the_same_pods_are_preempted(site: Site) -> None:
    """A pod of higher priority waits behind a gate while the snapshot is taken.

    The scheduler draws between nodes that cost the same, and without a kubelet no pod has a start time that
    would decide.
    """
    for number in range(40):
        await site.run(plain(f"p{number:03}", f"{site.draw.randrange(5, 15)}00m"))
    for number in range(5):
        name = f"large{number}"
        large = plain(name, "1900m", priorityClassName="high", schedulingGates=[{"name": GATE}])
        await site.admin.create(PODS, large, Object)
        before = await site.snapshot()
        await site.open_gate(name)
        node = await site.node_of(name, gated=True)
        names = before.pods["name"].to_pylist()
        gone = set(names) - set((await site.snapshot()).pods["name"].to_pylist())
        row = names.index(name)
        best, there = preempted(before, row, ""), preempted(before, row, node)
        assert {names[victim] for victim in there} == gone
        assert len(there) == len(best)


async def differences(site: Site, bound: dict[str, str]) -> dict[str, tuple[str, set[str]]]:
    """Return the pods whose node is not among the planner's choices, with that node and the choices."""
    await site.bring_back_unplaced()
    repeated = RepeatedScheduling.of(await site.snapshot())
    different = {}
    for name, node in bound.items():
        choices = repeated.choices(name)
        if node not in choices:
            different[name] = (node, choices)
        repeated.add_pod(name, node)
    return different


async def offer(site: Site) -> None:
    """Limit the volumes of every node, and give devices to every second one."""
    selectors = [{"cel": {"expression": f'device.driver == "{GPU}"'}}]
    dra = "/apis/resource.k8s.io/v1"
    gpus = {"metadata": {"name": GPU}, "spec": {"selectors": selectors}}
    await site.admin.create(f"{dra}/deviceclasses", gpus, Object)
    for number in range(NODE_COUNT):
        node = f"n{number:02}"
        drivers = [{"name": name, "nodeID": node, "allocatable": {"count": 2}} for name in (DISK, GCE)]
        csi = {"metadata": {"name": node}, "spec": {"drivers": drivers}}
        await site.admin.create("/apis/storage.k8s.io/v1/csinodes", csi, Object)
        if number % 2:
            devices = [
                {"name": f"gpu-{index}", "attributes": {"numa": {"int": index % 2}}}
                for index in range(site.draw.choice([2, 4]))
            ]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": GPU, "nodeName": node, "pool": pool, "devices": devices}
            made = {"metadata": {"name": f"slice-{node}"}, "spec": spec}
            await site.admin.create(f"{dra}/resourceslices", made, Object)


async def volume_of(site: Site, number: int) -> dict[str, Any]:
    """Return the spec of a pod with a bound claim: a new one, or one that another pod has."""
    shared = number and site.draw.random() < 0.2
    name = site.draw.choice(site.volumes) if shared and site.volumes else f"d{number}"
    if name not in site.volumes:
        site.volumes.append(name)
        await bind_claim(site, name)
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


async def bind_claim(site: Site, name: str, *, owner: Object | None = None) -> None:
    """Create a claim, of a pod or of nobody, and its volume: of a CSI driver, or of a plugin that one has
    replaced.
    """
    amount, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    meta: Object = {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "controller": True, "blockOwnerDeletion": False}
        of = {field: owner["metadata"][field] for field in ("name", "uid")}
        meta["ownerReferences"] = [reference | of]
    spec = {
        "volumeName": name,
        "accessModes": modes,
        "resources": {"requests": amount},
        "storageClassName": "",
    }
    claim = {"metadata": meta, "spec": spec}
    made = await site.admin.create(f"{NAMESPACE}/persistentvolumeclaims", claim, Object)
    source: Object = {"csi": {"driver": DISK, "volumeHandle": name}}
    if site.draw.random() < 0.5:
        source = {"gcePersistentDisk": {"pdName": name}}
    reference = {"namespace": "default", "name": name, "uid": made["metadata"]["uid"]}
    spec = {"capacity": amount, "accessModes": modes, "claimRef": reference, **source}
    await site.admin.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec}, Object)


async def run_with_ephemeral_volume(site: Site, name: str) -> str:
    """Create a pod with an ephemeral volume, behind a gate until its claim is there; return its node."""
    template = {"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
    pod = plain(name, "100m", volumes=[volume])
    gated = pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}}
    made = await site.admin.create(PODS, gated, Object)
    await bind_claim(site, f"{name}-scratch", owner=made)
    await site.open_gate(name)
    node = await site.decided(name)
    if not node:
        await site.admin.delete(f"{PODS}/{name}", {})
        site.unplaced.append(pod)
    return node


async def claim_of(site: Site, number: int) -> dict[str, Any]:
    """Return the spec of a pod with one or two ResourceClaims, of which another pod may have one."""
    names = [f"c{number}-{index}" for index in range(site.draw.choice([1, 1, 2]))]
    for name in names:
        request = {"name": "gpus", "exactly": {"deviceClassName": GPU, "count": site.draw.choice([1, 1, 2])}}
        devices = {"requests": [request], "constraints": [{"matchAttribute": f"{GPU}/numa"}]}
        claim = {"metadata": {"name": name}, "spec": {"devices": devices}}
        await site.admin.create(f"{CLAIMS}", claim, Object)
    if site.claims and site.draw.random() < 0.2:
        names[0] = site.draw.choice(site.claims)
    site.claims += names
    return {
        "resourceClaims": [{"name": f"r{index}", "resourceClaimName": n} for index, n in enumerate(names)]
    }


def preempted(snapshot: Snapshot, row: int, node: str) -> tuple[int, ...]:
    """Return the rows of the pods that are preempted for a pod, or none if it fits.

    The planner chooses among all nodes, or has only `node`.
    """
    scheduler = PodScheduler.over_all_nodes(snapshot, "scheduler")
    scheduler.capacity.open[:] = [not node or name == node for name in snapshot.node_names]
    request = request_matrix(snapshot, np.array([row]))[0]
    if scheduler.schedule(row, NO_NODE, request).node != NO_NODE:
        return ()
    found = Preemptor(snapshot, scheduler).find(row, request, snapshot.column("node").astype(np.int64))
    assert found is not None
    return found.victims


def plain(name: str, cpu: str, **spec: Any) -> Object:
    requests = {"cpu": cpu, "memory": "100Mi"}
    containers = [{"name": "c", "image": "x", "resources": {"requests": requests}}]
    tolerations = [{"operator": "Exists"}]
    more = {"terminationGracePeriodSeconds": 0, "tolerations": tolerations, "containers": containers}
    return {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": more | spec}
