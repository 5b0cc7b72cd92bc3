"""The façade of device management: plugins on real sockets, pods' devices, capacity.

`state`, `selection` and `engine.topologymanager` decide; this module moves messages between them, the
plugins and the checkpoint. No plugin ever delays another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, KubengineError, Unavailable
from engine.api.lifecycle import AdmissionRejected, ReportWaiting, longest_grace, report_nothing
from engine.api.pod import Container, Pod, ResourceRequirements
from engine.api.quantity import Quantity
from engine.devices.allocation import Allocator, TopologyError, reason_of
from engine.devices.checkpoint import CheckpointEntry
from engine.devices.checkpoint_file import CheckpointFile
from engine.devices.description import describe_devices, explain_pod
from engine.devices.endpoint import DevicePluginDeadlines, Endpoint
from engine.devices.found_plugins import FoundDevicePlugins
from engine.devices.pod_resources import ClaimsOf, PinnedResources, PodResourcesServer
from engine.devices.registration import RegistrationServer, check_resource_name
from engine.devices.run_options import DeviceRunOptions, run_options
from engine.devices.selection import SelectionError
from engine.devices.state import DeviceState
from engine.devices.transient_refusals import (
    AWAITING_PLUGIN,
    TransientRefusal,
    awaiting_plugins,
    plugins_to_come,
    transient_refusal,
)
from engine.host.node_context import NodeContext
from engine.host.state_file import FaultPoint, no_fault
from engine.host.stopping import stop_all
from engine.topologymanager.alignment_metrics import AlignmentTally, TopologyAdmissionMetrics
from engine.topologymanager.policy import ANYWHERE, Hint, Numa, TopologyPolicy
from engine.topologymanager.provider import AllocationError, HintProvider

DEVICE_PLUGIN_DIR = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES_DIR = Path("/var/lib/kubelet/pod-resources")
FORGET_WAITING = 600.0
LOSS_SHOWS_SECONDS = 1.0
"""Seconds after a broken call within which the loss of the plugin is noticed."""
LIST_ACTIVE_GATE = "KubeletPodResourcesListUseActivePods"

log = logging.getLogger("kubengine.devices")


class DevicePods(msgspec.Struct, frozen=True):
    """Hold the pods of a node as the device manager sees them.

    `active` returns the pods that the node has accepted and not finished. `sources_ready` tells whether all
    pods are known; until then no pod's devices are collected. `may_run(pod uid)` tells whether something of a
    pod, known or not, runs or may run: its devices are kept. `is_terminating(pod uid)` tells that it
    terminates, so that another pod may wait for its devices. `is_running(pod uid, container name)` tells
    whether a container was found running when the agent started. `all` returns finished pods, too.
    """

    active: Callable[[], Sequence[Pod]]
    sources_ready: Callable[[], bool] = lambda: True
    may_run: Callable[[str], bool] = lambda pod_uid: False
    is_terminating: Callable[[str], bool] = lambda pod_uid: False
    is_running: Callable[[str, str], bool] = lambda pod_uid, container: False
    all: Callable[[], Sequence[Pod]] = list


class DeviceDirectories(msgspec.Struct, frozen=True):
    """Name the directories of the sockets.

    `plugins` holds the registration socket, the plugins' sockets and the checkpoint. Nothing serves the
    pod-resources API if `pod_resources` is None.
    """

    plugins: Path = DEVICE_PLUGIN_DIR
    pod_resources: Path | None = POD_RESOURCES_DIR


USUAL_DIRECTORIES = DeviceDirectories()


class DeviceManager:
    """Register plugins, allocate devices to pods and keep the checkpoint.

    `changed` is called when capacity may have changed. `providers` give CPUs and memory together with the
    devices.
    """

    def __init__(
        self,
        context: NodeContext,
        pods: DevicePods,
        *,
        changed: Callable[[], None] = lambda: None,
        numa: Numa | None = None,
        directories: DeviceDirectories = USUAL_DIRECTORIES,
        deadlines: DevicePluginDeadlines | None = None,
        fault: FaultPoint = no_fault,
        providers: Sequence[HintProvider] = (),
    ) -> None:
        self._pods = pods
        self._providers = list(providers)
        self.plugin_dir = directories.plugins.resolve()
        self.state = DeviceState()
        self._section = context.kubengine_config.devices
        self._clock = context.steady
        self._on_change = changed
        self._deadlines = deadlines or DevicePluginDeadlines()
        self._endpoints: dict[str, Endpoint] = {}
        self._pending: dict[str, int] = {}
        self._slimmed: set[str] = set()
        self._waiting: dict[tuple[str, str], float] = {}
        """Until when (the loop's time) a pod waits, by uid and reason."""
        self._news = asyncio.Event()
        self._following = context.tasks.passing("device-plugin")
        self._closing = context.tasks.passing("device-plugin-close")
        self._claimed = False
        self._describe_claims: Callable[[], list[dict[str, Any]]] = list
        self.numa = numa or Numa.of_machine()
        self.policy = _topology_policy(context.config, self.numa)
        self._file = CheckpointFile(self.plugin_dir, self.state.snapshot, tasks=context.tasks, fault=fault)
        self._allocator = self._make_allocator(context, fault)
        self._registration = RegistrationServer(
            self.plugin_dir, self.connect, context.registry, context.tasks
        )
        self.found_plugins = FoundDevicePlugins(self.connect, self.disconnect)
        self._pod_resources = self._pod_resources_server(context, directories.pod_resources)
        self._metrics = TopologyAdmissionMetrics(context.registry)

    def _make_allocator(self, context: NodeContext, fault: FaultPoint) -> Allocator:
        pods = self._pods
        return Allocator(
            context,
            self.state,
            self._file,
            endpoints=self._endpoints,
            policy=self.policy,
            is_running=lambda uid, name: not pods.sources_ready() and pods.is_running(uid, name),
            fault=fault,
            providers=self._providers,
        )

    def _pod_resources_server(
        self, context: NodeContext, directory: Path | None
    ) -> PodResourcesServer | None:
        if directory is None:
            return None
        pods = self._pods
        return PodResourcesServer(
            directory.resolve(),
            self.state,
            active=pods.active,
            listed=pods.active if context.config.gate(LIST_ACTIVE_GATE, True) else pods.all,
            collect=self.collect,
            registry=context.registry,
            tasks=context.tasks,
        )

    def add_provider(self, provider: HintProvider) -> None:
        """Align pods with what another provider hints, too."""
        self._providers.append(provider)

    def publish_pinned(self, pinned: PinnedResources) -> None:
        """Show the CPUs and memory of containers in the pod-resources API."""
        if self._pod_resources is not None:
            self._pod_resources.pinned = pinned

    def show_claims(self, claims: ClaimsOf, describe: Callable[[], list[dict[str, Any]]]) -> None:
        """Show the claims of containers in the pod-resources API, and all of them in `describe`."""
        self._describe_claims = describe
        if self._pod_resources is not None:
            self._pod_resources.claims = claims

    def claim(self) -> None:
        """Claim the sockets and clear the plugin directory; `start` does this too.

        Raises `Refused`, without any change, if another process serves one of them.
        """
        if self._claimed:
            return
        if self._pod_resources is not None:
            self._pod_resources.claim()
        self._registration.claim()
        self._claimed = True

    async def start(self) -> None:
        """Read the checkpoint, then start answering plugins."""
        self.claim()
        now = self._clock()
        self.state.restore(self._file.load(now), now)
        await self._file.start()
        await self._registration.start()
        if self._pod_resources is not None:
            await self._pod_resources.start()

    async def stop(self) -> None:
        """End all connections and write the checkpoint. Pods keep their devices."""
        servers = (self._pod_resources, self._registration)
        stops = [server.stop for server in servers if server is not None]
        await stop_all([*stops, self._end_connections, self._following.stop, self._file.stop])

    async def _end_connections(self) -> None:
        endpoints = list(self._endpoints.values())
        self._endpoints.clear()
        await asyncio.gather(*(endpoint.close() for endpoint in endpoints), self._closing.wait())

    # Plugins

    async def connect(self, resource: str, socket: Path) -> None:
        """Connect to a plugin and follow its devices; it replaces an earlier plugin of the same resource.

        Raises a `KubengineError` if the plugin cannot be reached or does not return its options, and
        `Unavailable` if a plugin that registered later is connected already.
        """
        check_resource_name(resource)
        endpoint = Endpoint(resource, socket, self._deadlines)
        try:
            await endpoint.connect()
            earlier = self._endpoints.get(resource)
            # A plugin that starts again may register while the agent still waits for its former process.
            if earlier is not None and earlier.number > endpoint.number:
                raise Unavailable(f"replaced by the plugin at {earlier.path}", subject=resource)
        except BaseException:
            await endpoint.close()
            raise
        # Before the earlier one is closed: the end of its stream must not count as a loss of the plugin,
        # which would make all devices unhealthy.
        self._endpoints[resource] = endpoint
        self.state.connect(resource, self._clock(), prepares=endpoint.options.pre_start_required)
        endpoint.watching = self._following.start(self._follow(endpoint), resource)
        log.info("plugin of %s registered at %s", resource, socket)
        if earlier is not None:
            log.info("plugin of %s at %s is replaced by %s", resource, earlier.path, socket)
            await earlier.close()

    async def disconnect(self, resource: str, socket: Path) -> None:
        """Disconnect from a plugin, unless another one has replaced it."""
        endpoint = self._endpoints.get(resource)
        if endpoint is not None and endpoint.path == socket:
            self._lost(endpoint)
            await endpoint.close()

    async def _follow(self, endpoint: Endpoint) -> None:
        resource = endpoint.resource
        try:
            async for message in endpoint.devices():
                if self._endpoints.get(resource) is not endpoint:
                    return
                inventory = self.state.resources[resource].inventory
                before = inventory.complaint
                changed = self.state.receive(resource, message)
                if inventory.complaint not in ("", before):
                    log.warning("plugin of %s lists %s", resource, inventory.complaint)
                if changed:
                    self._file.changed()
                    self._notify()
        except ValueError as error:
            log.error("plugin of %s: %s", resource, error)
        finally:
            if self._endpoints.get(resource) is endpoint:
                self._lost(endpoint)
                # In a task of its own: `close` awaits the task that follows the plugin, which is this one
                # unless the plugin was replaced meanwhile.
                self._closing.start(endpoint.close(), resource)

    def _lost(self, endpoint: Endpoint) -> None:
        del self._endpoints[endpoint.resource]
        self.state.disconnect(endpoint.resource, self._clock())
        log.warning("the plugin of %s has disconnected: all its devices are unhealthy", endpoint.resource)
        self._file.changed()
        self._notify()

    def _notify(self) -> None:
        self._wake()
        self._on_change()

    def _wake(self) -> None:
        """Wake the waiting pods."""
        self._news.set()
        self._news = asyncio.Event()

    # Pods

    async def allocate(self, pod: Pod, report: ReportWaiting = report_nothing) -> None:
        """Allocate the pod's devices, or reject it; return when the assignment is on disk.

        Raises `AdmissionRejected`: UnexpectedAdmissionError or TopologyAffinityError. A pod that already has
        its devices keeps them. A rejection is postponed while terminating pods hold devices of a needed
        kind, or a plugin has yet to come back: `report` receives the reason, and the pod waits within the
        limits of `admission_retry`.
        """
        begun = time.perf_counter()
        tally = AlignmentTally()
        self._pending[pod.uid] = self._pending.get(pod.uid, 0) + 1
        self._metrics.requests.inc()
        try:
            await self.await_plugins(pod, report)
            begun = time.perf_counter()
            await self._allocate(pod, report, tally)
        except TopologyError as error:
            self._count_error()
            raise AdmissionRejected("TopologyAffinityError", str(error)) from error
        except AllocationError as error:
            self._count_error()
            raise AdmissionRejected(error.reason, error.message) from error
        except (SelectionError, KubengineError) as error:
            self._count_error()
            message = f"Allocate failed due to {reason_of(error)}, which is unexpected"
            raise AdmissionRejected("UnexpectedAdmissionError", message) from error
        finally:
            self._pending[pod.uid] -= 1
            if not self._pending[pod.uid]:
                del self._pending[pod.uid]
            self._waiting = {key: until for key, until in self._waiting.items() if key[0] != pod.uid}
            self._allocator.count(tally)
            self._metrics.milliseconds.observe((time.perf_counter() - begun) * 1000)

    def _count_error(self) -> None:
        # The policy none aligns nothing, so the kubelet counts none of its failures.
        if self.policy.name != "none":
            self._metrics.errors.inc()

    async def _allocate(self, pod: Pod, report: ReportWaiting, tally: AlignmentTally) -> None:
        while True:
            self.collect()
            news = self._news
            try:
                await self._allocator.pod(pod, tally)
            except (SelectionError, AllocationError, TopologyError, KubengineError) as error:
                # A call fails at once when the plugin goes away, while its device stream may end a moment
                # later. Only this end marks the plugin as away and lets the pod wait.
                if isinstance(error, Unavailable) and not self._absent_plugins(pod):
                    await self._loss_shows()
                passing = transient_refusal(
                    self.state,
                    pod,
                    is_terminating=self._pods.is_terminating,
                    now=self._clock(),
                    allowance=self._section.admission_retry,
                    pinned=[uid for one in self._providers if one.concerns(pod) for uid in one.pod_uids],
                )
                plugins_refusal = isinstance(error, KubengineError)
                if passing is None or (plugins_refusal and passing.reason != AWAITING_PLUGIN):
                    raise
                if not await self._wait(pod, passing, report, news):
                    raise
            else:
                return

    async def _loss_shows(self) -> None:
        """Return when the loss of a plugin may have been noticed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOSS_SHOWS_SECONDS):
                await self._news.wait()

    async def _wait(
        self, pod: Pod, passing: TransientRefusal, report: ReportWaiting, news: asyncio.Event
    ) -> bool:
        """Wait for `news`; return False if the pod has waited as long as it may."""
        now = asyncio.get_running_loop().time()
        self._waiting = {key: until for key, until in self._waiting.items() if until > now - FORGET_WAITING}
        graces = longest_grace(p for p in self._pods.active() if p.uid in passing.holders)
        key = (pod.uid, passing.reason)
        reported = key in self._waiting
        until = self._waiting.setdefault(key, now + graces + self._section.admission_retry)
        if until <= now:
            return False
        if not reported:
            await report(passing.reason, passing.message)
        try:
            async with asyncio.timeout_at(until):
                await news.wait()
        except TimeoutError:
            log.warning("gave up admitting pod %s: %s", pod.full_name, passing.message)
            return False
        return True

    async def await_plugins(self, pod: Pod, report: ReportWaiting = report_nothing) -> None:
        """Wait, with `admission_retry`, for plugins that the pod needs and that went away, but not longer.

        Returns in any case; callers then admit or reject. `allocate` waits too, within the same
        allowance. A node that admits pods in turn waits here first, where no other pod is behind.
        """
        while self.state.resources:
            news = self._news
            away = self._absent_plugins(pod)
            if not away or not await self._wait(pod, awaiting_plugins(away), report, news):
                return

    def _absent_plugins(self, pod: Pod) -> list[str]:
        """Return the needed resources whose plugin has yet to come back."""
        allowance = self._section.admission_retry
        return plugins_to_come(self.state, pod, now=self._clock(), allowance=allowance)

    async def container_config(self, pod: Pod, container_name: str) -> DeviceRunOptions:
        """Return what the container's devices add to its configuration; calls PreStartContainer where plugins
        want it.

        Raises `Refused` or `Unavailable` naming the resource; the container is then tried again later.
        """
        if not self.state.resources:
            return DeviceRunOptions()
        container = _container(pod, container_name)
        lost = False
        for resource in self.state.needs(container):
            entry = self.state.held(pod.uid, container.name, resource)
            if entry is None:
                lost = True
            else:
                await self._pre_start(entry)
        if lost and any(active.uid == pod.uid for active in self._pods.active()):
            self.collect()
            self._slimmed.discard(pod.uid)
            try:
                await self._allocator.container(pod, container)
            except (SelectionError, TopologyError) as error:
                raise Unavailable(str(error), subject=f"{pod.full_name}/{container.name}") from error
            for entry in self.state.entries_of(pod.uid, container.name):
                await self._pre_start(entry)
        return run_options(self.state.entries_of(pod.uid, container.name))

    async def _pre_start(self, entry: CheckpointEntry) -> None:
        """Have the plugin prepare the devices of a container that is about to start, if it wants that."""
        resource = entry.resource_name
        if not self.state.resources[resource].prepares:
            return
        endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise Unavailable("its plugin, which has to prepare the devices, is away", subject=resource)
        await endpoint.pre_start(sorted(entry.devices))

    def health(self, pod_uid: str, container_name: str) -> dict[str, dict[str, bool]]:
        """Return a container's devices: resource → device → healthy, as far as known."""
        if not self.state.resources:
            return {}
        return {
            entry.resource_name: {
                device: not self.state.resources[entry.resource_name].inventory.is_unhealthy(device)
                for device in sorted(entry.devices)
            }
            for entry in self.state.entries_of(pod_uid, container_name)
        }

    def count_failure(self, pod: Pod, lacking: Collection[str]) -> None:
        """Count a failed allocation, in the first manager of a resource that the node lacks for the pod."""
        for provider in self._providers:
            if provider.count_failure(pod, lacking):
                return

    def pod_removed(self, pod_uid: str) -> None:
        """Release the devices of a pod that is gone."""
        self._slimmed.discard(pod_uid)
        pinned = any(pod_uid in provider.pod_uids for provider in self._providers)
        for provider in self._providers:
            provider.release(pod_uid)
        held = self.state.forget(pod_uid)
        if held:
            self._file.changed()
        if held or pinned:
            self._wake()

    def app_containers_started(self, pod: Pod) -> Pod | None:
        """Release, with `release_init_surplus`, devices that only ordinary init containers used.

        Returns once per pod how others' admission should count it from now on: without the devices of its
        ordinary init containers. Returns None if nothing is released.
        """
        if not self._section.release_init_surplus or pod.uid in self._slimmed:
            return None
        ordinary = [container for container in pod.init_containers if not container.is_sidecar]
        if not any(self.state.needs(container) for container in ordinary):
            return None
        self._slimmed.add(pod.uid)
        for container in ordinary:
            for entry in self.state.entries_of(pod.uid, container.name):
                self.state.unassign(entry)
                self._file.changed()
        return _without_devices(pod, {c.name: self.state.needs(c) for c in ordinary})

    def adopt(self, pod: Pod) -> None:
        """Adopt a pod of an earlier agent: allocate CPUs and memory that it has lost."""
        for provider in self._providers:
            provider.adopted(pod, self._hint_beside_devices)

    def _hint_beside_devices(self, pod: Pod, container: Container) -> Hint:
        """Return the hint for a running container's CPUs and memory; any node if no hint is good."""
        decision = self.policy.decide([one.container_hints(pod, container) for one in self._providers])
        return decision.hint if decision.admit else ANYWHERE

    def collect(self) -> None:
        """Release the devices of pods that cannot run any longer, once all pods are known."""
        holding = {*self.state.pods, *(uid for one in self._providers for uid in one.pod_uids)}
        if not self._pods.sources_ready() or not holding:
            return
        # A pod in admission is not active yet and already holds devices.
        keep = {pod.metadata.uid for pod in self._pods.active()} | self._pending.keys()
        keep.update(uid for uid in holding if uid not in keep and self._pods.may_run(uid))
        for provider in self._providers:
            provider.collect(keep)
        gone = self.state.collect(keep)
        if gone:
            log.info("devices of %d pods that no longer exist are free again", len(gone))
            self._file.changed()

    # Resources of the node

    def capacity(self) -> tuple[dict[str, int], dict[str, int], list[str]]:
        """Return (capacity, allocatable, removed resources) in devices, for the node's status."""
        if not self.state.resources:
            return {}, {}, []
        capacity, allocatable, removed = self.state.capacity(self._clock())
        if removed:
            self._file.changed()
        return capacity, allocatable, removed

    def sanitize_allocatable(self, pod: Pod, allocatable: Mapping[str, Quantity]) -> dict[str, Quantity]:
        """Return the allocatable that admission of the pod should use.

        A pod that holds devices is not rejected because their plugin is away: allocatable is then at least
        what is allocated (kubelet: `sanitizeNodeAllocatable`). The kubelet asks after the pod got its
        devices; here admission asks before, and the devices that the pod will get count as allocated.
        """
        if not self.state.resources:
            return dict(allocatable)
        held = {entry.resource_name for entry in self.state.entries_of(pod.uid)}
        missing = {name: count for name, count in self.state.pod_needs(pod).items() if name not in held}
        if not held and not missing:
            return dict(allocatable)
        result = dict(allocatable)
        allocated = self.state.allocated()
        for name in allocated.keys() | missing.keys():
            count = allocated.get(name, 0) + missing.get(name, 0)
            if name not in result or result[name].value < count:
                result[name] = Quantity.from_value(count)
        return result

    # Queries

    def describe(self, *, resource: str = "", explain: str = "") -> dict[str, Any]:
        """Return resources (or one), their devices and owners; `explain` (a pod) adds the reasons.

        Raises `InvalidInput` if there is no such resource or pod.
        """
        if resource and resource not in self.state.resources:
            raise InvalidInput(f"no resource {resource!r}")
        answer = describe_devices(self.state, self._pods.active(), self.capacity(), self._endpoints)
        if resource:
            answer["resources"] = [one for one in answer["resources"] if one["name"] == resource]
        else:
            answer["claims"] = self._describe_claims()
        if explain:
            answer["explain"] = explain_pod(
                self.state, self._pods.active(), explain, self._allocator.explanations
            )
        return answer


def _topology_policy(config: KubeletConfiguration, numa: Numa) -> TopologyPolicy:
    options = config.topology_manager_policy_options
    return TopologyPolicy.from_config(
        config.topology_manager_policy, config.topology_manager_scope, options, numa
    )


def _container(pod: Pod, name: str) -> Container:
    for container in pod.every_container:
        if container.name == name:
            return container
    raise InvalidInput(f"no container {name!r}", subject=pod.full_name)


def _without_devices(pod: Pod, needs: Mapping[str, Mapping[str, int]]) -> Pod:
    """Return a copy of the pod whose init containers do not ask for the devices in `needs`."""

    def slim(container: Container) -> Container:
        dropped = needs.get(container.name, {})
        kept = ResourceRequirements(
            requests={name: amount for name, amount in container.requests.items() if name not in dropped},
            limits={name: amount for name, amount in container.limits.items() if name not in dropped},
        )
        return msgspec.structs.replace(container, resources=kept) if dropped else container

    init = [slim(container) for container in pod.init_containers]
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, init_containers=init))
