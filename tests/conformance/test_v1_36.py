"""Decisions against the recorded answers of kubelet v1.36, with kernels and with their twins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from engine._fast import _cgroup_values_c, _cgroup_values_py, cgroup_values
from engine._fast.devices import _bitset_py, _device_list_py, _topology_py, device_list
from engine._fast.devices import topology as topology_kernels
from engine._fast.preemption import _preemption_c, _preemption_py, _requests_c, _requests_py
from engine._fast.ranking import _eviction_ranking_c, _eviction_ranking_py, _image_order_c, _image_order_py
from engine.admission import NodeAllocations, NotEnoughToPreempt, preempt
from engine.admission.verdict import decide
from engine.api.documents import as_written
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.resources import is_extended, is_hugepage
from engine.cgroups.formulas import bulk
from engine.cgroups.formulas.containers import ContainerRules
from engine.cgroups.formulas.levels import Contribution, LevelRules, LevelSums
from engine.cgroups.formulas.values import PodRules, pod_values
from engine.devices import inventory as inventory_module
from engine.devices.inventory import Inventory
from engine.devices.selection import DeviceSelection, SelectionError, select
from engine.devices.state import resource_hints
from engine.images import records as records_module
from engine.images import selection
from engine.images.collection import Collection, FilesystemReading
from engine.images.policy import ImageGCPolicy
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import ImageGCFailure, ImageGCReport
from engine.tables import NEVER, PodTable, eviction_order
from engine.topologymanager import policy as topology
from engine.topologymanager import search as topology_search
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.topologymanager.search import DeviceCounts
from engine.wire.deviceplugin_v1beta1_pb2 import ListAndWatchResponse, NUMANode

BOTH = pytest.mark.parametrize("twin", [False, True], ids=["kernel", "twin"])


def pods_of(documents: list[dict[str, Any]]) -> list[Pod]:
    return [as_written(document, Pod, "pod") for document in documents]


@pytest.fixture
def fillers(twin, monkeypatch):
    """Use the kernel or the twin to fill columns of pods and to choose victims."""
    monkeypatch.setattr("engine.tables.pods.Filler", (_requests_py if twin else _requests_c).Filler)
    monkeypatch.setattr("engine.tables.amounts.requests", (_requests_py if twin else _requests_c).requests)
    chooser = (_preemption_py if twin else _preemption_c).victims
    monkeypatch.setattr("engine._fast.preemption.preemption.victims", chooser)


@BOTH
@pytest.mark.usefixtures("fillers")
def test_preemption(answers):
    for case in answers("preempt"):
        given, wanted = case["in"], case["out"]
        pods, preemptor = pods_of(given["pods"]), as_written(given["preemptor"], Pod, "preemptor")
        needs = [(resource, amount) for resource, amount in given["needs"]]
        try:
            got = {"victims": list(preempt(pods, preemptor, needs).victims), "error": ""}
        except NotEnoughToPreempt as failure:
            got = {"victims": [], "error": failure.message}
        assert got == {"victims": wanted["victims"] or [], "error": wanted["error"]}, case


def in_any_order(message: str) -> str:
    """Return a message without the parts that follow the kubelet's map order.

    When several extended resources or huge pages are short, that order decides which is named first, and how
    a failed preemption lists them.
    """
    before, res, listed = message.partition("[(res: ")
    if res:
        return before + ", ".join(sorted(listed.rstrip(" ,]").split("), ")))
    name = message.partition("resource: ")[2].partition(",")[0]
    return "" if is_extended(name) or is_hugepage(name) else message


@BOTH
@pytest.mark.usefixtures("fillers")
def test_admission(answers):
    for case in answers("admission"):
        given, wanted = case["in"], case["out"]
        admitted = NodeAllocations(as_written(given["node"], Node, "node"), pods_of(given["pods"]))
        verdict = decide(admitted, as_written(given["pod"], Pod, "pod"))
        assert verdict.admit is wanted["admit"], case
        victims = verdict.preemption.victims if verdict.preemption is not None else ()
        assert list(victims) == (wanted["victims"] or []), case
        if not wanted["admit"]:
            failures = admitted.check(as_written(given["pod"], Pod, "pod"))
            short = [f.describe().get("resource", "") for f in failures]
            if sum(1 for name in short if name and (is_extended(name) or is_hugepage(name))) > 1:
                assert in_any_order(verdict.message) == in_any_order(wanted["message"]), case
            else:
                assert (verdict.reason, verdict.message) == (wanted["reason"], wanted["message"]), case


@BOTH
@pytest.mark.usefixtures("fillers")
def test_eviction_order(answers, twin, monkeypatch):
    kernel = _eviction_ranking_py if twin else _eviction_ranking_c
    monkeypatch.setattr("engine.tables.eviction.order_by_excess", kernel.order_by_excess)
    for case in answers("evict"):
        pods, usage = pods_of(case["in"]["pods"]), case["in"]["usage"]
        table = PodTable.from_pods(pods)
        rows = table.rows()
        known = np.array([amount is not None for amount in usage], np.uint8)
        amounts = np.array([amount or 0 for amount in usage], np.int64)
        order = eviction_order(table.columns, rows, "memory", amounts, known).tolist()
        columns = table.columns

        def rank(row: int, columns: Any = columns, usage: Any = usage) -> tuple[int, ...]:
            request, priority = int(columns.ranking[1, row]), int(columns.priority[row])
            if usage[row] is None:
                return (0, priority, 0)
            return (1 if usage[row] > request else 2, priority, request - usage[row])

        place = {table.uid(row): rank(row) for row in order}
        # Who is equal may stand in any order: the ranks must be those of the recorded order.
        assert [place[uid] for uid in case["out"]] == [rank(row) for row in order], case


def inventory_of(given: dict[str, Any]) -> Inventory:
    message = ListAndWatchResponse()
    for device in given["devices"]:
        listed = message.devices.add(ID=device["id"], health="Healthy" if device["healthy"] else "Unhealthy")
        if device["nodes"] is not None:
            listed.topology.SetInParent()
            listed.topology.nodes.extend([NUMANode(ID=node) for node in device["nodes"]])
    inventory = Inventory()
    inventory.update(message.SerializeToString())
    inventory.claim(given["allocated"])
    return inventory


@pytest.fixture
def device_kernels(twin, monkeypatch):
    if twin:
        monkeypatch.setattr(device_list, "DeviceIndex", _device_list_py.DeviceIndex)
        monkeypatch.setattr(inventory_module, "bitset", _bitset_py)
        monkeypatch.setattr(topology_search, "kernels", _topology_py)
        monkeypatch.setattr(topology, "kernels", _topology_py)


@BOTH
@pytest.mark.usefixtures("device_kernels")
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "searched"])
def test_hints(answers, twin, listed, monkeypatch):
    if not listed:
        monkeypatch.setattr(topology, "DENSE_NODES", 0)
    for case in answers("hints"):
        given, wanted = case["in"], case["out"]
        numa = Numa(tuple(range(given["numa"])))
        policy = TopologyPolicy(given["policy"], "container", numa)
        hints = {}
        for one in given["resources"]:
            reusable = one.get("reusable") or []
            found = resource_hints(inventory_of(one), numa, one["request"], held=[], reusable=reusable)
            hints[one["resource"]] = found
            flags = found.flags(len(numa.nodes)).tolist() if isinstance(found, DeviceCounts) else []
            got = {str(mask): flag == topology_kernels.PREFERRED for mask, flag in enumerate(flags) if flag}
            assert got == (wanted["hints"].get(one["resource"]) or {}), case
        if twin and len(hints) > 2 and listed:
            continue  # the twin's merge walks every combination
        decision = policy.decide([hints])
        merged = -1 if decision.hint.mask is None else decision.hint.mask
        assert (merged, decision.hint.preferred, decision.admit) == (
            wanted["mask"],
            wanted["preferred"],
            wanted["admit"],
        ), case


@BOTH
@pytest.mark.usefixtures("device_kernels")
def test_choice_of_devices(answers):
    for case in answers("devices"):
        given, wanted = case["in"], case["out"]
        inventory = inventory_of(given)
        states = {id: health for id, health, _, _ in inventory.rows()}
        assert sorted(id for id, health in states.items() if health == "Healthy") == wanted["healthy"], case
        assert sorted(id for id, health in states.items() if health == "Unhealthy") == wanted["unhealthy"]
        choosing = select(
            inventory,
            given["resource"],
            given["request"],
            reusable=given["reusable"] or (),
            affinity=given["affinity"],
        )
        if wanted["error"]:
            with pytest.raises(SelectionError) as refused:
                next(choosing)
            assert str(refused.value) == wanted["error"], case
            continue
        with pytest.raises(StopIteration) as done:
            next(choosing)
        chosen: DeviceSelection = done.value.value
        assert len(chosen.devices) == len(set(chosen.devices)) == given["request"], case
        kinds = [device_kind(given, id) for id in chosen.devices]
        assert sorted(kinds) == sorted(device_kind(given, id) for id in wanted["devices"]), case


def device_kind(given: dict[str, Any], id: str) -> str:
    """Return the class of a device; within it, the kubelet takes any device."""
    if id in (given["reusable"] or ()):
        return "reusable"
    device = next(device for device in given["devices"] if device["id"] == id)
    assert device["healthy"]
    assert id not in given["allocated"]
    if given["affinity"] is None or all(not d["nodes"] for d in given["devices"]):
        return "any"
    if not device["nodes"]:
        return "no affinity"
    return "aligned" if set(device["nodes"]) & set(given["affinity"]) else "unaligned"


def none_as(value: int) -> int | None:
    return {cgroup_values.NONE: None, cgroup_values.UNLIMITED: -1}.get(int(value), int(value))


@BOTH
@pytest.mark.usefixtures("fillers")
def test_cgroup_values(answers, twin, monkeypatch):
    monkeypatch.setattr(bulk, "kernel", _cgroup_values_py if twin else _cgroup_values_c)
    for case in answers("cgroups"):
        given, wanted = case["in"], case["out"]
        pods = pods_of(given["pods"])
        sums = LevelSums()
        for pod, values in zip(pods, wanted["pods"], strict=True):
            got = pod_values(pod, PodRules())
            assert {
                "shares": got.cpu_shares,
                "quota": got.cpu_quota,
                "period": got.cpu_period,
                "memory": got.memory,
                "huge": {str(size): limit for size, limit in got.huge_pages.items()},
            } == values, pod
            sums.put(pod.uid, Contribution.of(pod))
        rules = LevelRules(given["allocatable"], given["percent"])
        levels = sums.values(rules)
        for name, level in (("burstable", "Burstable"), ("besteffort", "BestEffort")):
            expected = wanted["levels"][name]
            assert (levels[level].cpu_shares, levels[level].memory) == (
                expected["shares"],
                expected["memory"],
            ), case
        memory = given["allocatable"]
        columns = bulk.BulkCgroups(PodRules(), ContainerRules(memory, memory), rules).values(
            PodTable.from_pods(pods).columns, len(pods), bulk.ContainerColumns.of(pods), [memory], [memory]
        )
        for row, values in enumerate(wanted["pods"]):
            shares, _, quota, limit, _ = columns.pods[:, row].tolist()
            assert (shares, none_as(quota), none_as(limit)) == tuple(
                values[name] for name in ("shares", "quota", "memory")
            ), case
        shares, _, burstable, best_effort, *_ = columns.levels[:, 0].tolist()
        assert (shares, none_as(burstable), none_as(best_effort)) == (
            wanted["levels"]["burstable"]["shares"],
            wanted["levels"]["burstable"]["memory"],
            wanted["levels"]["besteffort"]["memory"],
        ), case


class Runtime:
    """Report a file system and remove every image that it is asked to."""

    def __init__(self, capacity: int, available: int) -> None:
        self.reading = FilesystemReading(capacity, available)

    async def filesystem(self) -> FilesystemReading:
        return self.reading

    async def remove(self, images: Sequence[SeenImage], became: list[None]) -> None:
        became += [None] * len(images)

    def protected(self, _image: SeenImage) -> str:
        return ""


@BOTH
async def test_image_collection(answers, twin, monkeypatch):
    kernel = _image_order_py if twin else _image_order_c
    monkeypatch.setattr(selection, "order_and_cut", kernel.order_and_cut)
    monkeypatch.setattr(records_module, "mark", kernel.mark)
    monkeypatch.setattr(records_module, "match", kernel.match)
    for case in answers("images"):
        given, wanted = case["in"], case["out"]
        records = ImageRecords(by_handler=False)
        listed = [SeenImage(i["id"], i["size"], i["pinned"], "") for i in given["images"]]
        records.detect(listed, given["used"], given["now"])
        columns = records.table.columns
        for image in given["images"]:
            row = records.row(image["id"])
            columns.first_detected[row] = image["first"]
            if image["id"] not in given["used"]:
                columns.last_used[row] = image["last"] or NEVER
        policy = ImageGCPolicy(given["high"], given["low"], given["min_age"], given["max_age"])
        report = ImageGCReport(given["now"], "gc")
        runtime = Runtime(given["capacity"], given["available"])
        kind = ""
        try:
            await Collection(records, policy, runtime, report).garbage_collect(given["began"])
        except ImageGCFailure as failure:
            kind = failure.kind
        assert kind == wanted["error"], case
        assert report.removed == (wanted["removed"] or []), case
        assert (report.freed if report.wanted is not None else -1) == wanted["freed"], case
        assert sorted(records.keys()) == sorted(wanted["left"] or []), case


def test_data_is_whole(answers):
    """Check that each file has cases, so that no test above passes on an empty file."""
    for name in ("preempt", "admission", "evict", "hints", "devices", "cgroups", "images"):
        assert msgspec.json.encode(next(answers(name)))
