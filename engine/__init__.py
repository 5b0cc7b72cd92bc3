"""Kubengine: a node resource engine for Kubernetes.

This face is what programs may rely on; each name is loaded when it is first used.

Decisions, as functions of plain Kubernetes documents (dicts, or typed objects):
  `AdmittedPods`, `decide`, `preempt`              does a pod fit, which pods are preempted for it
  `pod_values`, `container_resources`              cgroup values of a pod and of its containers
  `thresholds_from_config`, `ImageGCPolicy`        eviction thresholds, when images are collected
  `containers_to_remove`, `sandboxes_to_remove`    container garbage collection
  `probe_specs`, `run_probe`                       the probes of a pod, and one run of a probe
Planner: `load_snapshot`, `synthesize`, `Cluster`, `ask` (`pip install 'kubengine[plan]'`).
Agent: `Node`, with a `KubeletConfiguration`, and `NodeOptions` for a cluster, credentials and the machine.
Types: `Pod`, `NodeFacts`, `PodRules`, `ContainerRules`, `TopologyPolicy`, `PreemptParameters`. `convert`
makes a typed object from a dict, with the defaults of an API server.

Version numbers follow semantic versioning: `docs/reference/versioning.md` says what that covers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.admission import NodeFacts
    from engine.api.config import KubeletConfiguration
    from engine.api.documents import convert
    from engine.api.pod import Pod
    from engine.cgroups import ContainerRules, PodRules
    from engine.containers import containers_to_remove, sandboxes_to_remove
    from engine.devices import TopologyPolicy
    from engine.images import ImageGCPolicy
    from engine.library.decisions import (
        AdmittedPods,
        container_resources,
        decide,
        pod_values,
        preempt,
        probe_specs,
        thresholds_from_config,
    )
    from engine.library.probing import run_probe
    from engine.library.questions import ask
    from engine.node import Node
    from engine.node.nodeinfo.options import NodeOptions
    from engine.plan import load_snapshot, synthesize
    from engine.plan.cluster import Cluster
    from engine.plan.questions.preempt import PreemptParameters

__all__ = [
    "AdmittedPods",
    "Cluster",
    "ContainerRules",
    "ImageGCPolicy",
    "KubeletConfiguration",
    "Node",
    "NodeFacts",
    "NodeOptions",
    "Pod",
    "PodRules",
    "PreemptParameters",
    "TopologyPolicy",
    "ask",
    "container_resources",
    "containers_to_remove",
    "convert",
    "decide",
    "load_snapshot",
    "pod_values",
    "preempt",
    "probe_specs",
    "run_probe",
    "sandboxes_to_remove",
    "synthesize",
    "thresholds_from_config",
]

_HOME = {
    "engine.admission": ("NodeFacts",),
    "engine.api.config": ("KubeletConfiguration",),
    "engine.api.documents": ("convert",),
    "engine.api.pod": ("Pod",),
    "engine.cgroups": ("ContainerRules", "PodRules"),
    "engine.containers": ("containers_to_remove", "sandboxes_to_remove"),
    "engine.devices": ("TopologyPolicy",),
    "engine.images": ("ImageGCPolicy",),
    "engine.library.decisions": (
        "AdmittedPods",
        "container_resources",
        "decide",
        "pod_values",
        "preempt",
        "probe_specs",
        "thresholds_from_config",
    ),
    "engine.library.probing": ("run_probe",),
    "engine.library.questions": ("ask",),
    "engine.node": ("Node",),
    "engine.node.nodeinfo.options": ("NodeOptions",),
    "engine.plan": ("load_snapshot", "synthesize"),
    "engine.plan.cluster": ("Cluster",),
    "engine.plan.questions.preempt": ("PreemptParameters",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_PLANNER = ("pyarrow",)
"""What only the planner needs."""


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in _PLANNER:
            raise
        raise ImportError(
            f"engine.{name} needs {error.name}: pip install 'kubengine[plan]'", name=error.name
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
