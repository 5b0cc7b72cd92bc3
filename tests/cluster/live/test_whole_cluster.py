"""`kubengine kubelet` beside a scheduler and controllers: from a bootstrap token to an empty node."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml

from engine.cluster.client import ApiClient
from engine.runtime.hollow import HollowRuntime
from engine.testing.apiserver import ApiServer, Authority
from tests.cluster.agent_process import HEAD, AgentProcess
from tests.cluster.conftest import Connect
from tests.cluster.control_plane import BOOTSTRAP_TOKEN, ControlPlane, Object, shown
from tests.cluster.scenes import is_ready
from tests.waiting import PATIENCE, eventually

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"
SIGNING_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NODE = "/api/v1/nodes/worker"
USER = "system:node:worker"
NODE_CLIENT = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
REPLICAS, MANY = 12, 60


class Agent(AgentProcess):
    """Run an agent as the node `worker`. Its kubeconfig `bootstrap` is of a user who may request a
    certificate with `token`."""

    def __init__(
        self, directory: Path, bootstrap: Path, token: str, authority: Authority, socket: Path
    ) -> None:
        self.kubeconfig = directory / "etc" / "kubelet.conf"
        self.bootstrap = _bootstrap(directory, bootstrap, token, authority)
        flags = {
            "config-dir": directory / "conf.d",
            "kubeconfig": self.kubeconfig,
            "bootstrap-kubeconfig": self.bootstrap,
            "hostname-override": "worker",
            "node-labels": "disk=ssd",
        }
        super().__init__(directory, socket, flags, rotateCertificates=True, nodeLeaseDurationSeconds=40)
        drop_in = directory / "conf.d/10-lease.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(yaml.safe_dump(HEAD | {"nodeLeaseDurationSeconds": 4}))


def _bootstrap(directory: Path, kubeconfig: Path, token: str, authority: Authority) -> Path:
    """Write a copy of `kubeconfig` that reads its token and its CA certificate from files; return its
    path."""
    written = directory / "bootstrap" / "bootstrap.conf"
    written.parent.mkdir()
    written.with_name("token").write_text(f"{token}\n")
    written.with_name("ca.crt").write_bytes(authority.certificate.read_bytes())
    given = json.loads(kubeconfig.read_text())
    given["users"][0]["user"] = {"tokenFile": "token"}
    server = given["clusters"][0]["cluster"]["server"]
    given["clusters"][0]["cluster"] = {"server": server, "certificate-authority": "ca.crt"}
    written.write_text(json.dumps(given))
    return written


@pytest.fixture
async def agent(real: ControlPlane, tmp_path: Path, runtime: HollowRuntime) -> AsyncIterator[Agent]:
    made = Agent(tmp_path, real.bootstrap, BOOTSTRAP_TOKEN, real.authority, runtime.socket)
    yield made
    await made.kill()


@pytest.fixture
async def agent_of_test_server(
    server: ApiServer, tmp_path: Path, runtime: HollowRuntime
) -> AsyncIterator[Agent]:
    bootstrap = server.kubeconfig("system:bootstrap:abc", token="abc.def")
    made = Agent(tmp_path, bootstrap, "abc.def", server.authority, runtime.socket)
    yield made
    await made.kill()


async def allow(admin: ApiClient, role: str) -> None:
    """Bind a cluster role to the group of bootstrapping nodes."""
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}
    binding = {
        "metadata": {"name": role.rpartition(":")[2]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [group],
    }
    await admin.create(BINDINGS, binding, Object)


def deployment(replicas: int = REPLICAS) -> Object:
    labels = {"app": "web"}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"disk": "ssd"},
        "containers": [{"name": "c", "image": "busybox:1"}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


async def until_shown(admin: ApiClient, path: str, holds: Callable[[Object], bool]) -> Object:
    found: Object = {}

    async def is_so() -> bool:
        found.update(await shown(admin, path, lambda _: True))
        return holds(found)

    await eventually(is_so, every=0.2)
    return found


async def on_node(admin: ApiClient) -> list[Object]:
    listed = await admin.get(PODS, Object)
    return [pod for pod in listed["items"] if pod["spec"].get("nodeName") == "worker"]


async def test_a_node_joins_with_a_token_carries_a_deployment_through_a_kill_and_is_drained(
    real: ControlPlane, connect: Connect, agent: Agent, runtime: HollowRuntime
):
    admin = connect(real.admin)
    await allow(admin, "system:node-bootstrapper")
    await allow(admin, NODE_CLIENT)
    real.start_controllers()
    await agent.start()
    node = await until_shown_node(admin)
    assert node["metadata"]["labels"]["disk"] == "ssd"
    (request,) = (await admin.get(SIGNING_REQUESTS, Object))["items"]
    assert [each["type"] for each in request["status"]["conditions"]] == ["Approved"]
    assert agent.kubeconfig.exists()
    lease = await shown(
        admin, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/worker", lambda _: True
    )
    assert lease["spec"]["leaseDurationSeconds"] == 4, "as the drop-in says"

    def ready(number: int) -> Callable[[Object], bool]:
        return lambda known: known.get("status", {}).get("readyReplicas", 0) == number

    await admin.create(DEPLOYMENTS, deployment(MANY), Object)
    await until_shown(admin, f"{DEPLOYMENTS}/web", ready(MANY))
    await agent.kill()
    agent.bootstrap.unlink()  # as `kubeadm join` does
    await admin.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": MANY + 1}}, Object)
    await agent.start()
    await until_shown(admin, f"{DEPLOYMENTS}/web", ready(MANY + 1))
    assert runtime.counts()["StartContainer"]["calls"] == MANY + 1
    statuses = [pod["status"]["containerStatuses"][0] for pod in await on_node(admin)]
    assert {status["restartCount"] for status in statuses} == {0}
    assert len((await admin.get(SIGNING_REQUESTS, Object))["items"]) == 1

    await kubectl(real, "drain", "worker", "--ignore-daemonsets", f"--timeout={PATIENCE:g}s")
    assert await on_node(admin) == []
    await eventually(lambda: not runtime.service.records.sandboxes)
    assert real.refused(USER) == real.refused("system:bootstrap:abcdef") == []


async def test_pods_outlive_an_agent_that_is_killed(
    server: ApiServer, agent_of_test_server: Agent, runtime: HollowRuntime
):
    agent = agent_of_test_server
    await agent.start()
    await eventually(lambda: server.list(SIGNING_REQUESTS))
    (request,) = server.list(SIGNING_REQUESTS)
    server.sign_request(request["metadata"]["name"])
    await eventually(lambda: any(map(is_ready, server.list("/api/v1/nodes"))))
    spec = deployment()["spec"]["template"]["spec"] | {"nodeName": "worker"}
    for number in range(REPLICAS):
        server.create(PODS, {"metadata": {"name": f"web-{number}"}, "spec": spec})
    await eventually(lambda: all(map(is_ready, server.list(PODS))))
    await agent.kill()
    agent.bootstrap.unlink()  # as `kubeadm join` does
    server.delete(f"{PODS}/web-0", grace=1)
    server.create(PODS, {"metadata": {"name": "later"}, "spec": spec})
    await agent.start()
    await eventually(lambda: len(server.list(PODS)) == REPLICAS and all(map(is_ready, server.list(PODS))))
    assert runtime.counts()["StartContainer"]["calls"] == REPLICAS + 1
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in server.list(PODS)} == {0}


async def until_shown_node(admin: ApiClient) -> Object:
    async def there() -> bool:
        return bool((await admin.get("/api/v1/nodes", Object))["items"])

    await eventually(there, every=0.2)
    return await until_shown(admin, NODE, is_ready)


async def kubectl(plane: ControlPlane, *arguments: str) -> None:
    binary = Path(os.environ["KUBE_BIN"]) / "kubectl"
    process = await asyncio.create_subprocess_exec(
        str(binary),
        f"--kubeconfig={plane.admin}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        out, said = await process.communicate()
    assert process.returncode == 0, (out, said)
