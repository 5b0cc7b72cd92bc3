"""Run a node in private directories, from manifests written as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.pod import Pod
from engine.eviction.readings import NodeView
from engine.hostsetup.host_places import HostPlaces
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.runtime.hollow import HollowRuntime


class Rig:
    """Start and stop agents, one after another, on one directory of manifests.

    With a `kubeconfig` they join that cluster.
    """

    name = "n1"
    kubeconfig: Path | None = None

    def __init__(self, directory: Path, endpoint: Path, **config: Any) -> None:
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.root = directory / "root"
        self.endpoint = endpoint
        self.config = KubeletConfiguration(
            static_pod_path=str(self.manifests),
            pod_logs_dir=str(directory / "logs"),
            resolv_conf="",
            **{
                "cgroups_per_qos": False,
                "enforce_node_allocatable": [],
                "eviction_hard": {"memory.available": "0%"},
                "image_gc_high_threshold_percent": 100,
                **config,
            },
        )
        self.section = KubengineConfiguration()
        self.view: NodeView | None = None
        self.host: HostPlaces | None = None
        self.node: Node | None = None

    async def start(self) -> Node:
        self.node = Node(
            config=self.config,
            kubengine_config=self.section,
            runtime_endpoint=str(self.endpoint),
            root=self.root,
            name=self.name,
            options=NodeOptions(view=self.view, kubeconfig=self.kubeconfig, host=self.host),
        )
        await self.node.start()
        return self.node

    async def restart(self) -> Node:
        """Stop the agent and start another; the pods keep running."""
        await self.stop()
        return await self.start()

    async def stop(self) -> None:
        """Stop the agent; the pods keep running. An agent that fails to stop is not used again."""
        assert self.node is not None
        node, self.node = self.node, None
        await node.stop()

    async def close(self) -> None:
        if self.node is not None:
            await self.node.remove_all_pods()
            await self.node.stop()

    def write(self, name: str, spec: dict[str, Any], **metadata: Any) -> Path:
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"terminationGracePeriodSeconds": 1, **spec},
        }
        path = self.manifests / f"{name}.yaml"
        temporary = self.manifests / f".{name}.new"
        temporary.write_text(yaml.safe_dump(document))
        temporary.replace(path)
        return path

    def pod(self, name: str) -> Pod | None:
        assert self.node is not None
        return next((p for p in self.node.pods() if p.metadata.name == f"{name}-n1"), None)

    def phase(self, name: str) -> str:
        pod = self.pod(name)
        return pod.status.phase if pod is not None else ""

    def reason(self, name: str) -> str:
        """Return the reason in a pod's status; empty without one."""
        pod = self.pod(name)
        return pod.status.reason if pod is not None else ""

    def reasons(self) -> list[str]:
        assert self.node is not None
        return [event.reason for event in self.node.recorder]


def container(name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1", "imagePullPolicy": "IfNotPresent", **fields}


def recorded_graces(hollow: HollowRuntime) -> list[float]:
    """Return a list that gets the grace period of each container that the runtime stops from now on."""
    graces: list[float] = []
    stop = hollow.backend.stop_container

    async def stop_container(stopped: Any, grace: float) -> None:
        graces.append(grace)
        await stop(stopped, grace)

    hollow.backend.stop_container = stop_container  # type: ignore[method-assign]
    return graces
