"""Kubengine: a node resource engine for Kubernetes.

What embedders need is offered here, each name loaded when it is first asked for: the agent (`Node`), what
users write (`Pod`), decisions of the rooms (`decide`, `pod_values`, …), the planner (`Cluster`, `ask`).
Each room's managers can be embedded alone too: they get their configuration, pods, clock and peers as
arguments. `docs/architecture.md` lists the rooms and what each may import; nothing in them imports this face.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.admission import AdmittedPods, NodeFacts, decide, preempt
    from engine.api.pod import Pod
    from engine.cgroups import container_resources, pod_values
    from engine.containers import containers_to_remove, sandboxes_to_remove
    from engine.devices import TopologyPolicy
    from engine.eviction import thresholds_from_config
    from engine.images import ImageGCPolicy
    from engine.node.node import Node
    from engine.plan import load_snapshot, synthesize
    from engine.plan.cluster import Cluster, ask
    from engine.probes import probe_specs

__all__ = [
    "AdmittedPods",
    "Cluster",
    "ImageGCPolicy",
    "Node",
    "NodeFacts",
    "Pod",
    "TopologyPolicy",
    "ask",
    "container_resources",
    "containers_to_remove",
    "decide",
    "load_snapshot",
    "pod_values",
    "preempt",
    "probe_specs",
    "sandboxes_to_remove",
    "synthesize",
    "thresholds_from_config",
]

_HOME = {
    "engine.admission": ("AdmittedPods", "NodeFacts", "decide", "preempt"),
    "engine.api.pod": ("Pod",),
    "engine.cgroups": ("container_resources", "pod_values"),
    "engine.containers": ("containers_to_remove", "sandboxes_to_remove"),
    "engine.devices": ("TopologyPolicy",),
    "engine.eviction": ("thresholds_from_config",),
    "engine.images": ("ImageGCPolicy",),
    "engine.node.node": ("Node",),
    "engine.plan": ("load_snapshot", "synthesize"),
    "engine.plan.cluster": ("Cluster", "ask"),
    "engine.probes": ("probe_specs",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(module), name)
