"""Cgroup conversions, names and values against the kubelet's recorded answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine._fast import _cgroup_values_c, _cgroup_values_py, cgroup_values
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.resources import scaled_list
from engine.api.struct import decode_hook
from engine.cgroups.formulas import bulk, conversion, names
from engine.cgroups.formulas.allocatable import HardThreshold, NodeAllocatable, reserved_values
from engine.cgroups.formulas.containers import ContainerRules, container_resources
from engine.cgroups.formulas.levels import Contribution, LevelRules, LevelSums, raised_to_usage
from engine.cgroups.formulas.values import GroupValues, PodRules, pod_values
from engine.tables.pods import PodTable

LEVEL_KEYS = {"guaranteed": "Guaranteed", "burstable": "Burstable", "besteffort": "BestEffort"}


def as_pod(document: dict[str, Any]) -> Pod:
    return msgspec.convert(document, Pod, dec_hook=decode_hook)


def quantities(amounts: dict[str, str] | None) -> dict[str, Quantity] | None:
    return None if amounts is None else {name: Quantity.parse(text) for name, text in amounts.items()}


def as_vector(values: GroupValues | None) -> dict[str, Any] | None:
    if values is None:
        return None
    answer: dict[str, Any] = {
        "cpu_shares": values.cpu_shares,
        "cpu_quota": values.cpu_quota,
        "cpu_period": values.cpu_period,
        "memory": values.memory,
        "hugepage_limits": {str(size): limit for size, limit in values.huge_pages.items()},
        "unified": dict(values.unified),
    }
    if values.pids is not None:
        answer["pids"] = values.pids
    return answer


UNUSED = ("cpu_weight_to_cpu_shares", "is_systemd_style_name")
"""Functions of the kubelet that nothing here needs."""


def call(fn: str, args: list[Any]) -> Any:
    match fn:
        case "milli_cpu_to_shares" | "shares_to_milli_cpu" | "quota_to_milli_cpu":
            return getattr(conversion, fn)(*args)
        case "milli_cpu_to_quota":
            return conversion.milli_cpu_to_quota(args[0], args[1], custom_period=args[2])
        case "cpu_shares_to_cpu_weight" | "cpu_shares_to_cpu_weight_clamped":
            return conversion.shares_to_weight(args[0] or 0)
        case "huge_page_limits":
            limits = conversion.huge_page_limits(quantities(args[0]) or {})
            return {str(size): limit for size, limit in limits.items()}
        case "new_cgroup_name":
            return list(names.cgroup_name(*args[0]))
        case "to_cgroupfs" | "to_systemd":
            return getattr(names, fn)(tuple(args[0]))
        case "systemd_unit":
            name, parent = names.systemd_unit(tuple(args[0]))
            return {"name": name, "parent": parent}
        case "parse_cgroupfs" | "parse_systemd":
            return list(getattr(names, fn)(args[0]))
        case "node_allocatable_root":
            return names.to_path(names.node_allocatable_root(args[0], args[1]), args[2])
        case "pod_cgroup_name":
            name = names.pod_name(tuple(args[0]), args[1], args[2])
            return {"components": list(name), "path": names.to_path(name, args[3])}
        case "is_pod_cgroup":
            uid = names.pod_uid(tuple(args[0]), args[1], args[2])
            return {"is_pod": uid is not None, "uid": uid or ""}
    raise NotImplementedError(fn)


def test_conversions_and_names(vectors):
    for case in vectors("cgroup_convert"):
        if case["fn"] in UNUSED:
            continue
        if isinstance(case["out"], dict) and case["out"].get("error"):
            with pytest.raises(InvalidInput):
                call(case["fn"], case["args"])
        else:
            assert call(case["fn"], case["args"]) == case["out"], case


def test_pod_values(vectors):
    for case in vectors("cgroup_pod"):
        rules = PodRules(
            enforce_cpu_limits=case["enforce_cpu_limits"],
            cpu_period_us=case["cpu_period_us"],
            custom_cpu_period=case["custom_cpu_cfs_quota_period"],
            memory_qos=case["enforce_memory_qos"],
        )
        assert as_vector(pod_values(as_pod(case["pod"]), rules)) == case["result"], case


def test_container_values(vectors):
    for case in vectors("cgroup_container"):
        pod = as_pod(case["pod"])
        container = next(c for c in pod.all_containers if c.name == case["container"])
        oom_kill = case["single_process_oom_kill"]
        rules = ContainerRules(
            memory_capacity=case["memory_capacity"],
            allocatable_memory=case["node_allocatable_memory"] or 0,
            enforce_cpu_limits=case["cpu_cfs_quota"],
            cpu_period_us=case["cpu_cfs_quota_period_us"],
            custom_cpu_period=case["custom_cpu_cfs_quota_period"],
            memory_qos=case["enforce_memory_qos"],
            throttling_factor=case["memory_throttling_factor"],
            page_size=case["page_size"],
            cgroup_v2=case["cgroup_v2"],
            swap_controller=case["swap_controller_available"],
            swap_capacity=case["swap_capacity"],
            swap_behavior=case["swap_behavior"],
            single_process_oom_kill=True if oom_kill is None else oom_kill,
            huge_page_sizes=(2 << 20, 1 << 30),
        )
        got = container_resources(pod, container, rules)
        assert {name: getattr(got, name) for name in case["result"]} == case["result"], case


def test_levels(vectors):
    for case in vectors("cgroup_qos"):
        sums = LevelSums()
        for number, document in enumerate(case["pods"]):
            sums.put(str(number), Contribution.of(as_pod(document)))
        rules = LevelRules(
            allocatable_memory=case["allocatable_memory"],
            reserved_percent=case["qos_reserved_memory_percent"],
            memory_qos=case["memory_qos"],
        )
        wanted = sums.values(rules)
        assert levels_as_vector(wanted) == case["result"], case
        if "retry_result" in case:
            usage = {LEVEL_KEYS[key]: amount for key, amount in case["memory_usage"].items()}
            assert levels_as_vector(raised_to_usage(wanted, usage)) == case["retry_result"], case
        for number in range(len(case["pods"])):
            sums.drop(str(number))
        assert (sums.burstable_milli, sums.burstable_memory, sums.guaranteed_memory) == (0, 0, 0)


def levels_as_vector(values: dict[str, GroupValues]) -> dict[str, dict[str, Any]]:
    return {
        key: {
            "cpu_shares": values[level].cpu_shares,
            "memory": values[level].memory,
            "memory_min": values[level].unified.get("memory.min"),
        }
        for key, level in LEVEL_KEYS.items()
    }


def test_node_allocatable(vectors):
    for case in vectors("node_allocatable"):
        thresholds = tuple(
            HardThreshold.parse(t["signal"], t.get("quantity") or t["percentage"], t["operator"])
            for t in case["hard_eviction"]
        )
        kube, system = quantities(case["kube_reserved"]), quantities(case["system_reserved"])
        node = NodeAllocatable(quantities(case["capacity"]) or {}, kube, system, thresholds)
        internal = NodeAllocatable(quantities(case["internal_capacity"]) or {}, kube, system, thresholds)
        reservation, absolute = node.reservation(), node.absolute()
        over = node.over_reserved()
        got = {
            "reservation": {name: str(amount) for name, amount in reservation.items()},
            "reservation_values": scaled_list(reservation),
            "allocatable_absolute": {name: str(amount) for name, amount in absolute.items()},
            "allocatable_absolute_values": scaled_list(absolute),
            "enforced_cgroup": as_vector(internal.kubepods_values(enforced=True)),
            "unenforced_cgroup": as_vector(internal.kubepods_values(enforced=False)),
            "kube_reserved_cgroup": as_vector(reserved_values(kube)),
            "kube_reserved_cgroup_compressible": as_vector(reserved_values(kube, compressible_only=True)),
            "system_reserved_cgroup": as_vector(reserved_values(system)),
            "system_reserved_cgroup_compressible": as_vector(reserved_values(system, compressible_only=True)),
            "valid": not over,
            "over_reserved": over,
        }
        assert got == case["result"], case


@pytest.fixture(params=[_cgroup_values_c, _cgroup_values_py], ids=["compiled", "twin"])
def kernel(request, monkeypatch):
    monkeypatch.setattr(bulk, "kernel", request.param)


def one_pod(document: dict[str, Any], pods: PodRules, containers: ContainerRules, levels: LevelRules) -> Any:
    pod = as_pod(document)
    values = bulk.BulkCgroups(pods, containers, levels).values(
        PodTable.from_pods([pod]).columns,
        1,
        bulk.ContainerColumns.of([pod]),
        [containers.memory_capacity],
        [containers.allocatable_memory],
    )
    return pod, values


def none_as(value: int) -> int | None:
    return {cgroup_values.NONE: None, cgroup_values.UNLIMITED: -1}.get(int(value), int(value))


def test_bulk_pod_values(vectors, kernel):
    for case in vectors("cgroup_pod"):
        rules = PodRules(
            enforce_cpu_limits=case["enforce_cpu_limits"],
            cpu_period_us=case["cpu_period_us"],
            custom_cpu_period=case["custom_cpu_cfs_quota_period"],
            memory_qos=case["enforce_memory_qos"],
        )
        _, got = one_pod(case["pod"], rules, ContainerRules(1), LevelRules())
        shares, _, quota, memory, protected = got.pods[:, 0].tolist()
        wanted = case["result"]
        assert shares == wanted["cpu_shares"], case
        assert none_as(quota) == wanted["cpu_quota"], case
        assert none_as(memory) == wanted["memory"], case
        assert protected == int(wanted["unified"].get("memory.min", 0)), case


def test_bulk_container_values(vectors, kernel):
    for case in vectors("cgroup_container"):
        containers = ContainerRules(
            memory_capacity=case["memory_capacity"],
            allocatable_memory=case["node_allocatable_memory"] or 0,
            enforce_cpu_limits=case["cpu_cfs_quota"],
            cpu_period_us=case["cpu_cfs_quota_period_us"],
            custom_cpu_period=case["custom_cpu_cfs_quota_period"],
            memory_qos=case["enforce_memory_qos"],
            throttling_factor=case["memory_throttling_factor"],
            page_size=case["page_size"],
        )
        rules = PodRules(enforce_cpu_limits=case["cpu_cfs_quota"])
        pod, got = one_pod(case["pod"], rules, containers, LevelRules())
        at = [container.name for container in pod.all_containers].index(case["container"])
        shares, _, quota, memory, score, protected, high = got.containers[:, at].tolist()
        wanted = case["result"]
        assert shares == wanted["cpu_shares"], case
        assert quota == wanted["cpu_quota"], case
        assert memory == wanted["memory_limit_in_bytes"], case
        assert score == wanted["oom_score_adj"], case
        assert protected == int(wanted["unified"].get("memory.min", 0)), case
        assert high == int(wanted["unified"].get("memory.high", 0)), case


def test_bulk_level_values(vectors, kernel):
    for case in vectors("cgroup_qos"):
        pods = [as_pod(document) for document in case["pods"]]
        memory = case["allocatable_memory"] or 0
        percent, memory_qos = case["qos_reserved_memory_percent"], case["memory_qos"]
        levels = LevelRules(case["allocatable_memory"], percent, memory_qos)
        rules = PodRules(memory_qos=memory_qos)
        got = bulk.BulkCgroups(rules, ContainerRules(memory, memory), levels).values(
            PodTable.from_pods(pods).columns, len(pods), bulk.ContainerColumns.of(pods), [memory], [memory]
        )
        shares, _, burstable, best_effort, root_min, burstable_min, _ = got.levels[:, 0].tolist()
        wanted = case["result"]
        reserved = percent is not None
        assert shares == wanted["burstable"]["cpu_shares"], case
        assert (burstable if reserved and memory else None) == wanted["burstable"]["memory"], case
        assert (best_effort if reserved and memory else None) == wanted["besteffort"]["memory"], case
        assert root_min == int(wanted["guaranteed"]["memory_min"] or 0), case
        assert burstable_min == int(wanted["burstable"]["memory_min"] or 0), case
