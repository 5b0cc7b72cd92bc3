"""An evicted pod is judged by the part of the disk that ran short, and memory by what pods may use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.pod import Pod
from engine.eviction.usage import ContainerUsage, Disk
from engine.shadow.kinds.comparison import Comparison
from engine.shadow.kinds.eviction import EvictionComparer
from engine.shadow.kinds.observation import FileSystem, MeasuredNode, MeasuredPod
from tests.shadow.observations import node, observed, pod

WHOLE = FileSystem(capacity=1000, available=500, inodes=100, inodes_free=50)
IMAGES = FileSystem(capacity=600, available=20, inodes=70, inodes_free=50)
CONFIG = KubeletConfiguration(eviction_hard={"imagefs.available": "8%", "nodefs.available": "10%"})
MESSAGE = "The node was low on resource: ephemeral-storage. Container c was using {used}, request is 0. "
ENDED = {
    "name": "c",
    "image": "i",
    "imageID": "",
    "ready": False,
    "restartCount": 0,
    "state": {"terminated": {"exitCode": 137}},
}


def uses(*, layer: int = 0, volume: int = 0) -> MeasuredPod:
    return MeasuredPod(
        storage=layer + volume,
        containers={"c": ContainerUsage(rootfs=Disk(layer))},
        volumes={"v": Disk(volume), "other": Disk(10_000)},
    )


def evicted(name: str, measured: MeasuredNode, used: int = 5) -> Comparison:
    """Judge the eviction of one of two pods: `writes` fills its layer, `keeps` an emptyDir."""
    spec: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}]}
    pods: dict[str, Pod] = {one: pod(one, spec) for one in ("writes", "keeps")}
    comparer = EvictionComparer()
    list(comparer.compare(observed(pods.values(), use=measured, config=CONFIG)))
    message = MESSAGE.format(used=used)
    pods[name] = pod(name, spec, phase="Failed", reason="Evicted", message=message, containerStatuses=[ENDED])
    found = list(comparer.compare(observed(pods.values(), use=measured, config=CONFIG)))
    (judged,) = [one for one in found if isinstance(one, Comparison) and one.kind == "eviction"]
    return judged


def measured(imagefs: FileSystem, nodefs: FileSystem = WHOLE) -> MeasuredNode:
    pods = {"uid-writes": uses(layer=50), "uid-keeps": uses(volume=200)}
    return MeasuredNode(nodefs=nodefs, imagefs=imagefs, containerfs=imagefs, pods=pods)


@pytest.mark.parametrize(
    ("use", "first"),
    [
        (measured(IMAGES), "writes"),
        (measured(FileSystem(600, 300, 70, 50), FileSystem(1000, 20, 100, 50)), "keeps"),
        (measured(FileSystem(1000, 20, 100, 50), FileSystem(1000, 20, 100, 50)), "keeps"),
    ],
    ids=["images and layers run short", "the node's disk runs short", "one file system"],
)
def test_only_what_lies_on_the_full_file_system_counts(use: MeasuredNode, first: str) -> None:
    assert evicted(first, use).ours == f"default/{first}"
    other = "keeps" if first == "writes" else "writes"
    assert evicted(other, use).ours == f"default/{first}"


def test_either_file_system_may_explain_an_eviction_if_none_was_low_before() -> None:
    both = measured(FileSystem(600, 300, 70, 50))
    assert [evicted(name, both).ours for name in ("writes", "keeps")] == ["default/writes", "default/keeps"]


def test_the_message_of_an_evicted_pod_says_how_much_it_used_since() -> None:
    pods = {"uid-writes": uses(layer=10), "uid-keeps": uses(layer=40)}
    found = evicted("writes", MeasuredNode(nodefs=WHOLE, imagefs=IMAGES, containerfs=IMAGES, pods=pods), 50)
    # The message says 50; the other pod had used 40.
    assert found.agrees
    pods["uid-keeps"] = uses(layer=60)
    found = evicted("writes", MeasuredNode(nodefs=WHOLE, imagefs=IMAGES, containerfs=IMAGES, pods=pods), 50)
    assert (found.ours, found.kubelets) == ("default/keeps", "default/writes")


def test_any_of_equal_pods_may_go() -> None:
    equal = MeasuredNode(nodefs=WHOLE, imagefs=IMAGES, containerfs=IMAGES)
    pods = {f"uid-{name}": uses(layer=50) for name in ("writes", "keeps")}
    for name in ("writes", "keeps"):
        assert evicted(name, replace(equal, pods=pods)).ours == f"default/{name}"
    # One byte more puts a pod first.
    more = replace(equal, pods=pods | {"uid-keeps": uses(layer=51)})
    assert evicted("writes", more).ours == "default/keeps"


def test_memory_of_all_pods_raises_the_condition_while_the_node_has_enough() -> None:
    config = KubeletConfiguration(eviction_hard={"memory.available": "100"})
    use = MeasuredNode(memory_available=5000, memory_working_set=1, pods_available=50, pods_working_set=950)
    (found,) = EvictionComparer().compare(observed([], use=use, config=config, node_known=True, of=node()))
    assert isinstance(found, Comparison)
    assert found.ours == "MemoryPressure"
    assert "allocatableMemory.available 50 of 1000" in found.our_reason
    alone = KubeletConfiguration(eviction_hard={"memory.available": "100"}, enforce_node_allocatable=[])
    (found,) = EvictionComparer().compare(observed([], use=use, config=alone, node_known=True, of=node()))
    assert isinstance(found, Comparison)
    assert found.ours == "none"
