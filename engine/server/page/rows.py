"""Computes the rows that the page shows for each part of the node. Pure.

An unchanged row is not sent again. Rows therefore contain Unix times rather than ages, which the page
computes itself, and amounts that always change are rounded to what is visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.api.cpu_set import numbers, parse
from engine.api.pod import Pod
from engine.api.qos import qos_class
from engine.api.status import ContainerStatus
from engine.api.struct import to_json
from engine.node.stats.used import NodeUsage

Rows = dict[str, Any]

MOST_DEVICES = 512
"""How many devices of a resource are listed; the page shows how many more there are."""
FIRST_TO_GO = 8
USERS = 4
_MIB = 1 << 20


def node_rows(node: Mapping[str, Any], checks: Sequence[tuple[str, str | None]]) -> Rows:
    """Return the node's identity, its conditions, and failing health checks."""
    status = node.get("status", {})
    info = status.get("nodeInfo", {})
    return {
        "who": {
            "name": node.get("metadata", {}).get("name", ""),
            "version": info.get("kubeletVersion", ""),
            "runtime": info.get("containerRuntimeVersion", ""),
            "kernel": info.get("kernelVersion", ""),
            "os": info.get("osImage", ""),
            "capacity": status.get("capacity", {}),
            "allocatable": status.get("allocatable", {}),
        },
        "conditions": [
            {"type": each["type"], "status": each["status"], "reason": each.get("reason", "")}
            for each in status.get("conditions", ())
        ],
        "failing": {name: error for name, error in checks if error},
    }


def pod_rows(pods: Iterable[Pod]) -> Rows:
    """Return each pod by its uid."""
    return {pod.uid: _pod(pod) for pod in pods}


def _pod(pod: Pod) -> dict[str, Any]:
    status = pod.status
    containers = [_container(each) for each in status.container_statuses or ()]
    init = [_container(each) for each in status.init_container_statuses or ()]
    sidecars = {container.name for container in pod.init_containers if container.is_sidecar}
    lasting = [*containers, *(each for each in init if each["name"] in sidecars)]
    return {
        "name": pod.full_name,
        "qos": status.qos_class or qos_class(pod),
        "priority": pod.spec.priority or 0,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "leaving": pod.metadata.deletion_timestamp is not None,
        "ip": status.pod_ip,
        "since": status.start_time,
        "ready": sum(each["ready"] for each in lasting),
        "of": len(pod.spec.containers) + len(sidecars),
        "restarts": sum(each["restarts"] for each in [*init, *containers]),
        "containers": [*init, *containers],
    }


def _container(status: ContainerStatus) -> dict[str, Any]:
    state = status.state
    ended = state.terminated if state is not None else None
    waiting = state.waiting if state is not None else None
    return {
        "name": status.name,
        "image": status.image,
        "ready": status.ready,
        "restarts": status.restart_count,
        "state": "running" if state is not None and state.running else "ended" if ended else "waiting",
        "why": ended.reason if ended else waiting.reason if waiting else "",
    }


def use_rows(usage: NodeUsage) -> Rows:
    """Return `[milli-CPU, MiB]` by pod uid, and of the whole node as "node"; None if not known yet."""
    groups = {"node": usage.root, **{pod.record.uid: pod.group for pod in usage.pods}}
    samples = {key: usage.sample(group) for key, group in groups.items()}
    return {
        key: [_per(sample.rate, 1e6, 0), _per(sample.working_set, _MIB, 1)] for key, sample in samples.items()
    }


def _per(amount: int | None, unit: float, digits: int) -> float | None:
    return None if amount is None else round(amount / unit, digits)


def cgroup_rows(state: Mapping[str, Any]) -> Rows:
    """Return each cgroup by its path with its actual and expected values, and the settings."""
    rows: Rows = {
        group["path"]: {
            "qos": group["qosClass"],
            "uid": group["uid"],
            "pod": group.get("pod", ""),
            "files": {
                name: [value["actual"], None if value["actual"] == value["wanted"] else value["wanted"]]
                for name, value in group["files"].items()
            },
        }
        for group in state.get("groups", ())
    }
    rows["settings"] = {name: state.get(name) for name in ("enabled", "version", "driver", "root")}
    return rows


def device_rows(state: Mapping[str, Any]) -> Rows:
    """Return each resource by name, with its devices, their NUMA nodes and their holders."""
    return {
        resource["name"]: {
            **{
                name: resource[name]
                for name in ("capacity", "allocatable", "allocated", "plugin", "complaint")
            },
            "more": max(len(resource["devices"]) - MOST_DEVICES, 0),
            "devices": [
                {
                    "id": device["id"],
                    "health": device["health"],
                    "numa": device["numa"],
                    "owners": [
                        f"{owner['pod'] or owner['podUID']}/{owner['container']}"
                        for owner in device["owners"]
                    ],
                }
                for device in resource["devices"][:MOST_DEVICES]
            ],
        }
        for resource in state["resources"]
    }


def cpu_rows(state: Mapping[str, Any]) -> Rows:
    """Return each NUMA node with its caches, their cores, and the use of each CPU; and the settings, with the
    offline CPUs, whose place the kernel does not tell.

    A CPU is `[number, use, container]`; the use is "held", "reserved" or "shared".
    """
    reserved = set(numbers(parse(state["reserved"])))
    owners = {
        cpu: f"{one['pod'] or one['podUID']}/{one['container']}"
        for one in state["containers"]
        for cpu in numbers(parse(one["cpus"]))
    }
    nodes: dict[int, dict[tuple[int, int], dict[int, list[list[Any]]]]] = {}
    for cpu in state["processors"]:
        number, owner = cpu["cpu"], owners.get(cpu["cpu"], "")
        use = "held" if owner else "reserved" if number in reserved else "shared"
        cores = nodes.setdefault(cpu["node"], {}).setdefault((cpu["socket"], cpu["cache"]), {})
        cores.setdefault(cpu["core"], []).append([number, use, owner])
    rows: Rows = {
        f"node {node}": {
            "node": node,
            "caches": [
                {"socket": socket, "cache": cache, "cores": [sorted(cpus) for cpus in cores.values()]}
                for (socket, cache), cores in sorted(caches.items())
            ],
        }
        for node, caches in sorted(nodes.items())
    }
    rows["settings"] = {name: state[name] for name in ("policy", "shared", "reserved", "offline")}
    rows["settings"]["away"] = list(numbers(parse(state["offline"])))
    return rows


def eviction_rows(state: Mapping[str, Any]) -> Rows:
    """Return each threshold, and which pods would be evicted first when a resource is short."""
    rows: Rows = {}
    for threshold in state["thresholds"]:
        signal, observed = threshold["signal"], state["signals"].get(threshold["signal"], {})
        step = 1 if _counted(signal) else _MIB
        rows[f"{signal} {threshold['gracePeriod']:g}"] = {
            "signal": signal,
            "value": threshold["value"],
            "grace": threshold["gracePeriod"],
            "counted": step == 1,
            **{name: _rounded(observed.get(name), step) for name in ("available", "capacity")},
            **{name: _rounded(threshold[name], step) for name in ("limit", "distance")},
        }
    for resource, candidates in state["first"].items():
        # Static and system-critical pods are never evicted, so they are only counted.
        going = [each for each in candidates if not each["critical"]]
        rows[f"first {resource}"] = {
            "resource": resource,
            "pods": [
                {name: each[name] for name in ("pod", "qos", "priority", "request")}
                | {"usage": _rounded(each["usage"], 1 if _counted(resource) else _MIB)}
                for each in going[:FIRST_TO_GO]
            ],
            "spared": len(candidates) - len(going),
        }
    return rows


def _counted(name: str) -> bool:
    """Tell whether the signal counts things rather than bytes."""
    return "inodes" in name or "pid" in name


def _rounded(amount: int | None, step: int) -> int | None:
    return None if amount is None else amount // step * step


def image_rows(state: Mapping[str, Any]) -> Rows:
    """Return each image by id with what protects it, and the thresholds of garbage collection."""
    rows: Rows = {
        f"{image['id']} {image['handler']}": {
            "names": image["names"],
            "size": image["size"],
            "seen": image["firstDetected"],
            "used": None if image["inUseBy"] else image["lastUsed"],
            "users": image["inUseBy"][:USERS],
            "more": max(len(image["inUseBy"]) - USERS, 0),
            "stays": image["protected"],
        }
        for image in state["images"]
    }
    names = ("highThresholdPercent", "lowThresholdPercent", "order")
    rows["settings"] = {name: state[name] for name in names}
    return rows


def probe_rows(state: Mapping[str, Any]) -> Rows:
    """Return each probe with its last result and how late it started."""
    return {
        f"{probe['pod_uid']} {probe['container']} {probe['type']}": {
            **{
                name: probe[name] for name in ("pod", "container", "type", "kind", "target", "result", "last")
            },
            **{name: probe[name] for name in ("streak", "threshold", "late", "output")},
            "period": probe["period_seconds"],
            "took": _milliseconds(probe["duration_seconds"]),
            "lateness": _milliseconds(probe["lateness_seconds"]),
        }
        for probe in state["probes"]
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def differences(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> Iterator[bytes]:
    """Return as pieces of a JSON object what changed from `before` to `now`; nothing if they are equal."""
    changed = [(key, row) for key, row in now.items() if before.get(key) != row]
    gone = [key for key in before if key not in now]
    if not changed and not gone:
        return
    yield b'{"rows":{'
    for place, (key, row) in enumerate(changed):
        yield b"%s%s:%s" % (b"," if place else b"", to_json(key), row)
    yield b'},"gone":%s}' % to_json(gone)
