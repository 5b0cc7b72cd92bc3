"""Objects that a node may not read hold their pods up, in a kubelet's words, until it may.

On the test server, and on a real one where KUBE_BIN says so, whose operator forbids what the node authorizer
would allow: it may learn of a pod later than its node does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiClient
from engine.testing.apiserver import ApiServer
from tests.cluster.authorizer import REASON, Authorizer
from tests.cluster.control_plane import ControlPlane, Object, Plane, binaries, shown
from tests.cluster.objects import (
    NAMESPACE,
    encoded,
    gone,
    is_ready,
    make,
    mounting,
    run,
    wait_for_event,
    waiting,
)

pytestmark = pytest.mark.root

NODE = "system:node:n1"
LATE = "cache: timed out waiting for the condition"
FAILED = 'MountVolume.SetUp failed for volume "v" : '
WITHOUT = {"automountServiceAccountToken": False}


@dataclass
class Guarded:
    """Hold a plane and the server that forbids its node some resources."""

    plane: Plane
    server: ApiServer | Authorizer

    def forbid(self, *resources: str) -> None:
        if isinstance(self.server, Authorizer):
            self.server.denied.update(resources)
        else:
            self.server.fail(403, path=f"/({'|'.join(resources)})(/|$)", user=NODE, times=None)

    def permit(self) -> None:
        if isinstance(self.server, Authorizer):
            self.server.denied.clear()
        else:
            self.server.heal()

    def refusal(self, verb: str, resource: str, where: str) -> str:
        """Return the text with which the server refuses a request. The test server's is shorter."""
        if isinstance(self.server, Authorizer):
            return f'User "{NODE}" cannot {verb} resource "{resource}" in API group "" {where}'
        return "Forbidden: on demand"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Authorizer]]:
    found = binaries()
    with (
        Authorizer(NODE) as authorizer,
        ControlPlane(tmp_path_factory.mktemp("plane"), found, asks=authorizer.address) as plane,
    ):
        yield plane, authorizer


@pytest.fixture(params=["test server", "kube-apiserver"])
async def guarded(
    request: pytest.FixtureRequest, tmp_path: Path, connect: Callable[[Path], ApiClient]
) -> AsyncIterator[Guarded]:
    if request.param == "kube-apiserver":
        control_plane, authorizer = request.getfixturevalue("asked")
        yield Guarded(Plane(control_plane.node, connect(control_plane.admin), control_plane), authorizer)
        authorizer.denied.clear()
        return
    async with ApiServer(tmp_path / "server") as server:
        plane = Plane(server.kubeconfig(NODE), connect(server.kubeconfig("admin")), server)
        yield Guarded(plane, server)


async def make_claim(plane: Plane, name: str, volume: str, of: str = "") -> None:
    """Bound, as its controller says, to a volume that says that it is bound to the claim `of`."""
    amount = {"storage": "1Gi"}
    modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    made = await make(
        plane,
        "persistentvolumeclaims",
        name,
        spec={**modes, "resources": {"requests": amount}, "volumeName": volume},
    )
    bound = {"status": {"phase": "Bound", "capacity": amount}}
    await plane.admin.patch(f"{NAMESPACE}/persistentvolumeclaims/{name}/status", bound, Object)
    reference = {"namespace": "default", "name": of or name, "uid": made["metadata"]["uid"]}
    spec = {**modes, "capacity": amount, "claimRef": reference, "hostPath": {"path": "/"}}
    value = {"metadata": {"name": volume}, "spec": spec}
    await plane.admin.create("/api/v1/persistentvolumes", value, Object)


async def test_a_forbidden_object_delays_the_pod_until_it_is_permitted(
    guarded: Guarded, start: Callable[[Path], Any], tmp_path: Path
) -> None:
    plane = guarded.plane
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "secrets", "s", data={"k": encoded("1")})
    await make(plane, "configmaps", "m", data={"k": "1"})
    await make_claim(plane, "c", "pv")
    guarded.forbid("secrets", "configmaps", "serviceaccounts", "persistentvolumeclaims")
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    main = {"name": "c", "image": "busybox:1", "env": [variable]}
    token = {"sources": [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]}
    pods = {
        "secret": mounting({"secret": {"secretName": "s"}}, **WITHOUT),
        "map": mounting({"configMap": {"name": "m", "optional": True}}, **WITHOUT),
        "variable": {"containers": [main], **WITHOUT},
        "token": mounting({"projected": token}, **WITHOUT),
        "claim": mounting({"persistentVolumeClaim": {"claimName": "c"}}, **WITHOUT),
    }
    for name, spec in pods.items():
        await run(plane, name, spec)
    await wait_for_event(plane, "secret", f"{FAILED}failed to sync secret {LATE}")
    await wait_for_event(plane, "map", f"{FAILED}failed to sync configmap {LATE}")
    wanted = {"reason": "CreateContainerConfigError", "message": f"failed to sync configmap {LATE}"}
    await shown(plane.admin, f"{NAMESPACE}/pods/variable", lambda pod: waiting(pod) == wanted)
    where = f'in the namespace "default": {REASON}'
    refused = guarded.refusal("create", "serviceaccounts/token", where)
    await wait_for_event(plane, "token", f"{FAILED}failed to fetch token: ", refused)
    refused = guarded.refusal("get", "persistentvolumeclaims", where)
    processed = "error processing PVC default/c: failed to fetch PVC from API server: "
    await wait_for_event(plane, "claim", "Unable to attach or mount volumes: ", processed, refused)
    directories = list((tmp_path / "root/pods").glob("*/volumes/*/v"))
    assert directories == [], "nothing is made of what cannot be had"
    guarded.permit()
    for name in pods:
        await shown(plane.admin, f"{NAMESPACE}/pods/{name}", is_ready)
        await gone(plane, name)


async def test_a_volume_that_is_bound_to_another_claim_is_forbidden(
    guarded: Guarded, start: Callable[[Path], Any]
) -> None:
    """A real server's node authorizer has it so: who may read a volume goes by what the volume says."""
    plane = guarded.plane
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make_claim(plane, "mine", "of-another", of="another")
    if isinstance(guarded.server, ApiServer):
        guarded.forbid("persistentvolumes")
    await run(plane, "p", mounting({"persistentVolumeClaim": {"claimName": "mine"}}, **WITHOUT))
    processed = "error processing PVC default/mine: failed to fetch PV of-another from API server: "
    where = "at the cluster scope: no relationship found between node 'n1' and this object"
    refused = guarded.refusal("get", "persistentvolumes", where)
    await wait_for_event(plane, "p", "Unable to attach or mount volumes: ", processed, refused)
    await gone(plane, "p")
