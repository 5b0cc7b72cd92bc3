"""Compute cgroup values of many pods at once: compiled, or the plain twin under `KUBENGINE_PURE=1`."""

from engine._fast._cgroup_values_py import (
    INIT,
    MAX_BYTES,
    MAX_MILLI,
    MAX_SHARES,
    NODE_CRITICAL,
    NONE,
    SIDECAR,
    UNLIMITED,
    Rules,
)  # fmt: skip
from engine._fast._select import PURE

if PURE:
    from engine._fast._cgroup_values_py import container_values, level_values, pod_values
else:
    from engine._fast._cgroup_values_c import container_values, level_values, pod_values

__all__ = [
    "INIT", "MAX_BYTES", "MAX_MILLI", "MAX_SHARES", "NODE_CRITICAL", "NONE", "SIDECAR", "UNLIMITED",
    "Rules", "container_values", "level_values", "pod_values",
]  # fmt: skip
