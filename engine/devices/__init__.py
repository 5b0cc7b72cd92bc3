"""Devices: plugins, who gets which device, NUMA alignment, the checkpoint and the pod-resources API.

Pure files decide (`inventory`, `selection`, `topology`, `topology_search`, `state`, `checkpoint`,
`run_options`); the others act: `registration`, `claimed_server`, `methods`, `grpc_server` (loaded when
somebody first calls), `found_plugins`, `endpoint`, `checkpoint_file`, `pod_resources`, and `manager`, which
puts them together. May touch gRPC sockets, the device plugin and pod-resources directories, `engine.api`,
`engine._fast`, `engine.metrics`, `engine.host`, `engine.plugins`, `engine.transport` and `engine.wire`.
Importing this package loads what decides.
"""

from engine.devices.inventory import Inventory
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.devices.topology import Hint, Numa, TopologyDecision, TopologyPolicy
from engine.devices.topology_search import DeviceCounts

__all__ = [
    "DeviceCounts",
    "DeviceSelection",
    "Hint",
    "Inventory",
    "Numa",
    "SelectionError",
    "TopologyDecision",
    "TopologyPolicy",
    "select",
]
