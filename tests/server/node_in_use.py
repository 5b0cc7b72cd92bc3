"""A node that has something of everything: pods of each class, devices, images, probes, decisions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.runtime.embedded import EmbeddedRuntime
from engine.server import HttpServer
from engine.testing.apiserver import ApiServer
from engine.testing.device_plugin import SampleDevicePlugin
from engine.testing.images import busybox_layer, padding_layer, write_image
from tests.cluster_rig import Object
from tests.ports import free_port

MEGABYTE = 1 << 20
REGISTRY = "registry.example.com"
IMAGES = {
    "shop/web:2.4": 18, "shop/web:2.3": 17, "shop/checkout:1.9": 31, "data/ledger:5.0": 22,
    "ml/trainer:0.8": 96, "ml/serving:0.8": 64, "jobs/report:7": 12, "node/proxy:1.36": 9,
}  # fmt: skip
"""Megabytes of each beside busybox's own."""
DISKS = ("nodefs.available", "imagefs.available", "nodefs.inodesFree", "imagefs.inodesFree")
"""Whoever runs this may have little left."""
IDLE = "trap 'exit 0' TERM; while :; do sleep 0.2; done"
BUSY = "trap 'exit 0' TERM; while :; do i=0; while [ $i -lt {steps} ]; do i=$((i+1)); done; sleep 0.2; done"
HOLDS = "dd if=/dev/zero of=/dev/shm/held bs=1M count={size} 2>/dev/null; "
TRUE = {"exec": {"command": ["true"]}}


def container(image: str, script: str = IDLE, **fields: Any) -> Object:
    return {
        "name": "main",
        "image": f"{REGISTRY}/{image}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        **fields,
    }


def resources(requests: Object, **limits: str) -> Object:

    return {"requests": requests, "limits": limits}


def gpus(number: int, cpu: str, memory: str) -> Object:
    both = {"cpu": cpu, "memory": memory, "example.com/gpu": str(number)}
    return {"requests": both, "limits": both}


PODS: dict[str, list[Object]] = {
    "shop/web": [
        container(
            "shop/web:2.4",
            HOLDS.format(size=11) + BUSY.format(steps=2000),
            resources=resources({"cpu": "100m", "memory": "32Mi"}, cpu="500m", memory="128Mi"),
            readinessProbe={"periodSeconds": 2, **TRUE},
            livenessProbe={"periodSeconds": 5, **TRUE},
        )
    ],
    "shop/checkout": [
        container(
            "shop/checkout:1.9",
            HOLDS.format(size=24) + IDLE,
            resources=resources({"cpu": "100m", "memory": "16Mi"}, memory="64Mi"),
            readinessProbe={"periodSeconds": 2, "exec": {"command": ["test", "-e", "/ready"]}},
        )
    ],
    "data/ledger": [
        container(
            "data/ledger:5.0",
            HOLDS.format(size=20) + BUSY.format(steps=500),
            resources=resources({"cpu": "200m", "memory": "64Mi"}, cpu="200m", memory="64Mi"),
            livenessProbe={"periodSeconds": 1, **TRUE},
        )
    ],
    "ml/trainer": [
        container(
            "ml/trainer:0.8",
            HOLDS.format(size=40) + BUSY.format(steps=6000),
            resources=gpus(3, "250m", "128Mi"),
        )
    ],
    "ml/serving": [
        container("ml/serving:0.8", HOLDS.format(size=16) + IDLE, resources=gpus(2, "100m", "64Mi"))
    ],
    "jobs/report": [container("jobs/report:7", HOLDS.format(size=6) + BUSY.format(steps=3000))],
}
PROXY = [container("node/proxy:1.36", resources=resources({"cpu": "50m", "memory": "16Mi"}))]


def manifest(name: str, containers: list[Object], **spec: Any) -> Object:
    namespace, _, name = name.partition("/")
    wanted = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": containers, **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": wanted,
    }


@asynccontextmanager
async def node_in_use(directory: Path, cgroup_root: str) -> AsyncIterator[str]:
    """Run node `worker-1` with `PODS` of an API server and devices, and yield the address of its page.

    At the end, the pods, the node and its runtime are removed.
    """
    socket = directory / "r.sock"
    runtime = EmbeddedRuntime(socket=socket, root=directory / "images", state=directory / "state")
    async with AsyncExitStack() as stack:
        await runtime.start()
        stack.push_async_callback(runtime.purge)
        for name, size in IMAGES.items():
            layers = [busybox_layer(), padding_layer(size * MEGABYTE, name)]
            archive = write_image(directory / "image.tar", [f"{REGISTRY}/{name}"], layers=layers)
            await runtime.import_image(archive)
        server = await stack.enter_async_context(ApiServer(directory))
        client = api_client(server.kubeconfig("system:node:worker-1"))
        stack.callback(client.close)
        for name, containers in PODS.items():
            pod = manifest(name, containers, nodeName="worker-1")
            await client.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod, Object)
        node, url = agent(directory, cgroup_root, server.kubeconfig("system:node:worker-1"))
        await node.start()
        stack.push_async_callback(node.stop)
        stack.push_async_callback(node.remove_all_pods)
        served = HttpServer(node, socket_path=None)
        await served.start()
        stack.push_async_callback(served.stop)
        plugins = directory / "node/device-plugins"
        plugin = SampleDevicePlugin("example.com/gpu", plugins / "gpu.sock", count=8, numa=2)
        await plugin.start()
        stack.push_async_callback(plugin.stop)
        await plugin.register(plugins)
        yield url


def api_client(kubeconfig: Path) -> ApiClient:
    config = load_kubeconfig(kubeconfig)
    return ApiClient(config, Credentials(config, clock=time.time), user_agent="test")


def agent(directory: Path, cgroup_root: str, kubeconfig: Path) -> tuple[Node, str]:
    """Not started yet, and where its page will be."""
    manifests = directory / "manifests"
    manifests.mkdir()
    proxy = manifest("kube-system/proxy", PROXY, priorityClassName="system-node-critical")
    (manifests / "proxy.json").write_text(json.dumps(proxy))
    port = free_port()
    config = KubeletConfiguration(
        static_pod_path=str(manifests),
        pod_logs_dir=str(directory / "logs"),
        resolv_conf="",
        cgroup_root=cgroup_root,
        read_only_port=port,
        healthz_port=0,
        max_pods=32,
        eviction_hard={"memory.available": "100Mi", **dict.fromkeys(DISKS, "1%")},
        image_gc_high_threshold_percent=100,
    )
    node = Node(
        config=config,
        runtime_endpoint=str(directory / "r.sock"),
        root=directory / "node",
        name="worker-1",
        options=NodeOptions(kubeconfig=kubeconfig),
    )
    return node, f"http://127.0.0.1:{port}/"
