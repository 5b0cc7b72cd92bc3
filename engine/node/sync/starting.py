"""Starts a pod: its sandbox, then one container at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType

from engine.api.errors import InvalidInput, NotFound, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Container, Pod
from engine.cri.paths import log_link
from engine.cri.records import CREATED, PodRecord, SandboxRecord
from engine.host.node_context import NodeContext
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.images.pull import ImagePuller, PresentImage, StartRefused, WantedImage, wanted_images
from engine.node.nodeinfo.addresses import HostAddresses
from engine.node.pod.life import Waiting
from engine.node.spec import cri_config
from engine.node.spec.dns import pod_dns, sandbox_hostname
from engine.node.sync.container_config import ContainerConfigBuilder, cri_resources
from engine.node.sync.hooks import HookRunner
from engine.node.sync.pod_metrics import PodMetrics
from engine.node.sync.services import Allocations, RuntimeServices
from engine.node.sync.stopping import PodStopper, grace_seconds
from engine.node.volumes.image import MOUNTS, too_old
from engine.wire import cri_v1_pb2 as cri


class SandboxRefused(Refused):
    """Raised if the runtime did not create a sandbox for a pod."""


class ClaimsRefused(Refused):
    """Raised if the devices of a pod's claims cannot be prepared."""


class StartSlot:
    """Hold one of the slots of `limit`: `async with StartSlot(limit, publish) as slot:`.

    Call `give_back` before something slow and `take` before you continue; both may be repeated. `pause` also
    publishes the pod's status, which is worth a report of its own only if the start takes long.
    """

    __slots__ = ("_held", "_limit", "_publish")

    def __init__(self, limit: asyncio.Semaphore, publish: Callable[[], Awaitable[None]]) -> None:
        self._limit = limit
        self._publish = publish
        self._held = False

    async def pause(self) -> None:
        """Give the slot back before something that may take minutes, and publish the status so far."""
        self.release()
        await self._publish()

    async def acquire(self) -> None:
        if not self._held:
            await self._limit.acquire()
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._limit.release()

    async def __aenter__(self) -> StartSlot:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SandboxStarter:
    """Start the sandboxes of pods."""

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeServices,
        addresses: HostAddresses,
        allocations: Allocations,
        objects: ClusterObjects,
        metrics: PodMetrics,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._addresses = addresses
        self._allocations = allocations
        self._objects = objects
        self._metrics = metrics

    async def runtime_handler(self, pod: Pod, sandbox: SandboxRecord | None) -> str:
        """Return the handler of the existing sandbox, or of the pod's RuntimeClass.

        Raises `SandboxRefused`.
        """
        if sandbox is not None:
            return sandbox.handler
        try:
            return await self._objects.runtime_handler(pod)
        except Refused as error:
            raise SandboxRefused(f"Failed to create pod sandbox: {error.message}") from error

    def sandbox_config(
        self, pod: Pod, attempt: int, cgroup_parent: str, handler: str
    ) -> cri.PodSandboxConfig:
        """Build the sandbox configuration, which CRI also wants with each container.

        Raises `SandboxRefused`.
        """
        try:
            return cri_config.sandbox_config(
                pod,
                attempt=attempt,
                config=self._context.config,
                cgroup_parent=cgroup_parent,
                dns=pod_dns(pod, self._context.config, self._addresses.first),
                hostname=sandbox_hostname(pod, self._context.config.cluster_domain),
                users=self._allocations.users.of(pod, handler, self._runtime.health.features)
                if pod.spec.host_users is False
                else None,
                overhead=cri_resources(self._allocations.cgroups.overhead_resources(pod)),
                resources=cri_resources(self._allocations.cgroups.sandbox_resources(pod)),
            )
        except (InvalidInput, Refused) as error:
            raise SandboxRefused(f"Failed to create pod sandbox: {error}") from error

    async def start_sandbox(self, pod: Pod, config: cri.PodSandboxConfig, handler: str) -> None:
        """Run the sandbox and read it back from the runtime. Raises `SandboxRefused`."""
        Path(config.log_directory).mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            with self._metrics.starts.sandbox(handler, namespaced=pod.spec.host_users is False):
                sandbox_id = await self._runtime.client.run_pod_sandbox(config, handler)
        except Refused as error:
            why = error.status_text or error.message
            raise SandboxRefused(f"Failed to create pod sandbox: {why}") from error
        await self._runtime.watch.refresh_sandbox(pod.uid, sandbox_id, notify=False)


class ContainerStarter:
    """Create and start containers, with the images and devices that they need."""

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeServices,
        images: ImagePuller,
        allocations: Allocations,
        configs: ContainerConfigBuilder,
        stopper: PodStopper,
        hooks: HookRunner,
        metrics: PodMetrics,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._images = images
        self._allocations = allocations
        self._configs = configs
        self._stopper = stopper
        self._hooks = hooks
        self._metrics = metrics

    async def start_container(
        self,
        pod: Pod,
        container: Container,
        volumes: Mapping[str, Path],
        sandbox: cri.PodSandboxConfig,
        slot: StartSlot,
        least_attempt: int = 0,
    ) -> None:
        """Create and start one container and run its postStart hook.

        Holds `slot` except during pulls and the hook. The attempt number is `least_attempt` or higher. Raises
        `StartRefused` with the waiting reason for the status.
        """
        await slot.acquire()
        record = self._runtime.watch.pod(pod.uid)
        attempt = await self._next_attempt(pod, container, record)
        assert record.sandbox is not None
        # Image GC must not remove an image between the lookup and the container that uses it.
        async with contextlib.AsyncExitStack() as leases:
            images: dict[str, PresentImage] = {}
            for wanted in wanted_images(pod, container):
                images[wanted.volume] = await self._present(pod, wanted, sandbox, slot, leases)
            await slot.acquire()
            await leases.enter_async_context(self._configs.hold_contents(pod, container))
            try:
                config = await self._configs.build(
                    pod, container, volumes, record, sandbox, images, (attempt, least_attempt)
                )
            except (InvalidInput, Refused, OSError) as error:
                raise _refused("CreateContainerConfigError", str(error)) from error
            try:
                with self._metrics.starts.image_volumes(container, images.keys() - {""}):
                    container_id = await self._runtime.client.create_container(
                        record.sandbox.id, config, sandbox
                    )
            except Refused as error:
                text = error.message
                runtime = self._runtime.name, self._runtime.version
                if len(images) > 1 and (why := too_old(MOUNTS, *runtime)):
                    text += f" ({why})"
                raise _refused("CreateContainerError", text) from error
            self._context.recorder.pod(pod, NORMAL, "Created", "Container created", container=container.name)
            self._allocations.placement.starting(pod, container)
            try:
                await self._runtime.client.start_container(container_id)
            except Refused as error:
                await self._runtime.watch.refresh_container(
                    pod.uid, container_id, record.sandbox.id, notify=False
                )
                raise _refused("RunContainerError", error.message) from error
        self._context.recorder.pod(pod, NORMAL, "Started", "Container started", container=container.name)
        self._let_burst(pod, container, container_id, config)
        _link_log(pod, container, container_id, config, sandbox)
        await self._refresh(record, container_id)
        self._allocations.placement.containers_changed()
        # A postStart hook may take a day; other pods start meanwhile.
        slot.release()
        await self._post_start(pod, container, container_id, record)

    async def _refresh(self, record: PodRecord, container_id: str) -> None:
        """Read a container back. The worker that started it goes on by itself and needs no notification."""
        assert record.sandbox is not None
        await self._runtime.watch.refresh_container(record.uid, container_id, record.sandbox.id, notify=False)

    def _let_burst(
        self, pod: Pod, container: Container, container_id: str, config: cri.ContainerConfig
    ) -> None:
        """Allow CFS bursts; a container works without them, so a refusal is only logged."""
        try:
            self._allocations.cgroups.set_burst(pod, container_id, config.linux.resources.cpu_quota)
        except Refused as error:
            self._context.recorder.pod(pod, WARNING, "FailedCPUBurst", str(error), container=container.name)

    async def _present(
        self,
        pod: Pod,
        wanted: WantedImage,
        sandbox: cri.PodSandboxConfig,
        slot: StartSlot,
        leases: contextlib.AsyncExitStack,
    ) -> PresentImage:
        """Return an image that is present and stays while `leases` is open. Pulls do not occupy the slot."""
        await leases.enter_async_context(self._images.lease(wanted.image))
        image = await self._images.find(pod, wanted)
        if image is None:
            await slot.pause()
            began = self._context.clock()
            try:
                image = await self._images.pull(pod, wanted, sandbox)
            finally:
                self._metrics.pulled(pod.uid, self._context.clock() - began)
        return image

    async def _next_attempt(self, pod: Pod, container: Container, record: PodRecord) -> int | None:
        """Return the next attempt number; None if the runtime has no container, so that only logs can tell.

        A container that was created but never started is removed first. If an agent died during
        StartContainer, the runtime may refuse to remove it: its processes are killed, and the worker retries
        later.
        """
        newest = record.container(container.name)
        if newest is None:
            return None
        if newest.state != CREATED:
            # A runtime that was killed during a start may report an end, or an unknown state, while the
            # process runs on. It cannot stop it either, so what is left in the cgroup is killed here.
            self._allocations.cgroups.kill_container(pod.uid, newest.id)
            return newest.attempt + 1
        try:
            await self._runtime.client.remove_container(newest.id)
        except NotFound:
            pass
        except Refused as error:
            # The runtime takes it for created while its process runs; without the process the next removal
            # succeeds.
            self._allocations.cgroups.kill_container(pod.uid, newest.id)
            await self._runtime.watch.refresh_container(pod.uid, newest.id, newest.sandbox_id, notify=False)
            text = f"cannot remove the remains of an interrupted start: {error.message}"
            raise _refused("CreateContainerError", f"{text}; if this lasts, restart the runtime") from error
        self._allocations.cgroups.kill_container(pod.uid, newest.id)
        self._runtime.watch.forget(pod.uid, [newest.id])
        return newest.attempt

    async def _post_start(self, pod: Pod, container: Container, container_id: str, record: PodRecord) -> None:
        handler = container.lifecycle.post_start if container.lifecycle is not None else None
        if handler is None:
            return
        try:
            await self._hooks.run(pod, container, container_id, handler, record.sandbox)
        except (Refused, TimeoutError) as error:
            running = self._runtime.watch.pod(pod.uid).container(container.name)
            if running is not None:
                with contextlib.suppress(Refused):
                    await self._stopper.stop_container(
                        pod, running, grace_seconds(pod, running), "FailedPostStartHook"
                    )
            waiting = Waiting("PostStartHookError", str(error) or "the hook did not end within a day")
            raise StartRefused(waiting, event="FailedPostStartHook", text="PostStartHook failed") from error


def _refused(reason: str, text: str) -> StartRefused:
    return StartRefused(Waiting(reason, text), event="Failed", text=f"Error: {text}")


def _link_log(
    pod: Pod,
    container: Container,
    container_id: str,
    config: cri.ContainerConfig,
    sandbox: cri.PodSandboxConfig,
) -> None:
    """Link the log under the name that log shippers expect. A failure is ignored: the log itself is kept."""
    meta = pod.metadata
    link = log_link(meta.namespace, meta.name, container.name, container_id)
    target = f"{sandbox.log_directory}/{config.log_path}"
    with contextlib.suppress(OSError):
        try:
            link.symlink_to(target)
        except FileNotFoundError:
            link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.symlink_to(target)
