"""Cgroups: what every level of the tree should have, and the drivers that make it so.

Deciding files are pure: `conversion` (kernel units), `names`, `values` (pods), `containers`, `levels`
(QoS classes), `allocatable` (the node), `resize`, `plan`. Acting files: `mounts` (which hierarchies
there are), `group` (one cgroup's directories and files), `tree` (making, writing, removing), and the
façade `manager`. May import `api`, `tables`, `_fast`, `metrics`; touches cgroupfs only.
"""
