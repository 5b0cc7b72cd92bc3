"""Provide kernels for device sets, checksums, device lists and NUMA hints, with their plain twins."""

MAX_NODES = 20
"""The most NUMA nodes of which kernels list every set: 2^20 flags for each resource."""
