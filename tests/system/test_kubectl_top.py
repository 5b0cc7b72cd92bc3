"""`kubectl top` by the real metrics-server, which reads the node's own port with its own certificate."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.ports import free_port
from tests.runtime.pods import embedded_runtime
from tests.system.test_kubectl import POD, Cluster, ClusterNode
from tests.waiting import PATIENCE, eventually

BINARIES = Path(os.environ.get("KUBE_BIN", "/nonexistent"))
USER = "metrics-server"
GROUP = "metrics.k8s.io"
PERMISSIONS = [
    {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
    {
        "apiGroups": [""],
        "resources": ["pods", "nodes", "namespaces", "configmaps"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["authentication.k8s.io", "authorization.k8s.io"],
        "resources": ["tokenreviews", "subjectaccessreviews"],
        "verbs": ["create"],
    },
]

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    wanted = ("kube-apiserver", "kubectl", "metrics-server")
    if not all((BINARIES / name).is_file() for name in wanted) or shutil.which("etcd") is None:
        pytest.skip(f"needs KUBE_BIN, a folder with {', '.join(wanted)}, and etcd on the PATH")
    with ControlPlane(tmp_path_factory.mktemp("plane"), BINARIES, aggregates=True) as running:
        yield running


@pytest.fixture
async def cluster(
    plane: ControlPlane, tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> AsyncIterator[Cluster]:
    async with (
        embedded_runtime(tmp_path / "runtime", busybox_archive, private_cgroup_root) as pods,
        ClusterNode(plane, tmp_path, pods.client.socket, private_cgroup_root) as it,
    ):
        yield it


def objects(port: int) -> list[dict[str, object]]:
    """Return the objects that make the API server forward metrics requests to 127.0.0.1:`port`."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": USER, "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{GROUP}"},
            "spec": {
                "service": {"name": USER, "namespace": "kube-system", "port": port},
                "group": GROUP,
                "version": "v1beta1",
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": USER},
            "rules": PERMISSIONS,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": role,
            "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    ]


@contextlib.contextmanager
def metrics_server(plane: ControlPlane, directory: Path, port: int) -> Iterator[Path]:
    """Run the metrics-server until the block ends, and yield the path of its log."""
    kubeconfig = plane.kubeconfig_of(USER)
    log = directory / "metrics-server.log"
    command = [
        str(BINARIES / "metrics-server"),
        *(f"--{kind}kubeconfig={kubeconfig}" for kind in ("", "authentication-", "authorization-")),
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory}",
        "--kubelet-insecure-tls",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-use-node-status-port",
        "--metric-resolution=10s",
        "--kubelet-request-timeout=9s",
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        try:
            yield log
        finally:
            running.terminate()


async def test_kubectl_top_shows_node_and_pods(plane: ControlPlane, cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(port)})
    await cluster.kubectl("apply", "-f", "-", stdin=document.encode())
    shown: dict[str, bytes] = {}

    async def both_are_shown() -> bool:
        for what in (["node"], ["pod", "--containers"]):
            process = await cluster.start("top", *what, "--no-headers")
            shown[what[0]], _ = await process.communicate()
        return b"n1" in shown["node"] and POD.encode() in shown["pod"]

    with metrics_server(plane, tmp_path, port) as log:
        try:
            await eventually(both_are_shown, PATIENCE / 2, every=1.0)
        except AssertionError:
            pytest.fail(f"{shown}\n{log.read_text()[-3000:]}", pytrace=False)
    name, cpu, _, memory, _ = shown["node"].split()
    assert (name, cpu.endswith(b"m"), memory.endswith(b"Mi")) == (b"n1", True, True)
    (line,) = (line for line in shown["pod"].splitlines() if POD.encode() in line)
    pod, container, cpu, memory = line.split()
    assert (pod, container) == (POD.encode(), b"c")
    assert cpu.removesuffix(b"m").isdigit()
    assert memory.removesuffix(b"Mi").isdigit()
