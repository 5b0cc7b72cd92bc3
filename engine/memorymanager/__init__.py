"""The memory manager: which NUMA nodes the memory and huge pages of Guaranteed pods come from.

Pure files decide: `state` (what each node has left), `reservation`, `static_policy`, `checkpoint`. Rules:
kubelet v1.36 `pkg/kubelet/cm/memorymanager`. May import `engine.api`, `engine._fast`, `engine.metrics`,
`engine.host` and `engine.topologymanager`.
"""
