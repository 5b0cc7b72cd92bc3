"""Provide kernels for predicates, pod requests and preemption victims, with their plain twins."""
