"""Tells which pods get CPUs and memory for their pod-level resources (PodLevelResourceManagers)."""

from __future__ import annotations

from engine.api.config import POD_LEVEL_MANAGERS_GATE, KubeletConfiguration
from engine.api.pod import Pod
from engine.api.resources import has_pod_level_resources


def manages_pod_level(config: KubeletConfiguration, pod: Pod) -> bool:
    """Tell whether the gate is on and the pod has pod-level resources."""
    return config.gate(POD_LEVEL_MANAGERS_GATE, False) and has_pod_level_resources(pod)


def manages_whole_pod(config: KubeletConfiguration, pod: Pod) -> bool:
    """Tell whether the pod's containers divide what the pod gets, which is so in the scope of the pod."""
    aligned = config.topology_manager_policy != "none" and config.topology_manager_scope == "pod"
    return aligned and manages_pod_level(config, pod)
