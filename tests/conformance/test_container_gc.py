"""Container GC against the kubelet's recorded runs."""

from __future__ import annotations

from typing import Any

from engine.containers.selection import (
    ContainerGCPolicy,
    DeadContainer,
    DeadSandbox,
    containers_to_remove,
    sandboxes_to_remove,
)


def run(case: dict[str, Any]) -> dict[str, Any]:
    policy = ContainerGCPolicy(
        *(case["policy"][k] for k in ("min_age_s", "max_per_pod_container", "max_containers"))
    )
    containers = [
        DeadContainer(c["id"], c["pod_uid"], c["name"], c["state"], c["created_s"], c["sandbox_id"])
        for c in case["containers"]
    ]
    asked = {
        "evict_non_deleted": case["evict_non_deleted_pods"],
        "content_removed": case["content_removed_pods"].__contains__,
        "runtime_removed": case["runtime_removed_pods"].__contains__,
    }
    plan = containers_to_remove(
        containers, policy, case["now_s"], sources_ready=case["all_sources_ready"], **asked
    )
    stopped, removed = [], []
    for removal in plan:
        id = removal.container.id
        if removal.stop:
            if id in case["fail_stop"]:
                continue
            stopped.append(id)
        if id not in case["fail_remove"]:
            removed.append(removal.container)
    left = [container for container in containers if container not in removed]
    sandboxes = sandboxes_to_remove(
        [DeadSandbox(s["id"], s["pod_uid"], s["state"], s["created_s"]) for s in case["sandboxes"]],
        left,
        **asked,
    )
    sandboxes = [s for s in sandboxes if s.id not in case["fail_stop"] + case["fail_remove"]]
    by_unit: dict[str, list[str]] = {}
    for container in removed:
        by_unit.setdefault(f"{container.pod_uid}/{container.name}", []).append(container.id)
    by_pod: dict[str, list[str]] = {}
    for sandbox in sandboxes:
        by_pod.setdefault(sandbox.pod_uid, []).append(sandbox.id)
    return {
        "removed": sorted(c.id for c in removed),
        "removed_in_order": [c.id for c in removed],
        "removed_by_unit": by_unit,
        "stopped": sorted(stopped),
        "removed_sandboxes": sorted(s.id for s in sandboxes),
        "removed_sandboxes_by_pod": by_pod,
    }


def test_container_gc(vectors):
    for number, case in enumerate(vectors("container_gc")):
        got = run(case)
        for field, want in case["result"].items():
            assert got[field] == want, (number, field, case)
