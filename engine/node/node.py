"""Provides the façade of the agent: one node, from claiming its directory to releasing it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.api.config import KubeletConfiguration
from engine.api.errors import Bug, Refused
from engine.api.kubengine_config import KubengineConfiguration
from engine.api.lifecycle import PodEnd
from engine.api.node import Node as NodeObject
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.disabled import NoCgroups
from engine.cgroups.manager import CgroupManager
from engine.cgroups.node_cgroups import NodeCgroups
from engine.cluster.certificates.serving import ServingCertificate
from engine.cri.client import RuntimeClient
from engine.cri.paths import pods_directory
from engine.host.node_context import NodeContext
from engine.host.stopping import stop_all
from engine.host.tracing import NO_TRACING, Tracing
from engine.hostsetup.host_places import HostPlaces
from engine.node.controlplane.control_plane import Api
from engine.node.managers import refuse_served_sockets
from engine.node.nodeinfo import addresses, machine
from engine.node.nodeinfo.options import CERTIFICATES, NodeOptions
from engine.node.running_node import RunningNode
from engine.node.runtime_view.wait_until_available import wait_until_available

if TYPE_CHECKING:
    from engine.hostsetup.setup import HostSetup
    from engine.node.logs.container_access import ContainerAccess
    from engine.node.stats.runtime_use import RuntimeUse
    from engine.node.stats.used import NodeUsage
import logging

from engine.metrics import Registry
from engine.wire import cri_v1_pb2 as cri

DRIVERS = {cri.SYSTEMD: "systemd", cri.CGROUPFS: "cgroupfs"}
LAST_VERSION = "1.37.0"
"""The kubelet's version that drops runtimes without RuntimeConfig."""
log = logging.getLogger("kubengine.node")


class NodeAgent:
    """Run the pods of a manifest directory, and of an API server, with a CRI runtime.

    `start` raises `Unavailable` without a runtime, and `Refused` if the cgroup tree cannot be created or
    another agent holds the root directory. With a `kubeconfig` in its options the node is registered at its
    API server, which receives its lease, status and events. `stop` leaves pods running; call
    `remove_all_pods` before it to end them. Before `start` there are no pods and no components.
    """

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        kubengine_config: KubengineConfiguration | None = None,
        runtime_endpoint: str,
        root: Path,
        name: str | None = None,
        clock: Callable[[], float] = time.time,
        options: NodeOptions | None = None,
    ) -> None:
        # `start` sets the cgroup driver. `replace` would turn zeros into defaults; `copy` keeps them.
        self.config = config = copy(config)
        self.kubengine_config = kubengine_config or KubengineConfiguration()
        self.name = name or socket.gethostname().lower()
        self.root = root
        self._context = NodeContext.create(
            config, self.kubengine_config, name=self.name, root=root, clock=clock
        )
        self.registry = self._context.registry
        self.tasks = self._context.tasks
        self.recorder = self._context.recorder
        self.decisions = self._context.decisions
        self._options = options = options or NodeOptions()
        certificates = options.cert_dir or root / CERTIFICATES
        self.serving_certificate = ServingCertificate(config, certificates, self.name, clock=clock)
        self._host = self._host_setup(options.host) if options.host is not None else None
        self._clock = clock
        self._endpoint = runtime_endpoint
        self._lock: int | None = None
        self._tracing: Tracing = NO_TRACING
        self._running: RunningNode | None = None

    # Life cycle

    def claim(self) -> None:
        """Claim the node before anything on it is changed; `start` does this too.

        Raises `Refused` if another agent holds the root directory or a kubelet serves its sockets.
        """
        if self._lock is None:
            self._lock_root()
            refuse_served_sockets(self.root)

    async def start(self, serve: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return once the manifests have been read.

        `serve` is awaited before that, when all parts run, so that a node with many pods already answers
        requests while it reads them, as a kubelet does.
        """
        self.claim()
        if self._host is not None:
            self._host.check()
            await self._host.start()
        capacity = machine.capacity(self.root, self.config)
        self._tracing = node_tracing(self.config, self.name)
        runtime = RuntimeClient(
            self._endpoint,
            image_endpoint=self.config.image_service_endpoint,
            timeout=self.config.runtime_request_timeout,
            registry=self.registry,
            tracing=self._tracing,
            streams_lists=self.config.gate("CRIListStreaming", False),
        )
        try:
            version = await wait_until_available(runtime.version)
            self.config.cgroup_driver = await cgroup_driver(runtime, self.config.cgroup_driver, self.registry)
            ips = await addresses.node_ips(self.name, self._options.node_ips)
            cgroups = self._make_cgroups(capacity)
            pods_directory(self.root).mkdir(mode=0o750, exist_ok=True)
            self._running = RunningNode(
                self._context,
                self._options,
                self.serving_certificate,
                capacity=capacity,
                runtime=runtime,
                version=version,
                ips=ips,
                cgroups=cgroups,
            )
        except BaseException:
            await runtime.close()
            raise
        await self._running.start(serve)

    async def stop(self) -> None:
        """Stop, and leave pods running. Every part is stopped even if one fails; then the failures are
        raised.
        """
        try:
            stopped = (self._running, self._host, self._tracing)
            await stop_all([each.stop for each in stopped if each is not None])
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def remove_all_pods(self) -> None:
        """End every pod, remove its cgroups and files, and return when nothing is left."""
        if self._running is not None:
            await self._running.remove_all_pods()

    async def kill_pod(self, pod: Pod, end: PodEnd) -> None:
        """End a pod for good; implements `engine.api.lifecycle.KillPod`."""
        await self.running.pods.kill(pod, end)

    def _lock_root(self) -> None:
        """Lock the root directory, which only one agent may use."""
        try:
            self.root.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = os.open(self.root / "kubengine.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            text = error.strerror or str(error)
            raise Refused(text, subject=error.filename or str(self.root), errno=error.errno) from error
        try:
            # Nothing ever removes the file: a lock on a removed file excludes nobody who creates it again.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another agent is running on this directory", subject=str(self.root)) from None

    def _host_setup(self, places: HostPlaces) -> HostSetup:
        from engine.hostsetup.setup import HostSetup  # most nodes of tests and trials set nothing up

        return HostSetup(self.config, places, recorder=self.recorder, tasks=self.tasks)

    def _make_cgroups(self, capacity: Mapping[str, Quantity]) -> NodeCgroups:
        section = self.kubengine_config.cgroups
        if not self.config.cgroups_per_qos:
            return NoCgroups(config=self.config, capacity=capacity)
        amounts: dict[str, Quantity | int] = {**capacity, machine.PIDS: machine.max_pids()}
        return CgroupManager(config=self.config, section=section, capacity=amounts, registry=self.registry)

    # What the server shows

    @property
    def running(self) -> RunningNode:
        """Return the parts of the started node, or None."""
        if self._running is None:
            raise Bug("it was not started", subject=f"node {self.name}")
        return self._running

    @property
    def components(self) -> dict[str, object]:
        """Return the components that describe themselves and take actions, by name."""
        return self._running.components() if self._running is not None else {}

    @property
    def api(self) -> Api | None:
        """Return the client of the cluster's API server; None on a standalone node."""
        return self.running.api

    @property
    def containers(self) -> ContainerAccess:
        """Return the access to the pods' containers: logs, commands, ports."""
        return self.running.containers

    def node_object(self) -> NodeObject:
        """Return the Node object with its current capacity, allocatable and conditions."""
        return self.running.description.current()

    def active_pods(self) -> list[Pod]:
        """Return the pods that hold, or will hold, resources of the node."""
        return self._running.pods.active() if self._running is not None else []

    def pods(self) -> list[Pod]:
        return self._running.pods.all() if self._running is not None else []

    async def running_pods(self) -> list[Pod]:
        return self.running.running_pods()

    def healthz(self) -> list[tuple[str, str | None]]:
        return self.running.healthz()

    async def stats_summary(self) -> Iterable[bytes]:
        """Yield the kubelet's Summary as JSON, piece by piece."""
        return await self.running.summaries.current()

    async def cpu_and_memory_summary(self) -> Iterable[bytes]:
        """Yield the Summary with only CPU, memory and swap, without measuring anything else."""
        return await self.running.summaries.cpu_and_memory()

    async def claims_usage(self) -> list[dict[str, Any]]:
        """Return the usage of the claims that pods mount, as the kubelet's VolumeStats."""
        return await self.running.volume_figures.of_claims(self.running.pods.all())

    async def usage(self, *, descriptors: bool = False) -> NodeUsage:
        """Return the usage as read from cgroups and network devices; with `descriptors`, also the numbers of
        open files and sockets.
        """
        return await self.running.sampler.sample(descriptors=descriptors)

    async def runtime_use(self, usage: NodeUsage) -> list[RuntimeUse]:
        """Return CPU and memory from the runtime for cgroups that `usage` has no numbers of."""
        return await self.running.summaries.runtime_use(usage)


async def cgroup_driver(runtime: RuntimeClient, configured: str, registry: Registry) -> str:
    """Return the driver that the runtime reports, or `configured` if it reports none.

    Both must place a pod's cgroups alike, or the runtime refuses every sandbox. Source: kubelet v1.36,
    KEP-4033 (gate KubeletCgroupDriverFromCRI, generally available).
    Raises `Unavailable` if it does not answer, `Refused` for an unknown driver.
    """
    losing_support = registry.counter(
        "kubelet_cri_losing_support",
        "The first kubelet version that will not support this runtime, because the runtime lacks a call.",
        ["version"],
    )
    answer = await wait_until_available(runtime.runtime_config)
    if answer is None:
        losing_support.inc(LAST_VERSION)
        log.info(
            "%s does not implement RuntimeConfig, as containerd does from 2.0; using the configuration's "
            "cgroupDriver: %s",
            runtime.endpoint,
            configured,
        )
        return configured
    if not answer.HasField("linux"):
        return configured
    driver = DRIVERS.get(answer.linux.cgroup_driver)
    if driver is None:
        raise Refused(
            f"names an unknown cgroup driver: {answer.linux.cgroup_driver}", subject=runtime.endpoint
        )
    if driver != configured:
        log.info("using cgroupDriver %s of %s instead of %s", driver, runtime.endpoint, configured)
    return driver


def node_tracing(config: KubeletConfiguration, node: str) -> Tracing:
    """Return the tracing that the configuration asks for, or none, with a warning, without the libraries."""
    if config.tracing is None:
        return NO_TRACING
    try:
        from engine.host.otlp import OtlpTracing
    except ImportError as error:
        log.warning(
            "tracing: no spans are sent, because %s is not installed; "
            "install it with: pip install 'kubengine[tracing]'",
            error.name,
        )
        return NO_TRACING
    return OtlpTracing(config.tracing, node)
