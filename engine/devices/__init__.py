"""Devices: plugins, who gets which device, NUMA alignment, the checkpoint and the pod-resources API.

Pure files decide (`inventory`, `selection`, `state`, `checkpoint`, `run_options`); the others act:
`registration`, `claimed_server`, `methods`, `grpc_server` (loaded when somebody first calls),
`found_plugins`, `endpoint`, `checkpoint_file`, `pod_resources`, and `manager`, which puts them together and
admits pods through one topology policy. May touch gRPC sockets, the device plugin and pod-resources
directories, `engine.api`, `engine._fast`, `engine.metrics`, `engine.host`, `engine.plugins`,
`engine.topologymanager`, `engine.transport` and `engine.wire`.
Importing this package loads what decides.
"""

from engine.devices.inventory import Inventory
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.topologymanager.policy import Decision, Hint, Numa, TopologyPolicy
from engine.topologymanager.search import DeviceCounts

__all__ = [
    "Decision",
    "DeviceCounts",
    "DeviceSelection",
    "Hint",
    "Inventory",
    "Numa",
    "SelectionError",
    "TopologyPolicy",
    "select",
]
