"""Provide a device manager on private directories, sample plugins on real sockets, and pods that want
devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import DevicesSection
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.devices.endpoint import DevicePluginDeadlines
from engine.devices.found_plugins import DEVICE_PLUGIN
from engine.devices.manager import DeviceDirectories, DeviceManager, DevicePods
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.plugins.watcher import PluginWatcher
from engine.testing.device_plugin import SampleDevicePlugin
from engine.topologymanager.policy import Numa
from tests.contexts import node_context
from tests.waiting import eventually

GPU = "example.com/gpu"
NIC = "example.com/nic"
QUICK = DevicePluginDeadlines(dial=2, options=2, preferred=2, allocate=2, pre_start=2)


def container(name: str, *, sidecar: bool = False, **devices: int) -> Container:
    """Build a container that requests devices: `container("app", gpu=2)`."""
    amounts = {f"example.com/{kind}": Quantity.from_value(count) for kind, count in devices.items()}
    return Container(
        name=name,
        image="busybox",
        restart_policy="Always" if sidecar else None,
        resources=ResourceRequirements(requests=amounts, limits=amounts),
    )


def make_pod(name: str, *containers: Container, init: list[Container] | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=list(containers) or [container("app", gpu=1)], init_containers=init),
    )


class Agent:
    """Stand in for the node around a device manager: its pods, running containers, sources and clock."""

    container = staticmethod(container)
    make_pod = staticmethod(make_pod)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugin_dir = directory / "dp"
        self.registry_dir = directory / "reg"
        self.pod_resources_dir = directory / "pr"
        self.pods: list[Pod] = []
        self.finished: list[Pod] = []
        self.ready = True
        self.running: set[tuple[str, str]] = set()
        self.now = 1_000_000.0
        self.registry = Registry()
        self.plugins: list[SampleDevicePlugin] = []
        self.managers: list[DeviceManager] = []
        self.watchers: dict[DeviceManager, PluginWatcher] = {}
        self.manager: DeviceManager

    async def start(self, *, section: DevicesSection | None = None, **options: Any) -> DeviceManager:
        """Start a new manager over the same directories, as after a restart of the agent."""
        fields = ("topology_", "feature_gates")
        config = {key: options.pop(key) for key in list(options) if key.startswith(fields)}
        manager = DeviceManager(
            node_context(
                KubeletConfiguration(**config),
                devices=section or DevicesSection(admission_retry=0),
                registry=self.registry,
                clock=lambda: self.now,
            ),
            DevicePods(
                active=lambda: self.pods,
                sources_ready=lambda: self.ready,
                is_running=lambda uid, name: (uid, name) in self.running,
                is_terminating=options.pop("leaves", lambda uid: False),
                all=lambda: [*self.pods, *self.finished],
            ),
            numa=options.pop("numa", Numa((0, 1))),
            directories=DeviceDirectories(self.plugin_dir, self.pod_resources_dir),
            deadlines=options.pop("deadlines", QUICK),
            **options,
        )
        await manager.start()
        self.manager = manager
        self.managers.append(manager)
        handlers = {DEVICE_PLUGIN: manager.found_plugins}
        watcher = self.watchers[manager] = PluginWatcher(self.registry_dir, handlers, Tasks())
        await watcher.start()
        return manager

    async def restart(self, **options: Any) -> DeviceManager:
        await self.stop_manager()
        return await self.start(**options)

    async def stop_manager(self) -> None:
        self.managers.remove(self.manager)
        await self._stop(self.manager)

    async def _stop(self, manager: DeviceManager) -> None:
        await self.watchers.pop(manager).stop()
        await manager.stop()

    async def plugin(
        self, resource: str = GPU, count: int = 4, *, register: bool = True, socket: str = "", **options: Any
    ) -> SampleDevicePlugin:
        """Start a plugin. If it registers, wait until its first list has arrived."""
        name = socket or f"{resource.rpartition('/')[2]}.sock"
        plugin = SampleDevicePlugin(resource, self.plugin_dir / name, count=count, **options)
        await plugin.start()
        self.plugins.append(plugin)
        if register:
            await self.registered(plugin)
        return plugin

    async def registered(self, plugin: SampleDevicePlugin) -> None:
        await plugin.register(self.plugin_dir)
        await eventually(lambda: self.manager.state.resources[plugin.resource].reported)

    async def admit(self, pod: Pod) -> Pod:
        """Allocate the pod's devices and count the pod as active, as a node does."""
        await self.manager.allocate(pod)
        if pod not in self.pods:
            self.pods.append(pod)
        return pod

    def devices(self, pod: Pod, name: str = "app", resource: str = GPU) -> list[str]:
        entry = self.manager.state.held(pod.uid, name, resource)
        return sorted(entry.devices) if entry else []

    def counts(self, resource: str = GPU) -> tuple[int | None, int | None]:
        """Return (capacity, allocatable); None where the node would not list the resource."""
        capacity, allocatable, _ = self.manager.capacity()
        return capacity.get(resource), allocatable.get(resource)

    async def close(self) -> None:
        for plugin in self.plugins:
            await plugin.stop()
        for manager in self.managers:
            await self._stop(manager)


@pytest.fixture
async def agent(tmp_path_factory: pytest.TempPathFactory):
    """Yield an agent with a started manager; stop everything afterwards."""
    agent = Agent(tmp_path_factory.mktemp("d"))
    await agent.start()
    yield agent
    await agent.close()
