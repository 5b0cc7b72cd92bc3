"""The topology manager: hints of CPUs, memory and devices merged into NUMA nodes to take all of them from.

`policy` merges what providers ask for, `search` does so on machines with many nodes, `provider` says what
the CPU, memory and device managers have in common. Rules: kubelet v1.36 `pkg/kubelet/cm/topologymanager`.
May import `engine.api` and `engine._fast`.
"""

from engine.topologymanager.policy import Hint, Numa, TopologyDecision, TopologyPolicy
from engine.topologymanager.provider import AllocationError
from engine.topologymanager.search import DeviceCounts

__all__ = ["AllocationError", "DeviceCounts", "Hint", "Numa", "TopologyDecision", "TopologyPolicy"]
