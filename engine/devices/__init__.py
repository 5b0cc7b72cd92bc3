"""Manages devices: plugins, allocation, NUMA alignment, the checkpoint, and the pod-resources API.

Pure modules decide (`inventory`, `selection`, `state`, `checkpoint`, `run_options`); the others act:
`registration`, `claimed_server`, `methods`, `grpc_server` (imported on the first call), `found_plugins`,
`endpoint`, `checkpoint_file`, `pod_resources`, and `manager`, which combines them and admits pods through
one topology policy. The package may use gRPC sockets, the directories of device plugins and pod-resources,
`engine.api`, `engine._fast`, `engine.metrics`, `engine.host`, `engine.plugins`, `engine.topologymanager`,
`engine.transport` and `engine.wire`. Importing it loads pure modules only.
"""

from engine.devices.inventory import Inventory
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.topologymanager.policy import Hint, Numa, TopologyDecision, TopologyPolicy
from engine.topologymanager.search import DeviceCounts

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
