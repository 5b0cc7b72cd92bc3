"""Provide kernels for device sets, checksums, device lists and NUMA hints, with their plain twins."""
