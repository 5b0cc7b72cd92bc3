"""No CPU is two containers' at once, or exclusive and shared: random machines, pods, restarts, unplugging."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import cpu_set
from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.documents import convert
from engine.api.errors import InvalidInput
from engine.api.events import EventRecorder
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cpumanager.checkpoint import decode
from engine.cpumanager.manager import FILE_NAME, CpuManager, RunningContainer
from engine.cpumanager.state import CpuState
from engine.cpumanager.topology import CpuTopology, Processor
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.topologymanager.policy import Hint, Numa
from engine.topologymanager.provider import AllocationError

OPTIONS = [
    {},
    {"full-pcpus-only": "true"},
    {"strict-cpu-reservation": "true"},
    {"prefer-align-cpus-by-uncorecache": "true"},
    {"distribute-cpus-across-numa": "true"},
    {"distribute-cpus-across-cores": "true"},
    {"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"},
]


def pod_of(uid: str, containers: list[tuple[str, int]]) -> Pod:
    init, main = [], []
    for number, (kind, count) in enumerate(containers):
        amounts = {"cpu": str(count) if count else "250m", "memory": "1Mi"}
        one: dict[str, Any] = {"name": f"c{number}", "image": "x", "resources": {"limits": amounts}}
        one["resources"]["requests"] = amounts
        if kind == "sidecar":
            one["restartPolicy"] = "Always"
        (main if kind == "main" else init).append(one)
    spec = {"initContainers": init, "containers": main}
    return convert({"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": spec}, Pod, "pod")


@st.composite
def machines(draw: st.DrawFn) -> list[Processor]:
    """Online CPUs of machines whose siblings, cores and whole sockets may be offline."""
    sockets, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    found, cpu = [], 0
    for thread in range(threads):
        for socket in range(sockets):
            for node in range(nodes):
                for core in range(cores):
                    place = (node * cores + core, socket * 2 + core // 2, socket, socket * nodes + node)
                    if (
                        (thread == 0 and core == 0 and node == 0)
                        or draw(st.booleans())
                        or draw(st.booleans())
                    ):
                        found.append(Processor(cpu, *place))
                    cpu += 1
    return found


KINDS = st.sampled_from(["init", "sidecar", "main", "main"])
PODS = st.lists(st.tuples(KINDS, st.integers(0, 5)), min_size=1, max_size=4)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), PODS, st.integers(0, 511)),
        st.tuples(st.just("remove"), st.integers(0, 5), st.just(0)),
        st.tuples(st.sampled_from(["restart", "crash"]), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["unplug", "plug", "unplug and restart"]), st.integers(0, 40), st.just(0)),
    ),
    max_size=12,
)


class Crash(BaseException):
    """The agent dies."""


@dataclass
class World:
    """A machine with its runtime, which outlive the agents: where containers run by what they were told."""

    root: Path
    config: KubeletConfiguration
    every: list[Processor]
    offline: set[int] = field(default_factory=set)
    pods: dict[str, Pod] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    manager: CpuManager | None = None

    @property
    def topology(self) -> CpuTopology:
        return CpuTopology([one for one in self.every if one.cpu not in self.offline])

    def running(self) -> list[RunningContainer]:
        return [
            RunningContainer(uid, one.name, f"{uid}/{one.name}")
            for uid, pod in self.pods.items()
            for one in pod.all_containers
            if one not in pod.init_containers or one.is_sidecar
        ]

    async def move(self, container: str, cpus: str) -> None:
        self.told[container] = cpus

    async def start(self) -> None:
        self.manager = CpuManager(
            config=self.config,
            topology=lambda: self.topology,
            online=lambda: self.topology.cpus,
            numa=Numa(tuple(range(9))),
            reserved=Quantity.parse("1"),
            root=self.root,
            running=self.running,
            move=self.move,
            registry=Registry(),
            recorder=EventRecorder(lambda: 0.0),
            decisions=Decisions(lambda: 0.0),
            tasks=Tasks(),
        )
        await self.manager.start()
        for pod in self.pods.values():
            self.manager.adopted(pod, lambda pod, container: Hint(None, preferred=False))
        self.manager.collect(self.pods)
        await self.manager.flush()

    async def admit(self, pod: Pod, mask: int) -> None:
        assert self.manager is not None
        if self.manager.concerns(pod):
            try:
                for container in pod.all_containers:
                    self.manager.allocate(pod, container, Hint(mask or None, preferred=False))
                await self.manager.flush()
            except AllocationError:
                self.manager.release(pod.uid)
                return
        self.pods[pod.uid] = pod
        for container in pod.all_containers:
            self.told[f"{pod.uid}/{container.name}"] = self.manager.cpuset(pod, container.name)

    def check(self) -> None:
        """What the manager says, what the file says, and where the runtime was told to run containers."""
        assert self.manager is not None
        policy = self.manager.policy
        assert policy is not None
        used = 0
        for one in self.running():
            pod = self.pods[one.pod_uid]
            held = policy.state.held(one.pod_uid, one.name)
            if held is None:
                assert cpu_set.parse(self.told[one.id]) == (policy.state.shared or policy.reserved)
                continue
            assert cpu_set.parse(self.told[one.id]) == held
            assert held & (used | policy.state.shared | policy.reserved | ~policy.topology.cpus) == 0
            container = next(c for c in pod.all_containers if c.name == one.name)
            assert held.bit_count() == container.requests["cpu"].value
            used |= held
        checkpoint = decode((self.root / FILE_NAME).read_bytes())
        assert cpu_set.parse(checkpoint.default_cpu_set) == policy.state.shared


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines(), st.sampled_from(OPTIONS), EVENTS)
def test_random_histories(machine: list[Processor], options: dict[str, str], events: list[Any]) -> None:
    config = KubeletConfiguration(
        cpu_manager_policy="static",
        cpu_manager_policy_options=options,
        feature_gates={"CPUManagerPolicyAlphaOptions": True},
    )

    async def history(root: Path) -> None:
        world = World(root, config, machine)
        try:
            await world.start()
        except InvalidInput:
            return
        for number, (what, argument, mask) in enumerate(events):
            assert world.manager is not None
            if what == "admit":
                await world.admit(pod_of(f"p{number}", [*argument, ("main", 0)]), mask)
            elif what == "remove" and world.pods:
                uid = list(world.pods)[argument % len(world.pods)]
                del world.pods[uid]
                world.manager.release(uid)
            elif what.startswith("unplug") and len(machine) - len(world.offline) > 1:
                kept = [one.cpu for one in machine if one.cpu not in world.offline]
                world.offline.add(kept[1:][argument % (len(kept) - 1)])
                try:
                    if what == "unplug":
                        world.manager._made(CpuState(0))
                    else:
                        await world.manager.stop()
                        await world.start()
                except InvalidInput:
                    return
                await world.admit(pod_of(f"p{number}", [("main", 1)]), 0)
            elif what == "plug":
                world.offline.clear()
                await world.admit(pod_of(f"p{number}", [("main", 1)]), 0)
            elif what in ("restart", "crash"):
                if what == "crash":
                    await asyncio.sleep(0)
                    await world.manager._mover.stop()
                    await world.manager._file._writer.stop()
                else:
                    await world.manager.stop()
                await world.start()
            await world.manager.flush()
            world.check()
        await world.manager.stop()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(history(Path(root)))
