"""Computes the values of every level of the cgroup tree, and writes them.

Pure modules are in `formulas` (kernel units, names, values of pods, containers, QoS levels and node
allocatable, resolved settings, columns for whole clusters, checks) and here: `files` (values as v1 or v2
files), `resize` and `plan`. Acting modules: `mounts` (which hierarchies exist), `group` (directories and
files of one cgroup), `tree` (creates, writes, removes), `systemd` (slices over D-Bus), `qos_cgroups`,
`pod_cgroups`, `inspection`, and the façade `manager`, or `disabled` on a node without cgroups; both
implement `node_cgroups`. The package may import `api`, `tables`, `_fast` and `metrics`; it touches only
cgroupfs, /proc and systemd's bus. Importing it loads pure modules only.
"""

from engine.api.amounts.cpu_weight import WeightFormula
from engine.cgroups.formulas.allocatable import NodeAllocatable
from engine.cgroups.formulas.containers import ContainerResources, ContainerRules, container_resources
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import GroupValues, PodRules, pod_values

__all__ = [
    "CgroupSettings",
    "ContainerResources",
    "ContainerRules",
    "GroupValues",
    "NodeAllocatable",
    "PodRules",
    "WeightFormula",
    "container_resources",
    "pod_values",
]
