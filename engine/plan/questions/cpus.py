"""Compute which nodes still take pods with exclusive CPUs, and what the fragmentation of NUMA nodes costs.

The kubelet's own decisions answer: the static policies of CPUs and memory and the devices give hints, the
topology manager's policy merges them, and pods are allocated one after another on a copy of the node's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.admission.asked_pod import PodParameters
from engine.api import cpu_set as cpu_sets
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.api.pod import Container, Pod
from engine.api.quantity import ZERO, Quantity
from engine.api.resources import CPU, is_extended
from engine.api.struct import decode_hook
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.state import CpuState
from engine.cpumanager.static_policy import StaticCpuPolicy, pod_exclusive_count, reserved_cpus
from engine.memorymanager.state import MemoryState, NodeState
from engine.memorymanager.static_policy import StaticMemoryPolicy, pod_wanted_memory
from engine.plan.answers.answer import Answer, Rows
from engine.plan.placement.fit import fit, node_use
from engine.plan.questions.devices import device_groups, left_after_request, numa_ids, numa_text
from engine.plan.reading.requested_pods import check_resources, requested_pods
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.node_cpus import PINNING, PROCESSORS, NodeCpus, node_cpus
from engine.plan.snapshot.objects import configuration_object
from engine.topologymanager.policy import Hint, Hints, Numa, TopologyPolicy
from engine.topologymanager.provider import AllocationError
from engine.topologymanager.search import DeviceCounts

MOST_PODS = 1000


class CpusParameters(PodParameters, kw_only=True, forbid_unknown_fields=True):
    """Parameters of cpus: the pod, of which limits default to the requests, and the settings of the node."""

    pods: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_PODS)], Meta(description="how many of the pod each node is to take")
    ] = 1
    policy: Annotated[
        Literal["", "none", "best-effort", "restricted", "single-numa-node"],
        Meta(description="topology policy; without it, the one in each node's configuration"),
    ] = ""
    scope: Annotated[
        Literal["", "container", "pod"],
        Meta(description="topology scope; without it, the one in each node's configuration"),
    ] = ""
    cpu_options: Annotated[
        dict[str, str],
        Meta(description="options of the static CPU policy; without any, those in each node's configuration"),
    ] = msgspec.field(default_factory=dict)
    reserved_cpus: Annotated[
        str, Meta(description="CPUs that stay shared, such as 0-1; without it, those that each node reserves")
    ] = ""


def cpus(snapshot: Snapshot, parameters: CpusParameters) -> Answer:
    """Return per node `free` (amount: CPUs that can become exclusive), or `unknown` without its CPU topology.

    For each pod follows `takes` (amount: copies that fit), `misaligned` (amount: copies that would fit as
    well if the free CPUs, memory and devices were on the right NUMA nodes), and `lacks` (amount: copies for
    which the node has too few resources, of those asked for).
    """
    rows = Rows(snapshot.node_names)
    pods = _guaranteed_pods(snapshot, parameters)
    processors, pinning = snapshot.texts(PROCESSORS), snapshot.texts(PINNING)
    configurations = snapshot.nodes["config"].to_pylist()
    machines: list[_Machine | None] = []
    for node in range(snapshot.node_count):
        machine = None
        try:
            machine = _machine(parameters, processors[node], pinning[node], configurations[node])
        except (_UnknownMachine, InvalidInput) as error:
            rows.add(node, "unknown", "", str(error), 0, "pods")
        machines.append(machine)
        if machine is not None:
            free = machine.free_cpus
            per_node = machine.cpus.topology.per_node(free, machine.policy.numa)
            rows.add(node, "free", "", _counts_text(per_node, machine.policy.numa), free.bit_count(), "CPUs")
    for pod in pods:
        _add_pod(rows, snapshot, machines, pod, parameters.pods)
    _add_notes(rows, machines, configurations, pods)
    return rows.answer(sort=True)


def check_cpus(snapshot: Snapshot, parameters: CpusParameters) -> list[str]:
    """Raise `InvalidInput` for pods that get no exclusive CPUs, options that do not exist, and invalid
    CPUs.
    """
    for pod in _guaranteed_pods(snapshot, parameters):
        if not pod_exclusive_count(pod):
            raise InvalidInput(
                f"{pod.metadata.name} gets no exclusive CPUs: its class must be Guaranteed, and a container "
                "must request whole CPUs",
                subject="requests" if parameters.requests else "file",
            )
    try:
        _options(parameters, "")
    except InvalidInput as error:
        raise InvalidInput(error.message, subject="cpu_options") from None
    cpu_sets.parse(parameters.reserved_cpus, "reserved_cpus")
    return check_resources(snapshot, parameters)


class _UnknownMachine(Exception):
    """Report that a snapshot does not hold the CPUs of a node; the text says what to add to it."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """Hold the CPUs, memory and policies of one node. `reserved` is a CPU set that stays shared."""

    cpus: NodeCpus
    options: StaticOptions
    reserved: int
    policy: TopologyPolicy

    @property
    def free_cpus(self) -> int:
        """Return the CPU set that can become exclusive now."""
        return self.cpus.topology.cpus & ~self.reserved & ~(self.cpus.exclusive or 0)

    def without_containers(self) -> _Machine:
        """Return the same machine without exclusive CPUs and reserved memory of containers."""
        memory = self.cpus.memory
        if memory is not None:
            memory = {node: _without_reservations(node, state) for node, state in memory.items()}
        return replace(self, cpus=replace(self.cpus, exclusive=0, memory=memory))


def _guaranteed_pods(snapshot: Snapshot, parameters: CpusParameters) -> Sequence[Pod]:
    """Return the pods of the parameters. Limits default to the requests, which makes the pod Guaranteed."""
    if parameters.requests and not parameters.limits:
        parameters = msgspec.structs.replace(parameters, limits=parameters.requests)
    return requested_pods(snapshot, parameters)


def _machine(parameters: CpusParameters, processors: str, pinning: str, configuration: str) -> _Machine:
    """Return the machine of a node under the parameters, which override its configuration.

    Raise `_UnknownMachine` without its CPUs, and `InvalidInput` for policies that it cannot have.
    """
    found = node_cpus(processors, pinning)
    if found is None:
        raise _UnknownMachine(
            "its CPUs are not known; add the output of kubengine cpus --json, or of lscpu --json --extended"
        )
    if found.exclusive is None:
        raise _UnknownMachine("its exclusive CPUs are not known; add its cpu_manager_state")
    config = _configuration(configuration)
    options = _options(parameters, configuration)
    numa = Numa(tuple(sorted({*found.topology.nodes, *(found.memory or ())})))
    policy = TopologyPolicy.from_config(
        parameters.policy or config.topology_manager_policy,
        parameters.scope or config.topology_manager_scope,
        # A kubelet refuses more than 8 NUMA nodes by default. A plan answers for such machines too.
        config.topology_manager_policy_options or {"max-allowable-numa-nodes": "64"},
        numa,
    )
    options.check(found.topology, policy.name)
    reserved = found.reserved
    if parameters.reserved_cpus:
        reserved = cpu_sets.parse(parameters.reserved_cpus, "reserved_cpus") & found.topology.cpus
    elif reserved is None:
        amount = _reserved_amount(config)
        if amount.nano:
            named = cpu_sets.parse(config.reserved_system_cpus, "reservedSystemCPUs")
            reserved = reserved_cpus(found.topology, options, amount, named)
    return _Machine(found, options, reserved or 0, policy)


@lru_cache(maxsize=64)
def _configuration(text: str) -> KubeletConfiguration:
    return configuration_object(text)


def _options(parameters: CpusParameters, configuration: str) -> StaticOptions:
    """Return the options of the static CPU policy. Raise `InvalidInput` for those that do not exist."""
    if parameters.cpu_options:
        return StaticOptions.parse(parameters.cpu_options, alpha=True, beta=True)
    return StaticOptions.from_config(_configuration(configuration))


def _reserved_amount(config: KubeletConfiguration) -> Quantity:
    """Return the CPU that a configuration reserves. A list of reserved CPUs takes precedence, as in the
    kubelet.
    """
    if config.reserved_system_cpus:
        return Quantity.parse(
            str(cpu_sets.parse(config.reserved_system_cpus, "reservedSystemCPUs").bit_count())
        )
    total = ZERO
    for part in (config.system_reserved, config.kube_reserved):
        total += decode_hook(Quantity, (part or {}).get(CPU, "0"))
    return total


def _add_pod(
    rows: Rows, snapshot: Snapshot, machines: Sequence[_Machine | None], pod: Pod, wanted: int
) -> None:
    """Add the rows of one pod, of which each node is to take `wanted` copies."""
    checked = fit(node_use(snapshot), pod)
    by_amount, first = checked.copies()
    devices = {
        name: device_groups(snapshot, name)
        for name in {name for one in pod.all_containers for name in one.requests if is_extended(name)}
    }
    name = pod.metadata.name
    copies = _copies(pod, wanted)
    for node, machine in enumerate(machines):
        if machine is None:
            continue
        failures = checked.other.get(node)
        amount = 0 if failures else int(by_amount[node])
        reason = failures[0].reason if failures else f"OutOf{checked.resources[first[node]]}"
        on_node = {kind: groups[node] for kind, groups in devices.items() if node in groups}
        possible, shortage = _possible(machine, pod, on_node)
        if possible < amount:
            amount, reason = possible, shortage
        # To allocate copies one by one takes longest: sums over the machine limit how many are tried.
        bound = min(amount, wanted)
        fits, where, refusal = _Trial(machine, on_node).allocate(copies[:bound])
        most = fits
        if fits < bound:
            # Copies that fit on the same machine without containers fail here by fragmentation alone.
            free = {
                kind: {mask: (n, n) for mask, (n, _) in groups.items()} for kind, groups in on_node.items()
            }
            most, _, refusal_when_empty = _Trial(machine.without_containers(), free).allocate(copies[:bound])
            if most < bound:
                reason = f"the machine without containers takes {most}: {refusal_when_empty}"
        if fits:
            rows.add(node, "takes", name, where, fits, "pods")
        if fits < most:
            rows.add(node, "misaligned", name, refusal, most - fits, "pods")
        if max(fits, most) < wanted:
            rows.add(node, "lacks", name, reason, wanted - max(fits, most), "pods")


def _possible(
    machine: _Machine, pod: Pod, devices: Mapping[str, Mapping[int, tuple[int, int]]]
) -> tuple[int, str]:
    """Return how many copies of a pod fit by sums over the machine, and the reason against one more.

    `devices` maps a resource and a NUMA mask to the devices and to the free ones.
    """
    found = [
        (machine.free_cpus.bit_count() // pod_exclusive_count(pod), "too few free CPUs can be exclusive")
    ]
    memory = machine.cpus.memory
    for kind, size in pod_wanted_memory(pod).items() if memory else ():
        assert memory is not None
        free = sum(node.free(kind) for node in memory.values())
        found.append((free // size if size else MOST_PODS, f"too little {kind} of the NUMA nodes is free"))
    for kind, groups in devices.items():
        count = sum(
            container.requests[kind].value for container in pod.spec.containers if kind in container.requests
        )
        if count:
            free = sum(free for _, free in groups.values())
            found.append((free // count, f"too few {kind} are free"))
    return min(found, key=lambda each: each[0])


def _copies(pod: Pod, count: int) -> list[Pod]:
    """Return `count` copies of a pod with different uids."""
    metadata = pod.metadata
    return [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(metadata, uid=f"{metadata.uid}-{i}"))
        for i in range(count)
    ]


class _Trial:
    """Allocate pods on a copy of a node's state, to see how many fit."""

    def __init__(self, machine: _Machine, devices: Mapping[str, Mapping[int, tuple[int, int]]]) -> None:
        known, numa = machine.cpus, machine.policy.numa
        # Each policy gets a copy of the state: a trial must not change the machine.
        self._policy = machine.policy
        # Without strict-cpu-reservation the shared CPUs of the state include the reserved ones.
        state = CpuState(
            known.topology.cpus & ~(machine.reserved if machine.options.strict_reservation else 0)
        )
        if known.exclusive:
            # A new pod gets none of these, so it does not matter which container has which.
            state.assign("others", "all", known.exclusive)
        self._cpus = StaticCpuPolicy(known.topology, machine.reserved, machine.options, numa, state)
        self._memory: StaticMemoryPolicy | None = None
        if known.memory:
            nodes = {node: _copied(known.memory.get(node) or NodeState(cells=(node,))) for node in numa.nodes}
            self._memory = StaticMemoryPolicy(numa, MemoryState(nodes))
        self._devices = {
            kind: DeviceCounts(
                tuple(numa.mask(numa_ids(mask)) for mask in sorted(groups)),
                tuple(groups[mask][0] for mask in sorted(groups)),
                tuple(groups[mask][1] for mask in sorted(groups)),
                (0,) * len(groups),
                0,
            )
            for kind, groups in devices.items()
        }

    def allocate(self, pods: Sequence[Pod]) -> tuple[int, str, str]:
        """Allocate pods until one is refused; return how many fit, the NUMA nodes of the first, and the
        refusal, "" if all fit.
        """
        first = ""
        for count, pod in enumerate(pods):
            try:
                mask = self._allocate(pod)
            except AllocationError as error:
                return count, first, str(error)
            if not count:
                numa = self._policy.numa
                exclusive = sum(self._cpus.state.of_pod(pod.uid).values())
                nodes = [i for i, n in enumerate(self._cpus.topology.per_node(exclusive, numa)) if n]
                first = f"first on {_named(numa, sum(1 << i for i in nodes) or mask or 0)}"
        return len(pods), first, ""

    def _allocate(self, pod: Pod) -> int | None:
        """Allocate one pod; return the NUMA mask of its first hint, None without a preference. Raise
        `AllocationError`.
        """
        mask = None
        if self._policy.scope == "pod":
            hint = self._merge(
                [
                    self._cpus.pod_hints(pod),
                    self._memory.pod_hints(pod) if self._memory is not None else None,
                    self._device_hints(_devices_of_pod(pod)),
                ]
            )
            for container in pod.all_containers:
                self._assign(pod, container, hint)
            return hint.mask
        for container in pod.all_containers:
            hint = self._merge(
                [
                    self._cpus.container_hints(pod, container),
                    self._memory.container_hints(pod, container) if self._memory is not None else None,
                    self._device_hints(_devices(container)),
                ]
            )
            # As in the kubelet, a container is assigned before the hints of the next one are computed.
            self._assign(pod, container, hint)
            mask = hint.mask if mask is None else mask
        return mask

    def _merge(self, hints: Sequence[Mapping[str, Hints] | None]) -> Hint:
        """Return the hint that the policy chooses. Raise `AllocationError` if it admits none."""
        decision = self._policy.decide(hints)
        if not decision.admit:
            per_node = self._cpus.topology.per_node(self._cpus.available, self._policy.numa)
            raise AllocationError(
                f"{self._policy.name} refuses ({_counts_text(per_node, self._policy.numa)})"
            )
        return decision.hint

    def _assign(self, pod: Pod, container: Container, hint: Hint) -> None:
        """Assign CPUs, memory and devices to a container. Raise `AllocationError`."""
        self._cpus.allocate(pod, container, hint)
        if self._memory is not None:
            self._memory.allocate(pod, container, hint)
        for kind, count in _devices(container).items():
            if kind in self._devices:
                counts = msgspec.structs.replace(self._devices[kind], request=count)
                self._devices[kind] = msgspec.structs.replace(
                    counts, available=left_after_request(counts, hint.mask)
                )

    def _device_hints(self, wanted: Mapping[str, int]) -> dict[str, Hints]:
        """Return the hints for devices whose NUMA nodes are known; `wanted` maps a resource to a count."""
        return {
            kind: msgspec.structs.replace(self._devices[kind], request=count)
            for kind, count in wanted.items()
            if kind in self._devices and any(self._devices[kind].groups)
        }


def _without_reservations(node: int, state: NodeState) -> NodeState:
    """Return the memory of a NUMA node of which containers have reserved nothing."""
    tables = {
        kind: msgspec.structs.replace(table, free=table.allocatable, reserved=0)
        for kind, table in state.memory_map.items()
    }
    return NodeState(memory_map=tables, cells=(node,))


def _copied(state: NodeState) -> NodeState:
    tables = {kind: msgspec.structs.replace(table) for kind, table in state.memory_map.items()}
    return msgspec.structs.replace(state, memory_map=tables)


def _devices(container: Container) -> dict[str, int]:
    return {kind: amount.value for kind, amount in container.requests.items() if is_extended(kind)}


def _devices_of_pod(pod: Pod) -> dict[str, int]:
    """Return the sums over the containers. Init containers run before them, so their devices are used
    again.
    """
    found: dict[str, int] = {}
    for container in pod.spec.containers:
        for kind, count in _devices(container).items():
            found[kind] = found.get(kind, 0) + count
    return found


def _named(numa: Numa, mask: int) -> str:
    """Return the NUMA nodes of a hint's mask, in which bit N stands for the N-th node of `numa`, as text."""
    return numa_text(sum(1 << node for node in numa.ids(mask)))


def _counts_text(per_node: Sequence[int], numa: Numa) -> str:
    """Return counts per NUMA node as text, such as `NUMA 0: 3, NUMA 1: 5`."""
    parts = zip(numa.nodes, per_node, strict=True)
    return ", ".join(f"NUMA {node}: {count}" for node, count in parts)


def _add_notes(
    rows: Rows, machines: Sequence[_Machine | None], configurations: Sequence[str], pods: Sequence[Pod]
) -> None:
    """Add the assumptions of the answer with the number of nodes that each concerns."""
    known = [(one, text) for one, text in zip(machines, configurations, strict=True) if one is not None]
    memory = any(pod_wanted_memory(pod) for pod in pods)
    for text, count in (
        ("nodes whose topology or exclusive CPUs are not known", len(machines) - len(known)),
        (
            "nodes whose memory per NUMA node is not known: memory counts as a sum",
            sum(1 for one, _ in known if memory and not one.cpus.memory),
        ),
        (
            "nodes that reserve no CPU, as the static policy requires: all CPUs count as assignable",
            sum(1 for one, _ in known if not one.reserved),
        ),
        (
            "nodes without a configuration: a kubelet's defaults count",
            sum(1 for _, text in known if not text),
        ),
    ):
        if count:
            rows.note(text, count)
