"""Observe a live node repeatedly, and compare its decisions. It changes nothing.

Each observation reads the kubelet before the runtime, so that the runtime's lists have each container that
the kubelet shows. A runtime that sends events is listed rarely, because its state follows from them. If the
kubelet or the runtime does not answer, the observation is skipped and counted as a fault, and differences
that have not settled start again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.api.config import KubeletConfiguration
from engine.api.documents import CONTAINERD, load_config
from engine.api.errors import InvalidInput, KubengineError, Unavailable
from engine.api.kubengine_config import RecordSection
from engine.api.node import Node
from engine.api.pod import Pod
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cri.client import RuntimeClient
from engine.cri.records import PodRecord
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.node.runtime_view.runtime_watch import RuntimeWatch
from engine.shadow.judge import Judge, MachineRules
from engine.shadow.kinds.cgroups import CgroupRules
from engine.shadow.kinds.observation import (
    STARTED,
    FileSystem,
    MeasuredNode,
    Observation,
    SeenImages,
    SeenResources,
)
from engine.shadow.kubelet_reader import KubeletAccess, KubeletReader
from engine.shadow.ledger import AgreementLedger, Difference
from engine.shadow.machine_facts import MachineFacts, with_devices
from engine.shadow.machine_reader import MachineReader
from engine.shadow.observation_rows import RecordedObservation
from engine.shadow.second import NextNode, SecondConfiguration
from engine.shadow.shadow_record import ShadowRecord
from engine.shadow.socket_reader import PodResourcesReader, RuntimeImages
from engine.wire import cri_v1_pb2 as cri

IMAGES_EVERY: Final = 3
"""Observations until the images are read again."""
CONFIG_EVERY: Final = 6
"""Observations until the configuration and the Node are read again."""
RUNTIME_TIMEOUT: Final = 10.0
MAX_FAULTS: Final = 100


@dataclass(frozen=True, slots=True)
class ShadowOptions:
    """Configure what a shadow reads.

    `root` is the root directory of the kubelet. `config` is its configuration file, for a port that does not
    serve the configuration. `runtime` is the endpoint of the runtime, "" for the one in the configuration.
    With `kubeconfig`, the Node and Events are read from the API server. `next_config` is the file of a second
    configuration that decides next to the live one. `record` says where observations are recorded.
    """

    kubelet: KubeletAccess
    root: Path
    config: Path | None = None
    runtime: str = ""
    kubeconfig: Path | None = None
    next_config: Path | None = None
    record: RecordSection = field(default_factory=RecordSection)


@dataclass(slots=True)
class Fault:
    """Count how often a source could not be read, with the time (Unix seconds) and reason of the last one."""

    times: int = 0
    last: float = 0.0
    text: str = ""


@dataclass(slots=True)
class _Sources:
    """Hold what changes rarely and is read rarely: the configuration, its rules on this machine, and the
    Node.
    """

    config: KubeletConfiguration
    facts: MachineFacts
    rules: CgroupRules
    node: Node
    node_known: bool
    machine: MachineRules = field(default_factory=MachineRules)
    next_node: NextNode | None = None


@dataclass(slots=True)
class Shadow:
    """Compare the decisions of a live node. Failures of the node are counted in `faults` and not raised. Call
    `close` when done.

    Raise `InvalidInput` for a configuration file that cannot be used.
    """

    options: ShadowOptions
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    ledger: AgreementLedger = field(default_factory=AgreementLedger)
    faults: dict[str, Fault] = field(default_factory=dict)
    observations: int = 0
    skipped: int = 0
    restarts: int = 0
    pods: int = 0
    began: float = 0.0
    last: Observation | None = None
    second: SecondConfiguration = field(default_factory=SecondConfiguration)
    _record: ShadowRecord | None = None
    _trouble: str = ""
    _judge: Judge = field(default_factory=Judge)
    _sources: _Sources | None = None
    _runtime: RuntimeClient | None = None
    _watch: RuntimeWatch | None = None
    _images: RuntimeImages | None = None
    _api: ApiClient | None = None
    _started_at: float = 0.0
    _kubelet: KubeletReader = field(init=False)
    _machine: MachineReader = field(init=False)
    _resources: PodResourcesReader = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        for file in (self.options.config, self.options.next_config):
            if file is not None:
                load_config([file])
        self._kubelet = KubeletReader(self.options.kubelet)
        self._machine = MachineReader(self.options.root, self.fault)
        self._resources = PodResourcesReader(self.options.root)
        if self.options.kubeconfig is not None:
            config = load_kubeconfig(self.options.kubeconfig)
            self._api = ApiClient(
                config, Credentials(config, clock=self.clock), user_agent="kubengine-shadow"
            )
        if self.options.record.directory:
            self._record = ShadowRecord(self.options.record, self.clock)

    async def close(self) -> None:
        self._kubelet.close()
        self._resources.close()
        if self._watch is not None:
            await self._watch.stop()
        if self._record is not None:
            await self._record.close()
        if self._runtime is not None:
            await self._runtime.close()
        if self._api is not None:
            self._api.close()

    async def compare(self) -> list[Difference]:
        """Observe the node once, and compare; return the differences that are counted from now on.

        Raise `InvalidInput` if no observation can succeed with these options.
        """
        self.observations += 1
        try:
            seen = await self.observe()
        except KubengineError as error:
            if isinstance(error, InvalidInput) and self.last is None:
                raise
            self.skipped += 1
            self.fault(error.subject or "node", error.message)
            self.ledger.interrupt()
            if self._record is not None:
                await self._record.skipped(self.observations, str(error))
            # After an outage the kubelet may have another configuration.
            self._sources = None
            return []
        assert self._sources is not None
        config, rules = self._sources.config, self._sources.rules
        findings = list(
            self._judge.judge(
                seen,
                rules if config.cgroups_per_qos else None,
                self._sources.machine,
                self._machine.group,
                self.ledger.unsettled(),
            )
        )
        self.last, self.pods = seen, len(seen.pods)
        new = self.ledger.add(findings, now=seen.now, wall=seen.at)
        if self._sources.next_node is not None:
            self.second.compare(seen, rules, self._sources.next_node)
        if self._record is not None:
            recorded = RecordedObservation(seen, self._sources.facts)
            await self._record.observation(recorded, findings, self.observations)
            self._follow_events(self._record, seen.node.metadata.name)
        return new

    def _follow_events(self, record: ShadowRecord, node: str) -> None:
        """Record the Events of the kubelet as well, if there is an API server; report once why they cannot be
        read.
        """
        if self._api is not None and node:
            record.follow_events(self._api, node)
        before, self._trouble = self._trouble, record.trouble
        if self._trouble not in ("", before):
            self.fault("events", self._trouble)

    def fault(self, source: str, text: str) -> None:
        """Count a source that could not be read."""
        if source not in self.faults and len(self.faults) >= MAX_FAULTS:
            source = "other sources"
        fault = self.faults.setdefault(source, Fault())
        fault.times, fault.last, fault.text = fault.times + 1, self.clock(), text

    def describe(self) -> dict[str, Any]:
        """Return the report, ready for JSON."""
        ledger = self.ledger
        second = {"next": self.second.describe()} if self.options.next_config is not None else {}
        return {
            "began": self.began,
            "now": self.clock(),
            "kubelet": self.options.kubelet.url,
            "node": self.last.node.metadata.name if self.last is not None else "",
            "pods": self.pods,
            "observations": self.observations,
            "skippedObservations": self.skipped,
            "kubeletRestarts": self.restarts,
            "agreed": ledger.agreed,
            "differed": ledger.differed,
            "kinds": {kind: tally.as_dict() for kind, tally in ledger.tallies.items()},
            "differences": [difference.as_dict() for difference in ledger.differences()],
            "differencesDropped": ledger.dropped,
            "faults": {
                source: {"times": fault.times, "last": fault.last, "text": fault.text}
                for source, fault in self.faults.items()
            },
            **second,
        }

    async def observe(self) -> Observation:
        """Return one observation. Raise `Unavailable` if the kubelet or the runtime does not answer."""
        pods = await asyncio.to_thread(self._kubelet.pods)
        series = await asyncio.to_thread(self._kubelet.series)
        self._note_restart(series.get(STARTED, 0.0))
        use = await asyncio.to_thread(self._statistics)
        # The pods name the node, so its name is unknown as long as there is no pod.
        unnamed = self._sources is not None and not self._sources.node.metadata.name and bool(pods)
        if self._sources is None or unnamed or self.observations % CONFIG_EVERY == 0:
            self._sources = await self._read_sources(next((p.spec.node_name for p in pods.values()), ""))
        records = await self._runtime_view(self._sources.config)
        images = await self._read_images(pods, use)
        probes = await asyncio.to_thread(self._kubelet.probes)
        states = await asyncio.to_thread(self._machine.states)
        return Observation(
            at=self.clock(),
            now=self.monotonic(),
            config=self._sources.config,
            pods=pods,
            records=records,
            node=with_devices(self._sources.node, states.devices.registered_devices or {}),
            node_known=self._sources.node_known,
            use=use,
            series={**series, **(probes or {})},
            probes_served=probes is not None,
            cpus=states.cpus,
            memory=states.memory,
            devices=states.devices,
            claims=states.claims,
            images=images,
            resources=await self._read_resources(),
        )

    async def _read_images(self, pods: Mapping[str, Pod], use: MeasuredNode | None) -> SeenImages | None:
        """Return the images, at one of `IMAGES_EVERY` observations, else None. Raise the error of the
        runtime.
        """
        if self.observations % IMAGES_EVERY != 1:
            return None
        assert self._runtime is not None
        if self._images is None:
            self._images = RuntimeImages(self._runtime)
        return await self._images.read(pods.values(), use.imagefs if use is not None else FileSystem())

    async def _read_resources(self) -> SeenResources | None:
        try:
            return await self._resources.read()
        except Unavailable as error:
            self.fault(error.subject, error.message)
            return None

    def _statistics(self) -> MeasuredNode | None:
        try:
            return self._kubelet.use()
        except Unavailable as error:
            self.fault(error.subject, error.message)
            return None

    def _note_restart(self, started_at: float) -> None:
        """Count a restart of the kubelet if its start time changed, and read its configuration again."""
        if self._started_at and started_at and started_at != self._started_at:
            self.restarts += 1
            self._sources = None
        self._started_at = started_at or self._started_at

    async def _read_sources(self, node_name: str) -> _Sources:
        """Read the configuration, the machine and the Node. Raise `InvalidInput` or `Unavailable`."""
        config = await asyncio.to_thread(self._kubelet.config)
        if config is None:
            if self.options.config is None:
                raise InvalidInput(
                    "this port does not show the configuration; name its file with --config, or use the "
                    "authenticated port",
                    subject=self.options.kubelet.url,
                )
            config, _ = load_config([self.options.config])
        await self._runtime_watch(config)
        config.cgroup_driver = await self._driver(config.cgroup_driver)
        before = self._sources
        # Comparisons detect a change of configuration by the identity of the object.
        if before is not None and before.config == config:
            config = before.config
        assert self._runtime is not None
        name = (await self._runtime.version()).runtime_name
        facts = await asyncio.to_thread(self._machine.facts, name, self._runtime.socket)
        node = await self._node_object(node_name)
        sources = _Sources(
            config,
            facts,
            facts.rules(config),
            node or facts.node(node_name, config),
            node_known=node is not None,
            machine=await asyncio.to_thread(self._machine_rules, config),
        )
        if self.options.next_config is not None:
            next_config, _ = load_config([self.options.next_config])
            sources.next_node = facts.next_node(next_config, config, sources.node)
        return sources

    def _machine_rules(self, config: KubeletConfiguration) -> MachineRules:
        """Return the policies of the resource managers; the default ones if they reject the configuration."""
        try:
            return MachineRules(self._machine.topology(config), self._machine.cpu_rules(config))
        except KubengineError as error:
            self.fault(error.subject or "configuration", error.message)
            return MachineRules()

    async def _node_object(self, name: str) -> Node | None:
        if self._api is None or not name:
            return None
        try:
            return await self._api.get(f"/api/v1/nodes/{name}", Node)
        except KubengineError as error:
            self.fault(error.subject, error.message)
            return None

    async def _runtime_view(self, config: KubeletConfiguration) -> Mapping[str, PodRecord]:
        """Return the current pods of the runtime by uid. Raise the error of the runtime."""
        # Copies, because events change the records in place while the rest of the node is read.
        return {uid: record.copy() for uid, record in (await self._runtime_watch(config)).pods.items()}

    async def _runtime_watch(self, config: KubeletConfiguration) -> RuntimeWatch:
        """Return the view of the runtime, updated from its events, or from its lists if it sends none."""
        if self._runtime is None or self._watch is None:
            endpoint = self.options.runtime or config.container_runtime_endpoint or CONTAINERD
            self._runtime = RuntimeClient(endpoint, timeout=RUNTIME_TIMEOUT)
            self._watch = RuntimeWatch(
                self._runtime,
                on_change=lambda uid: None,
                clock=self.clock,
                registry=Registry(),
                tasks=Tasks(),
                on_event=self._record.runtime_event if self._record is not None else None,
            )
            self._watch.follow()
        await self._watch.refresh()
        return self._watch

    async def _driver(self, configured: str) -> str:
        """Return the cgroup driver that the runtime reports, else the configured one."""
        assert self._runtime is not None
        answer = await self._runtime.runtime_config()
        if answer is None or not answer.HasField("linux"):
            return configured
        return "systemd" if answer.linux.cgroup_driver == cri.SYSTEMD else "cgroupfs"
