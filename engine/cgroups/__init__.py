"""Cgroups: what every level of the tree should have, and the drivers that make it so.

Deciding files are pure: `conversion` (kernel units), `names`, `values` (pods), `containers`, `levels`
(QoS classes), `allocatable` (the node), `settings` (the configuration, resolved), `files` (values as
v1 or v2 files), `resize`, `plan`, `bulk` (whole clusters, over columns), `checks` (faults). Acting files:
`mounts` (which hierarchies there are), `group` (one cgroup's directories and files), `tree` (making,
writing, removing), `systemd` (slices over D-Bus), `level_keeper` and `pod_keeper`, `inspection`, and the
façade `manager`, with `disabled` in its place where there are no cgroups: both are `node_cgroups`. May
import `api`, `tables`, `_fast`, `metrics`; touches cgroupfs, /proc and systemd's bus only. Importing this
package loads what decides.
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
