from engine._fast._cgroup_values_py import container_values, level_values, pod_values

__all__ = ["container_values", "level_values", "pod_values"]
