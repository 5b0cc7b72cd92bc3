"""Whom would a critical pod preempt? Asked without a node, an agent or a cluster.

Run it: `python examples/preempt_without_a_node.py`
"""

from __future__ import annotations

from typing import Any

from engine import AdmittedPods, decide, preempt


def make_pod(name: str, *, priority: int | None = None, **requests: str) -> dict[str, Any]:
    container = {"name": "main", "image": "example", "resources": {"requests": requests}}
    spec = {"containers": [container]} | ({} if priority is None else {"priority": priority})
    return {"metadata": {"name": name, "uid": name}, "spec": spec}


running = [
    make_pod("web", priority=100, cpu="1500m", memory="1Gi"),
    make_pod("batch-1", priority=0, cpu="900m", memory="256Mi"),
    make_pod("batch-2", priority=0, cpu="900m", memory="256Mi"),
    make_pod("idle"),
]
node = {
    "metadata": {"name": "node-1"},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
}
dns = make_pod("dns", priority=2_000_000_000, cpu="1500m", memory="128Mi")

print("Does it fit, and at whose cost, under each policy?")
for policy in ("kubelet", "priority", "minimal"):
    verdict = decide(AdmittedPods(node, running), dns, policy=policy)
    assert verdict.preemption is not None
    print(f"  {policy:9}", ", ".join(verdict.preemption.victims))

print("The same by hand: free 800 milli-CPU among these pods.")
decision = preempt(running, dns, {"cpu": 800})
for step in decision.steps():
    print(f"  {step.uid} frees {dict(step.frees)} of {dict(step.short)}")
for other in decision.passed_over():
    print(f"  {other.uid} stays: {other.why}")
