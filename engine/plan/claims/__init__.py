"""Decide which devices of dynamic resource drivers a ResourceClaim would get: slices, classes, selectors,
partitions, shares and taints, as the scheduler of Kubernetes v1.36 allocates them.
"""
