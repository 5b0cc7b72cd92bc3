"""Cgroups: what every level of the tree should have, and the drivers that make it so.

Deciding files are pure: `conversion` (kernel units), `names`, `values` (pods), `containers`, `levels`
(QoS classes), `allocatable` (the node), `settings` (the configuration, resolved), `files` (values as
v1 or v2 files), `resize`, `plan`, `bulk` (whole clusters, over columns), `checks` (faults). Acting files:
`mounts` (which hierarchies there are), `group` (one cgroup's directories and files), `tree` (making,
writing, removing), `systemd` (slices over D-Bus), `level_keeper` and `pod_keeper`, `inspection`, and the
façade `manager`, with `disabled` in its place where there are no cgroups: both are `node_cgroups`. May
import `api`, `tables`, `_fast`, `metrics`; touches cgroupfs, /proc and systemd's bus only.
"""

from engine.cgroups.containers import ContainerResources
from engine.cgroups.disabled import NoCgroups
from engine.cgroups.manager import CgroupManager
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cgroups.pod_keeper import PodGroup
from engine.cgroups.values import GroupValues

__all__ = ["CgroupManager", "ContainerResources", "GroupValues", "NoCgroups", "NodeCgroups", "PodGroup"]
