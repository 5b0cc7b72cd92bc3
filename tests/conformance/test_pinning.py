"""CPU, memory and topology managers together against recorded histories of kubelet v1.36.

Each history runs through the managers of a node: on disk, one event after the other, restarts included.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.api import cpu_set as cpu_sets
from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cpumanager import static_policy
from engine.cpumanager.manager import CpuManager, CpuReaders
from engine.cpumanager.topology import CpuTopology, Processor
from engine.devices.allocation import Allocator, TopologyError
from engine.devices.state import DeviceState
from engine.host.state_file import no_fault
from engine.memorymanager.manager import MemoryManager
from engine.memorymanager.state import NodeMemory
from engine.topologymanager.alignment_metrics import AlignmentTally
from engine.topologymanager.policy import Hints, Numa, TopologyPolicy
from engine.topologymanager.provider import AllocationError
from engine.topologymanager.search import DeviceCounts
from tests.contexts import NothingKept, node_context

DATA = Path(__file__).parent / "data-1.36"
BEYOND = {
    "pinning-more": "pod-level resources, Burstable containers, parts of a byte",
    "pinning-wide": "NUMA nodes with gaps between their numbers, without CPUs or over two sockets, four "
    "threads a core, uneven caches, CPUs in any order, containers without CPU or memory, odd notations",
}
"""Further recorded histories, and what they have that the first ones lack."""


def pod_of(given: dict[str, Any]) -> Pod:
    if "spec" in given:
        return convert(given, Pod, "pod")
    init, main = [], []
    for one in given["containers"]:
        resources = {"requests": one.get("resources") or one.get("requests") or {}}
        if "resources" in one:
            resources["limits"] = one["resources"]
        container = {"name": one["name"], "image": "x", "resources": resources}
        if one["kind"] == "sidecar":
            container["restartPolicy"] = "Always"
        (main if one["kind"] == "main" else init).append(container)
    meta = {"name": given["uid"], "namespace": "default", "uid": given["uid"]}
    spec = {"initContainers": init, "containers": main}
    return convert({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, Pod, "pod")


class Refused(Exception):
    """Report a refused configuration; the text begins with the manager's name, as in the recording."""


class Machine:
    """Run the managers of one recorded machine. Raises `Refused` if one refuses the configuration."""

    def __init__(self, given: dict[str, Any], root: Path) -> None:
        settings = given["config"]
        nodes = given["nodes"]
        numa = Numa(tuple(n["id"] for n in nodes), tuple(tuple(n["distances"]) for n in nodes))
        reserved = {name: Quantity.parse(amount) for name, amount in settings["reserved"].items()}
        fields = {name: value for name, value in settings.items() if name != "reserved"}
        fields["reservedMemory"] = [
            {"numaNode": one["node"], "limits": one["limits"]} for one in fields.pop("reservedMemory", [])
        ]
        fields["featureGates"] = {"CPUManagerPolicyAlphaOptions": True} | given.get("gates", {})
        config = convert(fields, KubeletConfiguration, "config")
        self.topology = CpuTopology(
            [Processor(p["cpu"], p["core"], p["l3"], p["socket"], p["node"]) for p in given["cpus"]]
        )
        context = node_context(config, root=root, clock=lambda: 0.0)
        self.numa = numa
        try:
            self.policy = TopologyPolicy.from_config(
                config.topology_manager_policy,
                config.topology_manager_scope,
                config.topology_manager_policy_options,
                numa,
            )
        except InvalidInput as error:
            raise Refused(f"topology: {error.message}") from error
        try:
            self.cpus = CpuManager(
                context,
                readers=CpuReaders(lambda: self.topology, lambda: self.topology.cpus, lambda: 0),
                numa=numa,
                reserved=reserved.get("cpu"),
                running=lambda: (),
                move=lambda container, cpus: asyncio.sleep(0),
            )
        except InvalidInput as error:
            raise Refused(f"cpu: new static policy error: {error.message}") from error
        memory = [
            NodeMemory(n["id"], n["memory"], {h["kib"]: h["pages"] for h in n.get("hugepages", [])})
            for n in nodes
        ]
        try:
            self.memory = MemoryManager(context, machine=lambda: memory, numa=numa, reserved=reserved)
        except InvalidInput as error:
            raise Refused(f"memory: {error.message}") from error
        self.allocator = Allocator(
            node_context(config=config, registry=context.registry, decisions=context.decisions),
            DeviceState(),
            NothingKept(),  # type: ignore[arg-type]
            endpoints={},
            policy=self.policy,
            is_running=lambda uid, container: False,
            fault=no_fault,
            providers=[self.cpus, self.memory],
        )

    async def start(self) -> None:
        await self.cpus.start()
        await self.memory.start()

    async def stop(self) -> None:
        await self.cpus.stop()
        await self.memory.stop()

    def first_hints(self, pod: Pod) -> dict[str, dict[str, dict[str, bool]]]:
        """Return the hints that the topology policy gets first: the pod's, or its first container's."""
        if self.policy.name == "none":
            return {}
        whole = self.policy.scope == "pod"
        first = pod.all_containers[0]
        found: dict[str, dict[str, bool]] = {}
        for provider in (self.cpus, self.memory):
            hints = provider.pod_hints(pod) if whole else provider.container_hints(pod, first)
            found.update({kind: self.preferred_by_mask(one) for kind, one in (hints or {}).items()})
        return {"hints": {"" if whole else first.name: found}}

    def preferred_by_mask(self, hints: Hints) -> dict[str, bool]:
        """Return whether each hint is preferred, by its mask of node ids."""
        if isinstance(hints, DeviceCounts):
            hints = hints.flags(len(self.numa.nodes))
        assert hints is not None
        if isinstance(hints, np.ndarray):
            found = [(mask, flag == 2) for mask, flag in enumerate(hints.tolist()) if flag]
        else:
            found = [(hint.mask or 0, hint.preferred) for hint in hints]
        return {str(sum(1 << node for node in self.numa.ids(mask))): preferred for mask, preferred in found}

    async def admit(self, pod: Pod) -> dict[str, Any]:
        answer: dict[str, Any] = self.first_hints(pod)
        try:
            await self.allocator.pod(pod, AlignmentTally())
        except AllocationError as error:
            return {**answer, "admit": False, "reason": error.reason, "message": error.message}
        except TopologyError as error:
            return {**answer, "admit": False, "reason": "TopologyAffinityError", "message": str(error)}
        return {**answer, "admit": True}

    def release(self, uid: str) -> None:
        self.cpus.release(uid)
        self.memory.release(uid)

    def held(self, pods: dict[str, Pod]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for uid, pod in pods.items():
            for container in pod.all_containers:
                one: dict[str, Any] = {}
                if self.cpus.policy is not None:
                    cpus = self.cpus.policy.state.held(uid, container.name)
                    one |= {"cpus": cpu_sets.text(cpus)} if cpus is not None else {}
                if self.memory.policy is not None:
                    blocks = self.memory.policy.state.held(uid, container.name)
                    listed = [{"nodes": list(b.nodes), "size": b.size, "type": b.type} for b in blocks or ()]
                    one |= {"memory": listed} if blocks is not None else {}
                if one:
                    found.setdefault(uid, {})[container.name] = one
        return found

    @property
    def shared(self) -> str:
        return cpu_sets.text(self.cpus.policy.state.shared) if self.cpus.policy is not None else ""


async def replay(given: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the answers to a history's events, and both state files at its end."""
    try:
        machine = Machine(given, root)
    except Refused as error:
        return {"error": str(error)}
    await machine.start()
    pods: dict[str, Pod] = {}
    answers = []
    for event in given["events"]:
        answer: dict[str, Any] = {}
        if event["do"] == "admit":
            pod = pod_of(event["pod"])
            answer = await machine.admit(pod)
            if answer["admit"]:
                pods[pod.uid] = pod
        elif event["do"] == "remove":
            pods.pop(event["uid"], None)
            machine.release(event["uid"])
        elif event["do"] == "begin" and event["uid"] in pods:
            pod = pods[event["uid"]]
            machine.memory.container_started(
                pod, next(c for c in pod.all_containers if c.name == event["container"])
            )
        elif event["do"] == "restart":
            await machine.stop()
            machine = Machine(given, root)
            await machine.start()
        answers.append({**answer, "held": machine.held(pods), "shared": machine.shared})
    await machine.stop()
    out: dict[str, Any] = {"answers": answers}
    if machine.cpus.policy is not None and machine.cpus.policy.allocatable:
        out["allocatable"] = cpu_sets.text(machine.cpus.policy.allocatable)
    for name in ("cpu_manager_state", "memory_manager_state"):
        path = root / name
        out[name] = path.read_text() if path.exists() else ""
    return out


def comparable(out: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with each container's memory blocks sorted: the kubelet lists them in map order."""
    found = msgspec.json.decode(msgspec.json.encode(out))
    for answer in found.get("answers", []):
        for containers in answer["held"].values():
            for one in containers.values():
                one.get("memory", []).sort(key=lambda block: block["type"])
    memory = msgspec.json.decode(found.get("memory_manager_state") or "{}")
    several = [blocks for pod in memory.get("entries", {}).values() for blocks in pod.values()]
    several += [pod["memoryBlocks"] for pod in memory.get("podEntries", {}).values()]
    if any(len(blocks) > 1 for blocks in several):
        for blocks in several:
            blocks.sort(key=lambda block: block["type"])
        del memory["checksum"]
        found["memory_manager_state"] = memory
    return found


class MisledDetector:
    """Detect choices at which the kubelet may take half a core, or a part of a socket, for a whole one.

    It compares their free CPUs with averages over the machine, which are wrong where siblings are offline. It
    then gives away CPUs that are reserved, shared or another container's.
    """

    def __init__(self) -> None:
        self.misled = False
        self._take = static_policy.take_by_topology

    def take(self, topology: CpuTopology, options: Any, available: int, count: int) -> int:
        layout = topology.layout
        for level, average in ((layout.cores, layout.per_core), (layout.sockets, layout.per_socket)):
            for members in level.values():
                partly = members & ~available != 0
                self.misled |= partly and (members & available).bit_count() == average and average <= count
        return self._take(topology, options, available, count)


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> MisledDetector:
    detector = MisledDetector()
    monkeypatch.setattr(static_policy, "take_by_topology", detector.take)
    return detector


@pytest.fixture
def memory_root() -> Iterator[Path]:
    """Yield a directory in memory if there is one: the histories write some ten thousand files."""
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None))
    yield root
    shutil.rmtree(root)


def test_histories(answers: Any, detector: MisledDetector, memory_root: Path) -> None:
    misled = 0
    for number, case in enumerate(answers("pinning")):
        root = memory_root / str(number)
        root.mkdir()
        detector.misled = False
        got, wanted = comparable(asyncio.run(replay(case["in"], root))), comparable(case["out"])
        if "error" not in got:
            assert_nothing_is_given_twice(case["in"], got)
        if got != wanted and detector.misled:
            misled += 1
            continue
        assert got == wanted, case
    assert misled * 100 < number, "too many histories in which the kubelet is thought to be misled"


@pytest.mark.parametrize("name", BEYOND)
def test_histories_beyond(name: str, memory_root: Path) -> None:
    with gzip.open(DATA / f"{name}.jsonl.gz") as lines:
        cases = [msgspec.json.decode(line) for line in lines]
    for number, case in enumerate(cases):
        root = memory_root / str(number)
        root.mkdir()
        assert comparable(asyncio.run(replay(case["in"], root))) == comparable(case["out"]), case


def assert_nothing_is_given_twice(given: dict[str, Any], got: dict[str, Any]) -> None:
    """Check that no CPU belongs to two running containers, or to one and to the shared CPUs (with the
    reserved)."""
    kinds = {
        (event["pod"]["uid"], container["name"]): container["kind"]
        for event in given["events"]
        if event["do"] == "admit"
        for container in event["pod"]["containers"]
    }
    for answer in got["answers"]:
        owner: dict[int, tuple[str, str]] = {}
        shared = cpu_sets.parse(answer["shared"])
        for uid, containers in answer["held"].items():
            for name, one in containers.items():
                cpus = cpu_sets.parse(one.get("cpus", ""))
                assert not cpus & shared
                if kinds[uid, name] == "init":
                    continue
                for cpu in cpu_sets.numbers(cpus):
                    assert owner.setdefault(cpu, (uid, name)) == (uid, name)
