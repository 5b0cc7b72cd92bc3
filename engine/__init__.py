"""Kubengine: a node resource engine for Kubernetes.

This face is what programs may rely on; each name is loaded when it is first used.

Decisions, as functions of plain Kubernetes documents (dicts, or typed objects):
  `AdmittedPods`, `decide`, `preempt`              does a pod fit, which pods are preempted for it
  `rank`                                           which pods are evicted first when a resource is short
  `cgroup_tree`                                    every cgroup of a node with its files
  `pod_values`, `container_resources`              cgroup values of a pod and of its containers
  `thresholds_from_config`, `ImageGCPolicy`        eviction thresholds, when images are collected
  `containers_to_remove`, `sandboxes_to_remove`    container garbage collection
  `probe_specs`, `run_probe`                       the probes of a pod, and one run of a probe
Planner: `load_snapshot`, `synthesize`, `Cluster`, `ask`, `compare` (`pip install 'kubengine[plan]'`).
Agent: `Node`, with a `KubeletConfiguration`, a `KubengineConfiguration`, and `NodeOptions` for a cluster,
credentials and the machine.
Types: `Pod`, `NodeFacts`, `PodRules`, `ContainerRules`, `TopologyPolicy`, `PreemptParameters`. `convert`
makes a typed object from a dict, with the defaults of an API server, and `to_document` a dict from a typed
object. `LogOptions` selects a part of a container's log.
Results: `Verdict`, `Preemption`, `Failure`, `RankedPod`, `PlannedGroup`, `GroupValues`, `ContainerResources`,
`Threshold`, `ProbeSpec`, `ProbeOutcome`, `Answer`.
Errors: `KubengineError`, and below it `InvalidInput`, `Refused`, `NotEnoughToPreempt` and `Unavailable`.

Version numbers follow semantic versioning: `docs/reference/library.md` lists every name with its types and
stability, `docs/reference/versioning.md` says what a version number covers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.admission import Failure, NodeFacts, NotEnoughToPreempt, Preemption, Verdict
    from engine.api.config import KubeletConfiguration
    from engine.api.documents import convert
    from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
    from engine.api.kubengine_config import KubengineConfiguration
    from engine.api.pod import Pod
    from engine.cgroups import ContainerResources, ContainerRules, GroupValues, PodRules
    from engine.cgroups.plan import PlannedGroup
    from engine.containers import containers_to_remove, sandboxes_to_remove
    from engine.devices import TopologyPolicy
    from engine.eviction import Threshold
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
    from engine.library.documents import to_document
    from engine.library.groups import cgroup_tree
    from engine.library.probing import ProbeOutcome, run_probe
    from engine.library.questions import ask, compare
    from engine.library.ranking import RankedPod, rank
    from engine.node import Node
    from engine.node.logs.container_logs import LogOptions
    from engine.node.nodeinfo.options import NodeOptions
    from engine.plan import load_snapshot, synthesize
    from engine.plan.answers.answer import Answer
    from engine.plan.cluster import Cluster
    from engine.plan.questions.preempt import PreemptParameters
    from engine.probes import ProbeSpec

__all__ = [
    "AdmittedPods",
    "Answer",
    "Cluster",
    "ContainerResources",
    "ContainerRules",
    "Failure",
    "GroupValues",
    "ImageGCPolicy",
    "InvalidInput",
    "KubeletConfiguration",
    "KubengineConfiguration",
    "KubengineError",
    "LogOptions",
    "Node",
    "NodeFacts",
    "NodeOptions",
    "NotEnoughToPreempt",
    "PlannedGroup",
    "Pod",
    "PodRules",
    "PreemptParameters",
    "Preemption",
    "ProbeOutcome",
    "ProbeSpec",
    "RankedPod",
    "Refused",
    "Threshold",
    "TopologyPolicy",
    "Unavailable",
    "Verdict",
    "ask",
    "cgroup_tree",
    "compare",
    "container_resources",
    "containers_to_remove",
    "convert",
    "decide",
    "load_snapshot",
    "pod_values",
    "preempt",
    "probe_specs",
    "rank",
    "run_probe",
    "sandboxes_to_remove",
    "synthesize",
    "thresholds_from_config",
    "to_document",
]

_HOME = {
    "engine.admission": (
        "Failure",
        "NodeFacts",
        "NotEnoughToPreempt",
        "Preemption",
        "Verdict",
    ),
    "engine.api.config": ("KubeletConfiguration",),
    "engine.api.documents": ("convert",),
    "engine.api.errors": (
        "InvalidInput",
        "KubengineError",
        "Refused",
        "Unavailable",
    ),
    "engine.api.kubengine_config": ("KubengineConfiguration",),
    "engine.api.pod": ("Pod",),
    "engine.cgroups": (
        "ContainerResources",
        "ContainerRules",
        "GroupValues",
        "PodRules",
    ),
    "engine.cgroups.plan": ("PlannedGroup",),
    "engine.containers": (
        "containers_to_remove",
        "sandboxes_to_remove",
    ),
    "engine.devices": ("TopologyPolicy",),
    "engine.eviction": ("Threshold",),
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
    "engine.library.documents": ("to_document",),
    "engine.library.groups": ("cgroup_tree",),
    "engine.library.probing": (
        "ProbeOutcome",
        "run_probe",
    ),
    "engine.library.questions": (
        "ask",
        "compare",
    ),
    "engine.library.ranking": (
        "RankedPod",
        "rank",
    ),
    "engine.node": ("Node",),
    "engine.node.logs.container_logs": ("LogOptions",),
    "engine.node.nodeinfo.options": ("NodeOptions",),
    "engine.plan": (
        "load_snapshot",
        "synthesize",
    ),
    "engine.plan.answers.answer": ("Answer",),
    "engine.plan.cluster": ("Cluster",),
    "engine.plan.questions.preempt": ("PreemptParameters",),
    "engine.probes": ("ProbeSpec",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_PLANNER = ("pyarrow",)
"""What only the planner needs."""
_RENAMED: dict[str, str] = {}
"""Deprecated names that still work, with the public names that replace them."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from engine.library.deprecation import warn_renamed

        warn_renamed("engine", name, _RENAMED[name])
        return __getattr__(_RENAMED[name])
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
    """List the names of the face, without those that this file imports for itself."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
