"""Eviction's pure parts: the tracker, layouts, limits, messages, admission."""

from __future__ import annotations

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.lifecycle import AdmissionRejected
from engine.api.pod import Container, EmptyDirVolume, ResourceRequirements, Volume
from engine.api.quantity import Quantity
from engine.api.scheduling import Toleration
from engine.eviction import admission, local_storage
from engine.eviction.layout import measured_parts, reclaims, with_container_filesystem
from engine.eviction.message import eviction_message
from engine.eviction.pressure import PressureTracker
from engine.eviction.signals import SignalObservation
from engine.eviction.thresholds import Threshold, parse_thresholds, thresholds_from_config
from engine.eviction.usage import ContainerUsage, Disk, PodUsage, rank
from engine.tables import PodTable
from tests.eviction.private_node import MIB, make_pod


def parsed(hard=None, soft=None, grace=None, reclaim=None):
    return parse_thresholds([], hard or {}, soft or {}, grace or {}, reclaim or {})


def observed(now, **available):
    return {
        signal.replace("__", "."): SignalObservation(amount, 1000 * MIB, now)
        for signal, amount in available.items()
    }


def signals_of(thresholds):
    return [threshold.signal for threshold in thresholds]


def test_memory_goes_before_disk_and_the_rest_as_configured():
    tracker = PressureTracker(
        parsed({"pid.available": "10", "nodefs.available": "10Mi", "memory.available": "10Mi"}), 300
    )
    seen = tracker.update(observed(1, pid__available=1, nodefs__available=1, memory__available=1), 1)
    assert signals_of(seen.act_on) == ["memory.available", "pid.available", "nodefs.available"]
    assert seen.conditions == ("MemoryPressure", "DiskPressure", "PIDPressure")


def test_the_threshold_itself_is_not_met():
    tracker = PressureTracker(parsed({"memory.available": "10Mi"}), 300)
    assert tracker.update(observed(1, memory__available=10 * MIB), 1).act_on == ()
    assert signals_of(tracker.update(observed(2, memory__available=10 * MIB - 1), 2).act_on) == [
        "memory.available"
    ]


def test_soft_waits_and_starts_again_after_a_recovery():
    tracker = PressureTracker(
        parsed(soft={"memory.available": "10Mi"}, grace={"memory.available": "30s"}), 300
    )
    low, high = 5 * MIB, 50 * MIB
    first = tracker.update(observed(0, memory__available=low), 0)
    assert (first.act_on, first.conditions) == ((), ("MemoryPressure",))
    assert first.waiting[0][1] == 30
    assert tracker.update(observed(29, memory__available=low), 29).act_on == ()
    assert tracker.update(observed(29.5, memory__available=high), 29.5).act_on == ()
    assert tracker.update(observed(30, memory__available=low), 30).act_on == ()
    assert tracker.update(observed(59, memory__available=low), 59).act_on == ()
    assert len(tracker.update(observed(60, memory__available=low), 60).act_on) == 1


def test_minimum_reclaim_holds_only_what_was_acted_on():
    tracker = PressureTracker(parsed({"memory.available": "10Mi"}, reclaim={"memory.available": "5Mi"}), 0)
    assert tracker.update(observed(1, memory__available=12 * MIB), 1).act_on == ()
    assert len(tracker.update(observed(2, memory__available=9 * MIB), 2).act_on) == 1
    assert len(tracker.update(observed(3, memory__available=12 * MIB), 3).act_on) == 1
    assert tracker.update(observed(4, memory__available=15 * MIB), 4).act_on == ()
    assert tracker.update(observed(5, memory__available=12 * MIB), 5).act_on == ()


def test_a_condition_stays_for_the_transition_period():
    tracker = PressureTracker(parsed({"memory.available": "10Mi"}), 300)
    assert tracker.update(observed(0, memory__available=1), 0).raised == ("MemoryPressure",)
    assert tracker.update(observed(299, memory__available=20 * MIB), 299).conditions == ("MemoryPressure",)
    assert tracker.update(observed(300, memory__available=20 * MIB), 300).cleared == ("MemoryPressure",)


def test_readings_that_are_not_newer_are_not_acted_on_twice():
    tracker = PressureTracker(parsed({"memory.available": "10Mi"}), 300)
    same = observed(1, memory__available=1)
    assert len(tracker.update(same, 1).act_on) == 1
    assert tracker.update(same, 2).act_on == ()


def test_a_signal_without_a_reading_keeps_nothing_alive():
    tracker = PressureTracker(parsed({"memory.available": "10Mi"}), 0)
    tracker.update(observed(1, memory__available=1), 1)
    assert tracker.update({}, 2).act_on == ()
    assert tracker.first_met == {}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available",
              "imagefs.inodesFree", "allocatableMemory.available"}),
        ({"eviction_hard": {"memory.available": "5%"}}, {"memory.available", "allocatableMemory.available"}),
        ({"eviction_hard": {"pid.available": "5%"}, "merge_default_eviction_settings": True},
         {"pid.available", "memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available",
          "imagefs.inodesFree", "allocatableMemory.available"}),
        ({"eviction_hard": {}}, set()),
        ({"enforce_node_allocatable": []}, {"memory.available", "nodefs.available", "nodefs.inodesFree",
                                            "imagefs.available", "imagefs.inodesFree"}),
    ],
    ids=["defaults", "partial", "merged", "empty", "allocatable-not-enforced"],
)  # fmt: skip
def test_the_thresholds_of_a_configuration(config, expected):
    assert set(signals_of(thresholds_from_config(KubeletConfiguration(**config)))) == expected


def test_a_bad_threshold_names_its_field():
    with pytest.raises(InvalidInput, match=r"^evictionHard: unsupported eviction signal memory.free$"):
        thresholds_from_config(KubeletConfiguration(eviction_hard={"memory.free": "1"}))


@pytest.mark.parametrize(
    ("layout", "signal", "steps", "parts"),
    [
        ("shared", "nodefs.available", ("containers", "images"), {"root", "logs", "volumes", "images"}),
        ("shared", "imagefs.inodesFree", ("containers", "images"), {"root", "logs", "volumes", "images"}),
        ("imagefs", "nodefs.available", (), {"logs", "volumes"}),
        ("imagefs", "imagefs.available", ("containers", "images"), {"root", "images"}),
        ("split", "nodefs.available", ("containers",), {"root", "logs", "volumes"}),
        ("split", "imagefs.available", ("images",), {"images"}),
        ("split", "containerfs.available", ("containers",), {"root", "logs", "volumes"}),
    ],
)
def test_layouts(layout, signal, steps, parts):
    assert reclaims(layout, signal) == steps
    assert set(measured_parts(layout, signal)) == parts
    assert reclaims(layout, "memory.available") == ()


def test_the_writable_layers_file_system_takes_its_thresholds_from_where_it_lies():
    configured = parsed(
        {"nodefs.available": "1Gi", "imagefs.available": "2Gi", "containerfs.available": "9Gi"}
    )

    def container_limit(layout):
        found = with_container_filesystem(configured, layout)
        return [str(t.value) for t in found if t.signal == "containerfs.available"]

    assert container_limit("shared") == ["1Gi"]
    assert container_limit("split") == ["1Gi"]
    assert container_limit("imagefs") == ["2Gi"]


def storage_pod(*, container_limit="", volume_limit="", medium=""):
    limits = {"ephemeral-storage": Quantity.parse(container_limit)} if container_limit else None
    size = Quantity.parse(volume_limit) if volume_limit else None
    return make_pod(
        "storage",
        containers=[Container(name="main", resources=ResourceRequirements(limits=limits))],
        volumes=[Volume(name="scratch", empty_dir=EmptyDirVolume(medium=medium, size_limit=size))],
    )


def measured(*, rootfs=0, logs=0, volume=0, hosts=0, medium=""):
    volumes = {"scratch": Disk(volume)}
    return PodUsage(
        containers={"main": ContainerUsage(None, Disk(rootfs), Disk(logs))},
        volumes={} if medium else volumes,
        in_memory=volumes if medium else {},
        hosts=Disk(hosts),
        disk_known=True,
    )


@pytest.mark.parametrize("medium", ["", "Memory"])
@pytest.mark.parametrize(("used", "over"), [(101_000_000, False), (99 * MIB, False), (100 * MIB + 1, True)])
def test_an_empty_dir_may_not_outgrow_its_limit(medium, used, over):
    found = local_storage.exceeded(
        storage_pod(volume_limit="100Mi", medium=medium),
        measured(volume=used, medium=medium),
        dedicated_imagefs=False,
    )
    assert (found is not None) is over
    if found is not None:
        assert found.signal == "emptydirfs.limit"
        assert found.message == 'Usage of EmptyDir volume "scratch" exceeds the limit "100Mi". '


def test_the_limit_of_a_pod_covers_layers_logs_hosts_and_volumes_on_disk():
    pod = storage_pod(container_limit="10Mi")
    usage = measured(rootfs=4 * MIB, logs=2 * MIB, volume=4 * MIB, hosts=1)
    found = local_storage.exceeded(pod, usage, dedicated_imagefs=False)
    assert found.signal == "ephemeralpodfs.limit"
    assert found.message == "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. "
    usage = measured(rootfs=6 * MIB, volume=9 * MIB, medium="Memory")
    assert local_storage.exceeded(pod, usage, dedicated_imagefs=False) is None


def test_a_containers_limit():
    pod = make_pod(
        "two",
        containers=[
            Container(
                name=name,
                resources=ResourceRequirements(limits={"ephemeral-storage": Quantity.parse("10Mi")}),
            )
            for name in ("main", "other")
        ],
    )
    usage = PodUsage(
        containers={"main": ContainerUsage(None, Disk(9 * MIB), Disk(2 * MIB)), "other": ContainerUsage()},
        disk_known=True,
    )
    found = local_storage.exceeded(pod, usage, dedicated_imagefs=False)
    assert found.signal == "ephemeralcontainerfs.limit"
    assert found.message == 'Container main exceeded its local ephemeral storage limit "10Mi". '
    assert local_storage.exceeded(pod, usage, dedicated_imagefs=True) is None


def test_an_init_container_s_own_limit_is_not_checked():
    limits = {"ephemeral-storage": Quantity.parse("1Mi")}
    sidecar = Container(
        name="sidecar", restart_policy="Always", resources=ResourceRequirements(limits=limits)
    )
    pod = storage_pod(container_limit="10Mi")
    pod.spec.init_containers = [sidecar]
    usage = PodUsage(containers={"sidecar": ContainerUsage(None, Disk(2 * MIB), Disk())}, disk_known=True)
    assert local_storage.exceeded(pod, usage, dedicated_imagefs=False) is None


def test_only_pods_with_limits_are_measured():
    assert local_storage.has_limits(storage_pod(volume_limit="1Mi"))
    assert local_storage.has_limits(storage_pod(container_limit="1Mi"))
    assert not local_storage.has_limits(storage_pod())


def test_the_message_names_containers_above_their_request():
    pod = make_pod("hungry", memory_request="10Mi")
    usage = PodUsage(containers={"main": ContainerUsage(memory=20 * MIB)})
    text, annotations = eviction_message(
        "memory", pod, usage, parsed({"memory.available": "100Mi"}), observed(1, memory__available=50 * MIB)
    )
    assert text == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 20Mi, request is 10Mi, has larger consumption of memory. "
    )
    assert annotations == {
        "offending_containers": "main",
        "offending_containers_usage": "20Mi",
        "starved_resource": "memory",
    }
    assert eviction_message("memory", pod, None, [], {}) == ("The node was low on resource: memory. ", {})


def test_the_message_names_a_pod_with_a_request_of_its_own_and_its_init_containers():
    pod = make_pod("whole", memory_request="10Mi")
    pod.spec.resources = ResourceRequirements(requests={"memory": Quantity.parse("64Mi")})
    pod.spec.init_containers = [Container(name="prepare")]
    usage = PodUsage(memory=32 * MIB, containers={"prepare": ContainerUsage(memory=20 * MIB)})
    text, annotations = eviction_message("memory", pod, usage, [], {})
    assert text == (
        "The node was low on resource: memory. "
        "Pod whole was using 32Mi, request is 64Mi, has larger consumption of memory. "
        "Container prepare was using 20Mi, request is 0, has larger consumption of memory. "
    )
    assert annotations == {
        "offending_pod": "whole",
        "offending_pod_usage": "32Mi",
        "offending_containers": "prepare",
        "offending_containers_usage": "20Mi",
        "starved_resource": "memory",
    }


def test_ranking_puts_pods_without_stats_first_for_memory():
    pods = [make_pod("a", memory_request="1Gi"), make_pod("b"), make_pod("c")]
    usage = {"uid-a": PodUsage(memory=MIB), "uid-b": PodUsage(memory=MIB)}
    assert [(pod.metadata.name, amount) for pod, amount in rank(PodTable(), pods, usage, "memory")] == [
        ("c", None), ("b", MIB), ("a", MIB),
    ]  # fmt: skip


@pytest.mark.parametrize("resource", ["memory", "ephemeral-storage", "pids"])
@pytest.mark.parametrize("rows", [[], [0, 2], [3, 1, 0, 2]], ids=["no rows", "some rows", "all rows"])
def test_a_pods_row_ranks_it_as_its_spec_does(resource, rows):
    """Half a byte above the request decides, also where only pods without a row have fractions."""
    pods = [
        make_pod("low", memory_request="1Mi", priority=1),
        make_pod("whole", memory_request="2"),
        make_pod("high", memory_request="1Mi", priority=2),
        make_pod("fraction", memory_request="1500m"),
    ]
    usage = {pod.uid: PodUsage(memory=2, processes=place, disk_known=True) for place, pod in enumerate(pods)}
    wanted = [pod for pod, _ in rank(PodTable.from_pods(pods), pods, usage, resource)]
    table = PodTable.from_pods([make_pod("another", priority=7), *(pods[row] for row in rows)])
    table.remove("uid-another")
    assert [pod for pod, _ in rank(table, pods, usage, resource)] == wanted
    if resource == "memory":
        assert [pod.metadata.name for pod in wanted] == ["fraction", "whole", "low", "high"]


@pytest.mark.parametrize(
    ("pod", "conditions", "taken"),
    [
        (make_pod("best-effort"), [], True),
        (make_pod("best-effort"), ["MemoryPressure"], False),
        (make_pod("burstable", memory_request="1Mi"), ["MemoryPressure"], True),
        (make_pod("burstable", memory_request="1Mi"), ["DiskPressure"], False),
        (make_pod("burstable", memory_request="1Mi"), ["MemoryPressure", "DiskPressure"], False),
        (make_pod("critical", priority=2_000_000_000), ["MemoryPressure", "DiskPressure"], True),
        (make_pod("tolerant", tolerations=[
            Toleration(key="node.kubernetes.io/memory-pressure", operator="Exists", effect="NoSchedule")
        ]), ["MemoryPressure"], True),
        (make_pod("tolerant", tolerations=[Toleration(operator="Exists")]), ["MemoryPressure"], True),
        (make_pod("tolerant", tolerations=[Toleration(operator="Exists")]), ["PIDPressure"], False),
        (make_pod("other", tolerations=[
            Toleration(key="node.kubernetes.io/disk-pressure", operator="Exists")
        ]), ["MemoryPressure"], False),
    ],
)  # fmt: skip
def test_admission(pod, conditions, taken):
    if taken:
        admission.check(pod, conditions)
        return
    with pytest.raises(AdmissionRejected) as refused:
        admission.check(pod, conditions)
    assert refused.value.reason == "Evicted"
    assert refused.value.message == f"The node had condition: [{' '.join(conditions)}]. "


def test_percentages_are_single_precision():
    (threshold,) = parsed({"nodefs.available": "10%"})
    assert isinstance(threshold, Threshold)
    assert threshold.limit(100 << 30) == 10737418400
