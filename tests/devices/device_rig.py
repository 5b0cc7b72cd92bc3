"""Run a node on the hollow runtime with device plugins, and read what both know of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import SampleDevicePlugin
from engine.wire import podresources_v1_pb2 as v1
from engine.wire.podresources_v1_pb2_grpc import PodResourcesListerStub
from tests.node_rig import Rig, container
from tests.waiting import PATIENCE, eventually

GPU = "example.com/gpu"


class DeviceRig(Rig):
    """Run a node and its plugins on the hollow runtime, in a directory short enough for sockets."""

    def __init__(self, directory: Path, runtime: HollowRuntime, **config: Any) -> None:
        super().__init__(directory, runtime.socket, **config)
        self.runtime = runtime
        self.plugin_dir = self.root / "device-plugins"
        self.plugins: list[SampleDevicePlugin] = []

    async def plugin(self, count: int, resource: str = GPU, **options: Any) -> SampleDevicePlugin:
        """Start a plugin that registers again after each restart of the agent, as real ones do."""
        name = resource.rpartition("/")[2]
        plugin = SampleDevicePlugin(resource, self.plugin_dir / f"{name}.sock", count=count, **options)
        self.plugins.append(plugin)
        await plugin.start()
        plugin.follow(self.plugin_dir)
        await eventually(lambda: self.allocatable(resource) == count)
        return plugin

    def wants(self, name: str, gpus: int = 1, **spec: Any) -> None:
        limits = {"limits": {GPU: gpus}}
        self.write(name, {"containers": [container("app", resources=limits)], **spec})

    def allocatable(self, resource: str = GPU) -> int | None:
        assert self.node is not None
        amount = (self.node.node_object().status.allocatable or {}).get(resource)
        return None if amount is None else amount.value

    def config_of(self, name: str, which: str = "app") -> Any:
        """Return the configuration that the runtime got for the newest container `which` of a pod."""
        pod = self.pod(name)
        assert pod is not None
        mine = [
            c
            for c in self.runtime.service.records.containers.values()
            if c.sandbox.config.metadata.uid == pod.uid and c.config.metadata.name == which
        ]
        return max(mine, key=lambda c: c.config.metadata.attempt).config

    def gpus(self, name: str, which: str = "app") -> list[str]:
        values = {e.key: e.value.decode() for e in self.config_of(name, which).envs}
        return sorted(values["EXAMPLE_COM_GPU"].split(","))

    def runtime_uid(self, name: str) -> str:
        """Return the uid under which the runtime runs a pod."""
        records = self.runtime.service.records.sandboxes.values()
        (uid,) = {s.config.metadata.uid for s in records if s.config.metadata.name == f"{name}-n1"}
        return uid

    def running(self, *names: str) -> bool:
        return all(self.phase(name) == "Running" for name in names)

    async def listed(self) -> dict[str, list[str]]:
        socket = self.root / "pod-resources" / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            answer = await PodResourcesListerStub(channel).List(
                v1.ListPodResourcesRequest(), timeout=PATIENCE
            )
        return {
            pod.name: sorted(id for c in pod.containers for d in c.devices for id in d.device_ids)
            for pod in answer.pod_resources
        }

    async def close(self) -> None:
        for plugin in self.plugins:
            await plugin.stop()
        await super().close()
