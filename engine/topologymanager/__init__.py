"""The topology manager: merges hints for CPUs, memory and devices into a set of NUMA nodes.

`policy` merges the hints of providers, `search` does so on machines with many nodes, and `provider` is the
interface of the CPU, memory and device managers. Rules: kubelet v1.36 `pkg/kubelet/cm/topologymanager`. May
import `engine.api` and `engine._fast`.
"""

from engine.topologymanager.policy import Hint, Numa, TopologyDecision, TopologyPolicy
from engine.topologymanager.provider import AllocationError
from engine.topologymanager.search import DeviceCounts

__all__ = ["AllocationError", "DeviceCounts", "Hint", "Numa", "TopologyDecision", "TopologyPolicy"]
