"""Compare the answers of the pod-resources API with those that follow from the state files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from engine.api import cpu_set
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.devices.checkpoint import Checkpoint
from engine.devices.pod_resources import MemoryBlock, pod_resources
from engine.devices.state import DeviceState
from engine.dra.claims import container_claims
from engine.dra.table import ClaimTable
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.shadow.kinds.admission import is_refused
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.cpus import CpuRules
from engine.shadow.kinds.memory import block_texts
from engine.shadow.kinds.observation import Observation
from engine.wire.podresources_v1_pb2 import ContainerDevices, ContainerMemory, ContainerResources

SETTLE: Final = 30.0
"""Seconds. The state files are read before the answer, and pods start and end in between."""
NOTHING: Final = "nothing of its own"


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Return the allocations in the state files of the CPU and memory managers, as `PinnedResources`."""

    cpus: CpuCheckpoint
    memory: MemoryCheckpoint
    cpu_rules: CpuRules | None

    def exclusive_cpus(self, pod_uid: str, container: str) -> Sequence[int]:
        """Return the exclusive CPUs of a container, ascending."""
        return list(cpu_set.numbers(cpu_set.parse(self.cpus.entries.get(pod_uid, {}).get(container, ""))))

    def promised_memory(self, pod_uid: str, container: str) -> Sequence[MemoryBlock]:
        """Return the reserved memory of a container."""
        blocks = self.memory.entries.get(pod_uid, {}).get(container, ())
        return [MemoryBlock(block.type, block.size, block.nodes) for block in blocks]

    def allocatable_cpus(self) -> Sequence[int]:
        """Return all CPUs that can be exclusive, ascending; an empty list without the static policy."""
        rules = self.cpu_rules
        return list(cpu_set.numbers(rules.topology.cpus & ~rules.reserved)) if rules is not None else []

    def allocatable_memory(self) -> Sequence[MemoryBlock]:
        """Return the allocatable memory of each NUMA node."""
        return [
            MemoryBlock(kind, table.allocatable, (node,))
            for node, state in self.memory.machine_state.items()
            for kind, table in state.memory_map.items()
            if table.allocatable
        ]


def compare_resources(seen: Observation, cpu_rules: CpuRules | None) -> Iterator[Finding]:
    """Yield one comparison per pod (List), and one for the node (GetAllocatableResources)."""
    if seen.resources is None:
        yield NotJudged("pod-resources", "node", "the pod-resources API does not answer")
        return
    state, checkpoint = DeviceState(), seen.devices or Checkpoint()
    state.restore(checkpoint, seen.now)
    files = StateFiles(seen.cpus or CpuCheckpoint(), seen.memory or MemoryCheckpoint(), cpu_rules)
    claims = partial(container_claims, ClaimTable(seen.claims))
    listed = seen.resources.pods
    for pod in seen.active():
        theirs = listed.get(pod.full_name)
        # A kubelet does not list a pod whose containers have ended, even before it updates the status.
        if is_refused(pod) or (theirs is None and not seen.record(pod.uid).alive):
            continue
        yield Comparison(
            "pod-resources", pod.full_name, _of_pod(pod_resources(pod, state, files, claims).containers),
            "not listed" if theirs is None else _of_pod(theirs.containers), "state files of the managers",
            "List", SETTLE,
        )  # fmt: skip
    answer = seen.resources.allocatable
    registered = (checkpoint.registered_devices or {}).items()
    yield Comparison(
        "pod-resources", "node",
        _text(
            [(name, id) for name, ids in registered for id in ids or ()],
            files.allocatable_cpus(), files.allocatable_memory(),
        ) or NOTHING,
        _text(_device_ids(answer.devices), answer.cpu_ids, _blocks(answer.memory)) or NOTHING,
        "device checkpoint, memory state, and the CPUs of the machine that are not reserved",
        "GetAllocatableResources", SETTLE,
    )  # fmt: skip


def _of_pod(containers: Iterable[ContainerResources]) -> str:
    """Return the resources of the containers of a pod as text; containers without any are left out."""
    parts = []
    for one in containers:
        claimed = [
            f"{device.driver_name} {device.pool_name}/{device.device_name}"
            for claim in one.dynamic_resources
            for device in claim.claim_resources
        ]
        assigned = _text(_device_ids(one.devices), one.cpu_ids, _blocks(one.memory))
        text = "; ".join(part for part in (assigned, ", ".join(sorted(claimed))) if part)
        if text:
            parts.append(f"{one.name}: {text}")
    return " | ".join(parts) or NOTHING


def _text(devices: Iterable[tuple[str, str]], cpus: Iterable[int], memory: Iterable[MemoryBlock]) -> str:
    """Return CPUs, devices and memory as text, each sorted; `devices` are pairs of resource and id."""
    by_resource: dict[str, list[str]] = {}
    for resource, id in devices:
        by_resource.setdefault(resource, []).append(id)
    parts = [f"{resource} {', '.join(sorted(ids))}" for resource, ids in sorted(by_resource.items())]
    numbers = cpu_set.text(cpu_set.cpu_set(cpus))
    if numbers:
        parts.insert(0, f"CPUs {numbers}")
    return "; ".join([*parts, *block_texts(memory)])


def _device_ids(devices: Iterable[ContainerDevices]) -> list[tuple[str, str]]:
    """Return the resource and the id of each device."""
    return [(one.resource_name, id) for one in devices for id in one.device_ids]


def _blocks(memory: Iterable[ContainerMemory]) -> list[MemoryBlock]:
    return [
        MemoryBlock(one.memory_type, one.size, [node.ID for node in one.topology.nodes]) for one in memory
    ]
