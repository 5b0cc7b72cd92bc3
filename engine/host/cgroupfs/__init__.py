"""Finds the cgroup hierarchies of the machine, tells where the directory of a group is, and reads groups."""
