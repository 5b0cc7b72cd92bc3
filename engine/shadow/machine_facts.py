"""Compute amounts and cgroup values from a configuration and the facts of a machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.documents import CONTAINERD
from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeStatus
from engine.api.quantity import ZERO, Quantity
from engine.cgroups.formulas.allocatable import PID, without_huge_pages
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.interface_files import FileRules
from engine.node.nodeinfo import machine
from engine.shadow.kinds.cgroups import CgroupRules
from engine.shadow.second import NextNode


class MachineFacts(msgspec.Struct, frozen=True):
    """Hold the facts of a machine and its runtime, which a record stores as well.

    `hardware` are the amounts that `nodeinfo.machine.hardware` returns, `devices` maps a resource to the
    number of its devices, and `runtime` and `oom_floor` are as in `CgroupRules`.
    """

    hardware: Mapping[str, Quantity]
    max_pids: int
    files: FileRules
    swap_controller: bool = False
    swap_capacity: int = 0
    huge_page_sizes: tuple[int, ...] = ()
    devices: Mapping[str, int] = {}
    runtime: str = "containerd"
    oom_floor: int | None = None

    def settings(self, config: KubeletConfiguration) -> CgroupSettings:
        """Return the cgroup settings of a configuration on this machine. Raise `InvalidInput`."""
        return CgroupSettings.resolve(
            config,
            {**machine.as_configured(self.hardware, config), PID: self.max_pids},
            cgroup_v2=self.files.version == 2,
            swap_controller=self.swap_controller,
            swap_capacity=self.swap_capacity,
            huge_page_sizes=self.huge_page_sizes,
        )

    def rules(self, config: KubeletConfiguration) -> CgroupRules:
        """Return the cgroup rules of a configuration on this machine. Raise `InvalidInput`."""
        return CgroupRules(self.settings(config), self.files, self.runtime, self.oom_floor)

    def allocatable(self, config: KubeletConfiguration) -> dict[str, Quantity]:
        """Return the allocatable of the node under a configuration. Raise `InvalidInput`."""
        amounts = self.settings(config).node.allocatable()
        amounts.pop(PID, None)
        found = without_huge_pages(amounts, machine.as_configured(self.hardware, config))
        return found | {name: Quantity.from_value(count) for name, count in self.devices.items()}

    def node(self, name: str, config: KubeletConfiguration) -> Node:
        """Return the Node that the kubelet would register, without the labels and taints that others add."""
        labels = machine.node_labels(name)
        status = NodeStatus(allocatable=self.allocatable(config))
        return Node(metadata=ObjectMeta(name=name, labels=labels), status=status)

    def next_node(self, config: KubeletConfiguration, live: KubeletConfiguration, node: Node) -> NextNode:
        """Return a live node as it would be under a second configuration. Raise `InvalidInput`."""
        config = copy(config)
        # The runtime determines the driver; a file that does not name it would seem to change it.
        config.cgroup_driver = live.cgroup_driver
        if config.container_runtime_endpoint == CONTAINERD:
            # A flag of the kubelet may name another socket. A file that names none does not change it.
            config.container_runtime_endpoint = live.container_runtime_endpoint
        status = msgspec.structs.replace(node.status, allocatable=self.allocatable(config))
        return NextNode(config, self.rules(config), msgspec.structs.replace(node, status=status))


def with_devices(node: Node, registered: Mapping[str, Sequence[str] | None]) -> Node:
    """Return a Node that also has the devices in `registered`, by resource.

    A kubelet that restarts admits pods with these devices before its Node object shows them again.
    """
    amounts = node.status.allocatable or {}
    counts = {name: Quantity.from_value(len(devices or ())) for name, devices in registered.items()}
    missing = {name: count for name, count in counts.items() if count > amounts.get(name, ZERO)}
    if not missing:
        return node
    status = msgspec.structs.replace(node.status, allocatable={**amounts, **missing})
    return msgspec.structs.replace(node, status=status)
