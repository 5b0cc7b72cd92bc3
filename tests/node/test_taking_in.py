"""The real device manager, admission and gatekeeper over a model runtime: pods come, are edited and go;
agent and plugin die at any step."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.admission.manager import Admission
from engine.admission.verdict import Verdict
from engine.api.config import KubeletConfiguration
from engine.api.events import EventRecorder
from engine.api.kubengine_config import DevicesSection
from engine.api.lifecycle import AdmissionRejected
from engine.api.meta import ObjectMeta
from engine.api.node import Node, NodeStatus
from engine.api.pod import Container, ContainerPort, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.devices.manager import DeviceManager
from engine.devices.topology import Numa
from engine.metrics import Registry
from engine.node.gatekeeper import Gatekeeper
from engine.testing.device_plugin import SampleDevicePlugin

GPU = "example.com/gpu"
CPUS, GPUS = 4000, 3


class Nothing:
    """No pressure on the node, and nothing that it lacks."""

    def admit(self, pod: Pod) -> None: ...

    def check(self, pod: Pod) -> None: ...


def make_pod(uid: int, cpu: int, gpus: int, port: int) -> Pod:
    amounts = {"cpu": Quantity.from_milli(cpu)}
    if gpus:
        amounts[GPU] = Quantity.from_value(gpus)
    ports = [ContainerPort(container_port=80, host_port=port)] if port else None
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=f"uid-{uid}"),
        spec=PodSpec(containers=[Container(name="c", resources=resources, ports=ports)]),
    )


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class TakingIn(RuleBasedStateMachine):
    """`runs` is the runtime: pods and the devices that their containers were made with."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="km-"))
        self.runs: dict[str, tuple[Pod, frozenset[str]]] = {}
        self.wanted: dict[str, Pod] = {}
        self.judged: dict[str, tuple[Pod, asyncio.Task[None]]] = {}
        self.uids = 0
        self.plugin: SampleDevicePlugin | None = None
        self.loop.run_until_complete(self.start_agent())
        self.plugin_comes()

    def run(self, seconds: float = 0.0) -> None:
        """Lets everything that can go on go on."""

        async def turns() -> None:
            for _ in range(20):
                await asyncio.sleep(seconds)

        self.loop.run_until_complete(turns())

    async def start_agent(self) -> None:
        """A new agent: it adopts what runs and is wanted before it judges anything."""
        registry = Registry()
        self.manager = DeviceManager(
            config=KubeletConfiguration(),
            section=DevicesSection(),
            active_pods=lambda: [pod for uid, pod in self.wanted.items() if uid in self.runs],
            may_run=lambda uid: uid in self.runs or uid in self.judged,
            leaves=lambda uid: uid in self.runs and uid not in self.wanted,
            registry=registry,
            numa=Numa(),
            plugin_dir=self.directory / "dp",
            registry_dir=None,
            pod_resources_dir=None,
        )
        await self.manager.start()
        self.admission = Admission(
            node=Node(), kill_pod=self.kill, recorder=EventRecorder(lambda: 0.0), registry=registry
        )
        nothing = Nothing()
        self.gatekeeper = Gatekeeper(
            eviction=nothing,  # type: ignore[arg-type]
            support=nothing,  # type: ignore[arg-type]
            devices=self.manager,
            admission=self.admission,
            node=self.node,
            resources=nothing,  # type: ignore[arg-type]
        )
        for uid, (pod, _) in self.runs.items():
            self.gatekeeper.adopt(pod)
            if uid not in self.wanted:
                self.gatekeeper.leaves(uid)
        for uid in sorted(self.wanted.keys() - self.runs.keys(), reverse=self.uids % 2 == 0):
            self.judge(self.wanted[uid])

    async def kill(self, pod: Pod, end: object) -> None:
        self.runs.pop(pod.uid, None)
        self.wanted.pop(pod.uid, None)
        self.gatekeeper.released(pod)

    def node(self) -> Node:
        allocatable = {"cpu": Quantity.from_milli(CPUS), "pods": Quantity.from_value(100)}
        capacity, healthy, _ = self.manager.capacity()
        allocatable.update({name: Quantity.from_value(healthy[name]) for name in capacity})
        return Node(status=NodeStatus(allocatable=allocatable))

    def judge(self, pod: Pod) -> None:
        try:
            verdict = self.gatekeeper.judge(pod)
        except AdmissionRejected:
            del self.wanted[pod.uid]
            return
        self.judged[pod.uid] = pod, self.loop.create_task(self.settle(pod, verdict))

    async def settle(self, pod: Pod, verdict: Verdict) -> None:
        try:
            await self.gatekeeper.settle(pod, verdict)
            entries = self.manager.state.entries_of(pod.uid)
            self.runs[pod.uid] = pod, frozenset(id for entry in entries for id in entry.devices)
        except AdmissionRejected:
            self.wanted.pop(pod.uid, None)
        finally:
            self.judged.pop(pod.uid, None)

    @rule(
        cpu=st.sampled_from([100, 1000, 2500]),
        gpus=st.integers(0, 2),
        port=st.sampled_from([0, 0, 80, 81]),
        wait=st.booleans(),
    )
    def pod_comes(self, cpu: int, gpus: int, port: int, wait: bool) -> None:
        self.uids += 1
        pod = make_pod(self.uids, cpu, gpus, port)
        self.wanted[pod.uid] = pod
        self.judge(pod)
        self.run(0.002 if wait else 0)

    @precondition(lambda self: self.wanted)
    @rule(which=st.integers(0, 99))
    def pod_is_unwanted(self, which: int) -> None:
        uid = sorted(self.wanted)[which % len(self.wanted)]
        pod = self.wanted.pop(uid)
        if uid in self.judged:
            task = self.judged[uid][1]
            task.cancel()
            self.loop.run_until_complete(ended([task]))
            self.gatekeeper.released(pod)
        else:
            self.gatekeeper.leaves(uid)

    @precondition(lambda self: self.runs.keys() - self.wanted.keys())
    @rule(which=st.integers(0, 99))
    def pod_has_stopped(self, which: int) -> None:
        leaving = sorted(self.runs.keys() - self.wanted.keys())
        pod, _ = self.runs.pop(leaving[which % len(leaving)])
        self.gatekeeper.released(pod)
        self.run(0.002)

    @rule(written=st.booleans())
    def agent_dies(self, written: bool) -> None:
        """Without a last word: what is not on disk is lost, or, where it stops in order, written."""
        tasks = [task for _, task in self.judged.values()]
        kept = self.directory / "dp/kubelet_internal_checkpoint"
        before = kept.read_bytes() if kept.exists() else None
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(ended(tasks))
        self.loop.run_until_complete(self.manager.stop())
        if not written and before is not None:
            kept.write_bytes(before)
        self.judged.clear()
        self.loop.run_until_complete(self.start_agent())
        self.run(0.002)

    @precondition(lambda self: self.plugin is not None)
    @rule()
    def plugin_dies(self) -> None:
        assert self.plugin is not None
        self.loop.run_until_complete(self.plugin.stop())
        self.plugin = None
        self.run(0.002)

    @rule()
    def plugin_comes(self) -> None:
        if self.plugin is not None:
            self.loop.run_until_complete(self.plugin.stop())
        self.plugin = SampleDevicePlugin(GPU, self.directory / "dp/gpu.sock", count=GPUS)
        self.loop.run_until_complete(self.plugin.start())
        self.loop.run_until_complete(self.plugin.register(self.directory / "dp"))
        self.run(0.002)

    @invariant()
    def no_device_is_in_two_pods_that_run(self) -> None:
        ids = [id for _, devices in getattr(self, "runs", {}).values() for id in devices]
        assert len(ids) == len(set(ids))

    @invariant()
    def whoever_runs_has_its_entry(self) -> None:
        for uid, (_, devices) in getattr(self, "runs", {}).items():
            assert devices <= {id for entry in self.manager.state.entries_of(uid) for id in entry.devices}

    @invariant()
    def what_runs_fits_the_node(self) -> None:
        pods = [pod for pod, _ in getattr(self, "runs", {}).values()]
        assert sum(pod.spec.containers[0].requests["cpu"].milli for pod in pods) <= CPUS
        ports = [port.host_port for pod in pods for port in pod.spec.containers[0].ports or ()]
        assert len(ports) == len(set(ports))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for _, task in self.judged.values():
                task.cancel()
            self.run()
            if self.plugin is not None:
                self.loop.run_until_complete(self.plugin.stop())
            self.loop.run_until_complete(self.manager.stop())
            self.loop.close()
            shutil.rmtree(self.directory)


TakingIn.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestTakingIn = TakingIn.TestCase
