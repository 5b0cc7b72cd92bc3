"""Test `kubectl` against a real API server, which reaches pods over the node's own port."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.api.config import KubeletAuthentication, KubeletConfiguration, X509Authentication
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.server import HttpServer
from engine.server.port.server import SecurePort
from tests.cluster.control_plane import ControlPlane
from tests.ports import free_port
from tests.runtime.pods import embedded_runtime
from tests.waiting import PATIENCE

BINARIES = Path(os.environ.get("KUBE_BIN", "/nonexistent"))
POD = "talker-n1"
TALK = "echo first; echo second >&2; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.2; done"

RULES = {
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_memory_rss",
    "container_memory_cache",
    "container_memory_swap",
    "container_network_receive_bytes_total",
    "container_network_transmit_packets_total",
    "container_network_receive_packets_dropped_total",
    "container_start_time_seconds",
}
"""Series that the stock rules and dashboards of a cluster are made from."""

pytestmark = [pytest.mark.root]


@dataclass
class Cluster:
    """Hold an API server and its node, which runs the pods `talker-n1` and `crasher-n1`."""

    plane: ControlPlane
    node: Node
    port: int

    async def kubectl(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> bytes:
        process = await self.start(*arguments)
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate(stdin)
        assert process.returncode == code, (out, err)
        return out

    def command(self, *arguments: str) -> list[str]:
        return [str(BINARIES / "kubectl"), f"--kubeconfig={self.plane.admin}", *arguments]

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self.command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe
        )

    async def until(self, path: str, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                process = await self.start("get", "--raw", path)
                out, _ = await process.communicate()
                if process.returncode == 0 and condition(json.loads(out)):
                    return
                await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if not (BINARIES / "kube-apiserver").is_file() or shutil.which("etcd") is None:
        pytest.skip("needs KUBE_BIN, a folder with kube-apiserver and kubectl, and etcd on the PATH")
    with ControlPlane(tmp_path_factory.mktemp("plane"), BINARIES) as running:
        yield running


@pytest.fixture(params=["embedded", pytest.param("containerd", marks=pytest.mark.containerd)])
async def cluster(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    tmp_path: Path,
    busybox_archive: Path,
    private_cgroup_root: str,
) -> AsyncIterator[Cluster]:
    if request.param == "containerd":
        socket = request.getfixturevalue("containerd").socket
        async with ClusterNode(plane, tmp_path, socket, private_cgroup_root) as it:
            yield it
        return
    async with (
        embedded_runtime(tmp_path / "runtime", busybox_archive, private_cgroup_root) as pods,
        ClusterNode(plane, tmp_path, pods.client.socket, private_cgroup_root) as it,
    ):
        yield it


class ClusterNode:
    """Run the node in its cluster until both pods run; at exit, remove all pods and stop it."""

    def __init__(self, plane: ControlPlane, directory: Path, endpoint: Path, cgroup_root: str) -> None:
        self._plane = plane
        manifests = directory / "manifests"
        manifests.mkdir()
        for name, command in (("talker", TALK), ("crasher", "echo last words; sleep 1; exit 3")):
            (manifests / f"{name}.yaml").write_text(yaml.safe_dump(manifest(name, command)))
        self._port = free_port()
        config = KubeletConfiguration(
            static_pod_path=str(manifests),
            pod_logs_dir=str(directory / "logs"),
            resolv_conf="",
            cgroup_root=cgroup_root,
            eviction_hard={"memory.available": "0%"},
            image_gc_high_threshold_percent=100,
            container_log_max_size="1Ki",
            read_only_port=0,
            healthz_port=0,
            port=self._port,
            authentication=KubeletAuthentication(
                x509=X509Authentication(client_ca_file=str(plane.authority.certificate))
            ),
        )
        self.node = Node(
            config=config,
            runtime_endpoint=str(endpoint),
            root=directory / "root",
            name="n1",
            options=NodeOptions(kubeconfig=plane.node),
        )
        own = SecurePort(self.node, "0.0.0.0", self._port)
        self._server = HttpServer(self.node, socket_path=None, port=own)

    async def __aenter__(self) -> Cluster:
        await self.node.start()
        await self._server.start()
        made = Cluster(self._plane, self.node, self._port)
        await made.until(
            f"/api/v1/namespaces/default/pods/{POD}",
            lambda pod: pod.get("status", {}).get("phase") == "Running",
        )
        return made

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()
        await self.node.remove_all_pods()
        await self.node.stop()


def manifest(name: str, command: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "c",
                    "image": "docker.io/library/busybox:latest",
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", command],
                    "stdin": True,
                }
            ],
        },
    }


async def test_kubectl_reaches_into_pods(cluster: Cluster, tmp_path: Path) -> None:
    """Run every check on one node: starting a cluster takes longer than using it."""
    await logs(cluster)
    await commands(cluster)
    await files(cluster, tmp_path)
    await ports(cluster)
    check_websockets(cluster)
    await statistics(cluster)
    await debugging(cluster)


def check_websockets(cluster: Cluster) -> None:
    """Check that the API server forwarded kubectl's WebSockets, as v1.36 does to a node that declares the
    feature."""
    metric = cluster.node.registry.metrics["kubelet_websocket_streaming_requests_total"]
    assert set(metric.values) == {("exec",), ("attach",), ("portforward",)}  # type: ignore[attr-defined]


async def logs(cluster: Cluster) -> None:
    out = await cluster.kubectl("logs", POD, "--tail=2")
    assert len(out.splitlines()) == 2
    out = await cluster.kubectl("logs", POD, "--limit-bytes=9")
    assert len(out) == 9
    followed = await cluster.start("logs", "-f", POD, "--tail=1")
    assert followed.stdout is not None
    numbers = []
    async with asyncio.timeout(PATIENCE):
        while len(numbers) < 20:
            word, number = (await followed.stdout.readline()).split()
            assert word == b"line"
            numbers.append(int(number))
    followed.kill()
    await followed.communicate()
    assert numbers == list(range(numbers[0], numbers[0] + 20)), "over rotations too"
    await cluster.until(
        "/api/v1/namespaces/default/pods/crasher-n1",
        lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] > 0,
    )
    assert await cluster.kubectl("logs", "--previous", "crasher-n1") == b"last words\n"
    assert b"talk" not in await cluster.kubectl("logs", POD, "-c", "none", code=1)


async def commands(cluster: Cluster) -> None:
    assert await cluster.kubectl("exec", POD, "--", "echo", "a b", "c") == b"a b c\n"
    assert await cluster.kubectl("exec", "-i", POD, "--", "cat", stdin=b"through\n") == b"through\n"
    await cluster.kubectl("exec", POD, "--", "sh", "-c", "exit 7", code=7)
    attached = await cluster.start("attach", POD)
    assert attached.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert (await attached.stdout.readline()).startswith(b"line")
    attached.kill()
    await attached.communicate()
    await terminal(cluster)


async def terminal(cluster: Cluster) -> None:
    """Check that a command in a terminal sees the terminal's size, and a change of it."""
    ours, theirs = pty.openpty()
    _resize(ours, 33, 77)
    loop = "while true; do stty size; sleep 0.1; done"
    process = await asyncio.create_subprocess_exec(
        *cluster.command("exec", "-it", POD, "--", "sh", "-c", loop),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        await asyncio.to_thread(_until_read, ours, b"33 77")
        _resize(ours, 40, 100)
        process.send_signal(signal.SIGWINCH)
        await asyncio.to_thread(_until_read, ours, b"40 100")
    finally:
        process.kill()
        await process.wait()
        os.close(ours)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _until_read(terminal: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        assert select.select([terminal], [], [], PATIENCE)[0], seen
        seen += os.read(terminal, 4096)


async def files(cluster: Cluster, directory: Path) -> None:
    sent = directory / "sent"
    sent.write_bytes(os.urandom(300_000))
    await cluster.kubectl("cp", str(sent), f"{POD}:/copied")
    await cluster.kubectl("cp", f"{POD}:/copied", str(directory / "back"))
    assert (directory / "back").read_bytes() == sent.read_bytes()


async def ports(cluster: Cluster) -> None:
    await cluster.kubectl("exec", POD, "--", "sh", "-c", "(echo pong | nc -l -p 4711) >/dev/null 2>&1 &")
    forwarded = await cluster.start("port-forward", POD, ":4711")
    assert forwarded.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = (await forwarded.stdout.readline()).decode()
        number = int(line.split(" -> ")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        assert await reader.read() == b"pong\n"
        writer.close()
    forwarded.kill()
    await forwarded.communicate()


async def debugging(cluster: Cluster) -> None:
    """Check `kubectl debug`: ephemeral containers run, and one sees the processes of its target container."""
    document = manifest("plain", "exec sleep 1234")
    document["spec"] |= {"nodeName": "n1", "automountServiceAccountToken": False}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    for each in (account, document):
        await cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each).encode())
    path = "/api/v1/namespaces/default/pods/plain"
    await cluster.until(path, lambda pod: pod.get("status", {}).get("phase") == "Running")
    image = "--image=docker.io/library/busybox:latest"
    debug = ("debug", "plain", image, "--image-pull-policy=Never", "--profile=general")
    await cluster.kubectl(*debug, "--target=c", "-c", "observer", "--", "sh", "-c", "ps; exec sleep 4321")
    await cluster.until(path, lambda pod: "running" in _state(pod, "observer"))
    assert b"sleep 1234" in await cluster.kubectl("logs", "plain", "-c", "observer")
    assert b"sleep 4321" in await cluster.kubectl("exec", "plain", "-c", "observer", "--", "ps")
    script = ("sh", "-c", "read line; echo received $line; exit 5")
    attached = await cluster.start(*debug, "-i", "-c", "echo", "--", *script)
    assert attached.stdin is not None
    assert attached.stdout is not None
    attached.stdin.write(b"words\n")
    async with asyncio.timeout(PATIENCE):
        received, (_, errors) = await attached.stdout.readline(), await attached.communicate()
    assert received == b"received words\n", errors
    await cluster.until(path, lambda pod: _state(pod, "echo").get("terminated", {}).get("exitCode") == 5)
    shown = json.loads(await cluster.kubectl("get", "pod", "plain", "-o", "json"))["status"]
    assert [c["restartCount"] for c in shown["containerStatuses"]] == [0]
    assert shown["phase"] == "Running"
    await cluster.kubectl("delete", "pod", "plain", "--timeout=60s")


def _state(pod: dict[str, Any], container: str) -> dict[str, Any]:
    found = pod["status"].get("ephemeralContainerStatuses", ())
    return next((each["state"] for each in found if each["name"] == container), {})


async def statistics(cluster: Cluster) -> None:
    proxy = "/api/v1/nodes/n1/proxy"
    assert await cluster.kubectl("get", "--raw", f"{proxy}/healthz") == b"ok"
    configz = json.loads(await cluster.kubectl("get", "--raw", f"{proxy}/configz"))["kubeletconfig"]
    assert configz["kind"] == "KubeletConfiguration"
    pods = json.loads(await cluster.kubectl("get", "--raw", f"{proxy}/pods"))["items"]
    assert {pod["metadata"]["name"] for pod in pods} == {POD, "crasher-n1"}
    summary = json.loads(await cluster.kubectl("get", "--raw", f"{proxy}/stats/summary"))
    assert POD in {pod["podRef"]["name"] for pod in summary["pods"]}
    (pod,) = (pod for pod in summary["pods"] if pod["podRef"]["name"] == POD)
    shown = {
        "cpu",
        "memory",
        "network",
        "startTime",
        "containers",
        "volume",
        "ephemeral-storage",
        "process_stats",
    }
    assert shown <= pod.keys()
    assert {"cpu", "memory", "rootfs", "logs", "startTime", "name"} <= pod["containers"][0].keys()
    assert {"network", "rlimit", "runtime", "swap", "fs", "cpu"} <= summary["node"].keys()
    assert {"kubelet", "pods"} <= {each["name"] for each in summary["node"]["systemContainers"]}
    assert b"node_cpu" in await cluster.kubectl("get", "--raw", f"{proxy}/metrics/resource")
    text = (await cluster.kubectl("get", "--raw", f"{proxy}/metrics/cadvisor")).decode()
    samples = {
        sample.name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("pod") == POD and sample.labels.get("container", "c") in ("c", "")
    }
    assert samples >= RULES
