"""Provide kernels for the order of eviction and of image garbage collection, with their plain twins."""
