"""The runtime's numbers as columns, beside what the protobuf library reads of the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine._fast.reading.groups import ABSENT
from engine.node.stats.runtime_numbers import CPU, LAYER, MEMORY, PROCESSES, RuntimeStats, read
from engine.wire import cri_v1_pb2 as cri

LARGEST = 2**63 - 1
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
names = st.sampled_from(["", "a", "b", "ö"])
times = st.one_of(st.sampled_from([0, 1, LARGEST]), st.integers(0, LARGEST))
values = st.one_of(
    st.none(),
    st.builds(cri.UInt64Value),
    st.builds(cri.UInt64Value, value=st.sampled_from([1, LARGEST, 2**63, 2**64 - 1])),
)
cpus = st.none() | st.builds(cri.CpuUsage, timestamp=times, **dict.fromkeys(CPU, values))
memories = st.none() | st.builds(cri.MemoryUsage, timestamp=times, **dict.fromkeys(MEMORY, values))
layers = st.none() | st.builds(cri.FilesystemUsage, timestamp=times, used_bytes=values, inodes_used=values)
containers = st.builds(
    cri.ContainerStats,
    attributes=st.builds(cri.ContainerAttributes, metadata=st.builds(cri.ContainerMetadata, name=names)),
    cpu=cpus, memory=memories, writable_layer=layers,
)  # fmt: skip
linux = st.builds(
    cri.LinuxPodSandboxStats, cpu=cpus, memory=memories, containers=st.lists(containers, max_size=3),
    process=st.none() | st.builds(cri.ProcessUsage, timestamp=times, process_count=values),
)  # fmt: skip
metadata = st.builds(cri.PodSandboxMetadata, name=names, uid=names, namespace=names)
pods = st.builds(
    cri.PodSandboxStats,
    attributes=st.builds(cri.PodSandboxAttributes, id=names, metadata=metadata),
    linux=st.none() | linux,
)


def part(holder: Any, name: str, numbers: Sequence[str]) -> list[int]:
    if not holder.HasField(name):
        return [ABSENT] * (1 + len(numbers))
    message = getattr(holder, name)
    return [
        message.timestamp // 10**9,
        *(
            min(getattr(message, each).value, LARGEST) if message.HasField(each) else ABSENT
            for each in numbers
        ),
    ]


def processes(stats: cri.LinuxPodSandboxStats) -> int:
    return min(stats.process.process_count.value, LARGEST) if stats.HasField("process") else ABSENT


def assert_read(found: RuntimeStats, told: Sequence[cri.PodSandboxStats]) -> None:
    places = [(each.attributes.metadata.name, each.attributes.metadata.namespace) for each in told]
    assert [place[:2] for place in found.places] == places
    assert [place[2] for place in found.places] == [each.attributes.metadata.uid for each in told]
    inside = [each for pod in told for each in pod.linux.containers]
    assert [list(each) for each in found.names] == [
        [each.attributes.metadata.name for each in pod.linux.containers] for pod in told
    ]
    of_pods = [
        [*part(pod.linux, "cpu", CPU), *part(pod.linux, "memory", MEMORY), processes(pod.linux)]
        for pod in told
    ]
    of_containers = [
        [*part(one, "cpu", CPU), *part(one, "memory", MEMORY), *part(one, "writable_layer", LAYER[1:])]
        for one in inside
    ]
    assert [*map(list, zip(*(list(column) for column in found.pods.values()), strict=True))] == of_pods
    rows = [*map(list, zip(*(list(column) for column in found.containers.values()), strict=True))]
    assert rows == of_containers
    assert list(found.pods)[-1] == PROCESSES


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.lists(pods, max_size=3))
def test_numbers_are_those_of_the_protobuf_library(told: list[cri.PodSandboxStats]) -> None:
    assert_read(read(cri.ListPodSandboxStatsResponse(stats=told).SerializeToString()), told)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(st.lists(pods, min_size=2, max_size=2))
def test_split_pods_and_unknown_fields(parts: list[cri.PodSandboxStats]) -> None:
    """The parts of a split message are one, and fields of a newer runtime are ignored."""
    unknown = b"\xba\x3e\x03new\xc0\x3e\x05"
    item = b"".join(each.SerializeToString() + unknown for each in parts)
    message = cri.ListPodSandboxStatsResponse(stats=[cri.PodSandboxStats.FromString(item)])
    head = cri.ListPodSandboxStatsResponse(stats=[cri.PodSandboxStats()]).SerializeToString()[:1]
    size, length = len(item), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    assert_read(read(head + length + bytes([size]) + item + unknown), message.stats)


def test_bytes_of_no_such_answer() -> None:
    stats = cri.PodSandboxStats(linux=cri.LinuxPodSandboxStats(containers=[cri.ContainerStats()]))
    message = cri.ListPodSandboxStatsResponse(stats=[stats]).SerializeToString()
    with pytest.raises(ValueError, match="not a ListPodSandboxStatsResponse"):
        read(message[:-1])
