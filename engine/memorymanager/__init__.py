"""Chooses the NUMA nodes for the memory and huge pages of Guaranteed pods.

Pure files decide: `state` (free memory of each node), `reservation`, `static_policy`, `checkpoint`. Rules:
kubelet v1.36 `pkg/kubelet/cm/memorymanager`. May import `engine.api`, `engine._fast`, `engine.metrics`,
`engine.host` and `engine.topologymanager`.
"""
