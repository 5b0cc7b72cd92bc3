"""Assigns exclusive CPUs to containers; all other containers share the remaining CPUs.

Pure files decide: `topology`, `options`, `static_policy`, `state`, `checkpoint`. The kernel is
`engine._fast.pinning.cpu_assignment`. Rules: kubelet v1.36 `pkg/kubelet/cm/cpumanager`. May import
`engine.api`, `engine._fast`, `engine.metrics`, `engine.host` and `engine.topologymanager`.
"""
