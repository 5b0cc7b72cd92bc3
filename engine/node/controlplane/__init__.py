"""Connects the node to its control plane, or replaces it on a node without one."""
