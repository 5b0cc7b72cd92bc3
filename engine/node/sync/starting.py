"""Starts a pod: its sandbox, then one container at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.api.errors import InvalidInput, Missing, Refused
from engine.api.events import NORMAL, WARNING
from engine.api.pod import Container, Pod, VolumeMount
from engine.cgroups.formulas.containers import ContainerResources
from engine.cri.client import NotFound
from engine.cri.paths import logged_attempts, pod_log_directory
from engine.cri.records import CREATED, PodRecord, SandboxRecord
from engine.devices.run_options import DeviceRunOptions
from engine.dra.claims import without_claimed
from engine.node.controlplane.cluster_objects import config_maps_of, secrets_of
from engine.node.images.pull import PresentImage, StartRefused, WantedImage, wanted_images
from engine.node.logs.log_links import link_log
from engine.node.nodeinfo.addresses import pod_ips
from engine.node.pod.waiting import Waiting
from engine.node.runtime_view.runtime_health import HandlerFeatures
from engine.node.spec import cri_config
from engine.node.spec.dns import pod_dns
from engine.node.spec.env_file import EnvFile
from engine.node.spec.environment import EnvSources, container_environment
from engine.node.spec.hostname import pod_hostname, sandbox_hostname
from engine.node.spec.security import effective_security
from engine.node.sync.ephemeral_containers import target_id
from engine.node.sync.hooks import run_hook
from engine.node.sync.services import Services
from engine.node.sync.start_slots import StartSlot
from engine.node.sync.status import is_recursive_read_only
from engine.node.sync.stopping import grace_seconds, stop_container
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.block_device import block_devices
from engine.node.volumes.claims import is_read_only
from engine.node.volumes.container_files import hosts_file, termination_message_file
from engine.node.volumes.env_files import env_files
from engine.node.volumes.image import MOUNTS, check_sub_path, too_old
from engine.node.volumes.sub_path import mount_sub_path, wanted_part
from engine.wire import cri_v1_pb2 as cri

T = TypeVar("T")
_RESOURCES = tuple(field.name for field in dataclasses.fields(ContainerResources))


class SandboxRefused(Refused):
    """Raised if the runtime did not create a sandbox for a pod."""


class ClaimsRefused(Refused):
    """Raised if the devices of a pod's claims cannot be prepared."""


async def runtime_handler(pod: Pod, services: Services, sandbox: SandboxRecord | None) -> str:
    """Return the handler of the existing sandbox, or of the pod's RuntimeClass. Raises `SandboxRefused`."""
    if sandbox is not None:
        return sandbox.handler
    try:
        return await services.control_plane.objects.runtime_handler(pod)
    except Refused as error:
        raise SandboxRefused(f"Failed to create pod sandbox: {error.message}") from error


def sandbox_config(
    pod: Pod, services: Services, attempt: int, cgroup_parent: str, handler: str
) -> cri.PodSandboxConfig:
    """Build the sandbox configuration, which CRI also wants with each container. Raises `SandboxRefused`."""
    try:
        return cri_config.sandbox_config(
            pod,
            attempt=attempt,
            config=services.context.config,
            cgroup_parent=cgroup_parent,
            dns=pod_dns(pod, services.context.config, services.facts.host_ip),
            hostname=sandbox_hostname(pod, services.context.config.cluster_domain),
            users=services.allocations.users.of(pod, handler, services.runtime.health.features),
            overhead=cri_resources(services.cgroups.overhead_resources(pod)),
            resources=cri_resources(services.cgroups.sandbox_resources(pod)),
        )
    except (InvalidInput, Refused) as error:
        raise SandboxRefused(f"Failed to create pod sandbox: {error}") from error


async def start_sandbox(pod: Pod, services: Services, config: cri.PodSandboxConfig, handler: str) -> None:
    """Run the sandbox and read it back from the runtime. Raises `SandboxRefused`."""
    Path(config.log_directory).mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        with services.starts.counts.sandbox(handler, namespaced=pod.spec.host_users is False):
            sandbox_id = await services.runtime.client.run_pod_sandbox(config, handler)
    except Refused as error:
        why = error.status_text or error.message
        raise SandboxRefused(f"Failed to create pod sandbox: {why}") from error
    await services.runtime.watch.refresh_sandbox(pod.uid, sandbox_id, notify=False)


async def start_container(
    pod: Pod,
    container: Container,
    services: Services,
    volumes: Mapping[str, Path],
    sandbox: cri.PodSandboxConfig,
    slot: StartSlot,
    least_attempt: int = 0,
) -> None:
    """Create and start one container and run its postStart hook.

    Holds `slot` except during pulls and the hook. The attempt number is `least_attempt` or higher. Raises
    `StartRefused` with the waiting reason for the status.
    """
    await slot.take()
    record = services.runtime.watch.pod(pod.uid)
    attempt = await _next_attempt(pod, container, services, record)
    assert record.sandbox is not None
    async with contextlib.AsyncExitStack() as leases:
        images = {
            wanted.volume: await _present(pod, wanted, services, sandbox, slot, leases)
            for wanted in wanted_images(pod, container)
        }
        await slot.take()
        try:
            claimed = services.allocations.claims.container_devices(pod, container)
            grant = await services.allocations.devices.container_config(without_claimed(pod), container.name)
            attempts = attempt, least_attempt
            config = await _config(
                pod, container, services, volumes, record, sandbox, attempts, images, grant, claimed
            )
        except (InvalidInput, Refused, OSError) as error:
            raise _refused("CreateContainerConfigError", str(error)) from error
        try:
            with services.starts.counts.image_volumes(container, images.keys() - {""}):
                container_id = await services.runtime.client.create_container(
                    record.sandbox.id, config, sandbox
                )
        except Refused as error:
            text = error.message
            runtime = services.facts.runtime_name, services.facts.runtime_version
            if len(images) > 1 and (why := too_old(MOUNTS, *runtime)):
                text += f" ({why})"
            raise _refused("CreateContainerError", text) from error
    services.context.recorder.pod(pod, NORMAL, "Created", "Container created", container=container.name)
    services.allocations.placement.starting(pod, container)
    try:
        await services.runtime.client.start_container(container_id)
    except Refused as error:
        await services.runtime.watch.refresh_container(pod.uid, container_id, record.sandbox.id, notify=False)
        raise _refused("RunContainerError", error.message) from error
    services.context.recorder.pod(pod, NORMAL, "Started", "Container started", container=container.name)
    _let_burst(pod, container, services, container_id, config)
    link_log(pod, container, container_id, config, sandbox)
    await services.runtime.watch.refresh_container(pod.uid, container_id, record.sandbox.id, notify=False)
    slot.give_back()
    await _post_start(pod, container, services, container_id, record)


def _let_burst(
    pod: Pod, container: Container, services: Services, container_id: str, config: cri.ContainerConfig
) -> None:
    """Allow CFS bursts; a container works without them, so a refusal is only logged."""
    try:
        services.cgroups.set_burst(pod, container_id, config.linux.resources.cpu_quota)
    except Refused as error:
        services.context.recorder.pod(pod, WARNING, "FailedCPUBurst", str(error), container=container.name)


async def _present(
    pod: Pod,
    wanted: WantedImage,
    services: Services,
    sandbox: cri.PodSandboxConfig,
    slot: StartSlot,
    leases: contextlib.AsyncExitStack,
) -> PresentImage:
    """Return an image that is present and stays while `leases` is open. Pulls do not occupy the slot."""
    await leases.enter_async_context(services.images.lease(wanted.image))
    image = await services.images.find(pod, wanted)
    if image is None:
        await slot.pause()
        began = services.context.clock()
        try:
            image = await services.images.pull(pod, wanted, sandbox)
        finally:
            services.metrics.pulled(pod.uid, services.context.clock() - began)
    return image


async def _next_attempt(pod: Pod, container: Container, services: Services, record: PodRecord) -> int | None:
    """Return the next attempt number, or None if only the logs can tell because the runtime has no container.

    A container that was created but never started is removed first. If an agent died during StartContainer,
    the runtime may refuse to remove it: its processes are killed, and the worker retries later.
    """
    newest = record.container(container.name)
    if newest is None:
        return None
    if newest.state != CREATED:
        return newest.attempt + 1
    try:
        await services.runtime.client.remove_container(newest.id)
    except NotFound:
        pass
    except Refused as error:
        services.cgroups.kill_container(pod.uid, newest.id)
        await services.runtime.watch.refresh_container(pod.uid, newest.id, newest.sandbox_id, notify=False)
        text = f"cannot remove the remains of an interrupted start: {error.message}"
        raise _refused("CreateContainerError", f"{text}; if this lasts, restart the runtime") from error
    services.runtime.watch.forget(pod.uid, [newest.id])
    return newest.attempt


def _attempts_logged(directory: Path) -> int:
    """Return one more than the newest attempt that left a log; the runtime may have lost earlier
    containers.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return 0
    return max(logged_attempts(names), default=-1) + 1


async def _config(
    pod: Pod,
    container: Container,
    services: Services,
    volumes: Mapping[str, Path],
    record: PodRecord,
    sandbox: cri.PodSandboxConfig,
    attempts: tuple[int | None, int],
    images: Mapping[str, PresentImage],
    grant: DeviceRunOptions,
    claimed: Sequence[str],
) -> cri.ContainerConfig:
    """Build the container's configuration.

    `claimed` are the CDI ids of its claims. `images` maps the name of each image volume to its image, and ''
    to the container's own. The higher of `attempts` is used; if the first is None, the logs decide.
    """
    image = images[""]
    assert record.sandbox is not None
    ips = pod_ips(pod, record.sandbox.ips, services.facts.host_ips)
    files = await asyncio.to_thread(env_files, container, volumes) if container.env else {}
    given = await _surroundings(pod, container, services, ips, files)
    environment = container_environment(pod, container, given)
    environment = {**environment, **grant.envs}
    features = services.runtime.health.features.of_handler(record.sandbox.handler)
    attempt, mounts = await asyncio.to_thread(
        _files, pod, container, services, features, volumes, images, environment, ips, attempts
    )
    _check_non_root(pod, container, image)
    inputs = cri_config.ContainerInputs(
        attempt=attempt,
        image=image.reference,
        image_uid=image.uid,
        image_username=image.username,
        environment=environment,
        mounts=[*mounts, *grant.mounts],
        resources=cri_resources(
            services.allocations.placement.place(
                pod, container, services.cgroups.container_resources(pod, container)
            )
        ),
        users=_users(sandbox),
        target_id=target_id(container, record),
        seccomp_root=services.context.root / "seccomp",
        devices=[*block_devices(pod, container, volumes), *grant.devices],
        cdi_devices=_cdi_devices(claimed, grant),
        annotations=grant.annotations,
    )
    return cri_config.container_config(pod, container, inputs, services.context.config)


def _cdi_devices(claimed: Sequence[str], grant: DeviceRunOptions) -> list[cri.CDIDevice]:
    """Those of claims first, each once: a runtime refuses a device that is named twice."""
    names = dict.fromkeys([*claimed, *(device.name for device in grant.cdi_devices)])
    return [cri.CDIDevice(name=name) for name in names]


async def _surroundings(
    pod: Pod,
    container: Container,
    services: Services,
    ips: tuple[str, ...],
    files: Mapping[tuple[str, str], EnvFile],
) -> EnvSources:
    """Collect the sources of the environment. Raises `Missing` for a required object that does not exist, and
    `Refused` for one that is not known yet.
    """
    objects = services.control_plane.objects
    return EnvSources(
        pod_ips=ips,
        host_ips=services.facts.host_ips,
        allocatable=services.admission.allocatable(),
        services=objects.services(),
        config_maps=await _named(config_maps_of(container), partial(objects.config_map, pod)),
        secrets=await _named(secrets_of(container), partial(objects.secret, pod)),
        files=files,
    )


def _users(sandbox: cri.PodSandboxConfig) -> cri.UserNamespace | None:
    """Return the user namespace mapping of the sandbox, or None for the host's."""
    users = sandbox.linux.security_context.namespace_options.userns_options
    return users if users.mode == cri.POD else None


async def _named(wanted: Mapping[str, bool], get: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Fetch objects by name; `wanted` says which of them are optional."""
    found = {}
    for name, optional in wanted.items():
        try:
            found[name] = await get(name)
        except Missing:
            if not optional:
                raise
    return found


def cri_resources(values: ContainerResources) -> cri.LinuxContainerResources:
    """Convert the values of `engine.cgroups` to CRI; huge pages become (size, limit) pairs."""
    fields = {name: getattr(values, name) for name in _RESOURCES}
    limits = fields.pop("hugepage_limits")
    return cri.LinuxContainerResources(
        **fields,
        hugepage_limits=[cri.HugepageLimit(page_size=size, limit=limit) for size, limit in limits.items()],
    )


def _check_non_root(pod: Pod, container: Container, image: PresentImage) -> None:
    context = effective_security(pod, container)
    if not context.run_as_non_root:
        return
    meta = pod.metadata
    whose = f'(pod: "{meta.name}_{meta.namespace}({meta.uid})", container: {container.name})'
    if context.run_as_user is not None:
        if context.run_as_user == 0:
            raise InvalidInput(f"container's runAsUser breaks non-root policy {whose}")
    elif image.uid is None and image.username:
        text = f"image has non-numeric user ({image.username}), cannot verify user is non-root"
        raise InvalidInput(f"container has runAsNonRoot and {text} {whose}")
    elif not image.uid:
        raise InvalidInput(f"container has runAsNonRoot and image will run as root {whose}")


def _files(
    pod: Pod,
    container: Container,
    services: Services,
    features: HandlerFeatures,
    volumes: Mapping[str, Path],
    images: Mapping[str, PresentImage],
    environment: Mapping[str, str],
    ips: tuple[str, ...],
    attempts: tuple[int | None, int],
) -> tuple[int, list[cri.Mount]]:
    """Find the container's attempt and mounts. Runs in a thread, because a volume may lie on a dead file
    system.
    """
    known, least = attempts
    logs = pod_log_directory(Path(services.context.config.pod_logs_dir), pod) / container.name
    attempt = max(least, _attempts_logged(logs) if known is None else known)
    return attempt, [
        *_volume_mounts(
            pod,
            container,
            services,
            volumes,
            images,
            environment,
            features.recursive_read_only_mounts,
        ),
        *_own_mounts(pod, container, services, ips, attempt),
    ]


def _volume_mounts(
    pod: Pod,
    container: Container,
    services: Services,
    volumes: Mapping[str, Path],
    images: Mapping[str, PresentImage],
    environment: Mapping[str, str],
    recursive: bool,
) -> Iterator[cri.Mount]:
    """Build the volume mounts. `recursive` tells whether the runtime supports recursive read-only mounts."""
    specs = {volume.name: volume for volume in pod.spec.volumes or []}
    directory = services.volumes.directories.pod_directory(pod.uid)
    made = services.volumes.manager.made(pod.uid) if services.volumes.directories.selinux.enabled else {}
    for index, mount in enumerate(container.volume_mounts or []):
        volume = specs[mount.name]
        sub_path = wanted_part(mount, environment)
        if volume.image is not None:
            check_sub_path(sub_path, services.facts.runtime_name, services.facts.runtime_version)
            image = images[mount.name].reference
            yield cri_config.image_mount(mount.mount_path, volume.image.reference, image, sub_path)
            continue
        path = volumes[mount.name]
        if sub_path:
            path = mount_sub_path(directory, mount.name, path, sub_path, container.name, index)
        yield cri_config.mount(
            mount.mount_path,
            path,
            read_only=mount.read_only or is_agent_written(volume) or is_read_only(volume),
            recursive=_is_recursive(mount, recursive),
            propagation=mount.mount_propagation,
            relabel=mount.name in made and made[mount.name].relabel,
        )


def _is_recursive(mount: VolumeMount, supported: bool) -> bool:
    """Tell whether a mount is recursively read-only. Raises `InvalidInput` if that is required but not
    supported.
    """
    if mount.recursive_read_only == "Enabled" and not supported:
        text = (
            f'failed to resolve recursive read-only mode: volume "{mount.name}" requested '
            "recursive read-only mode, but it is not supported by the runtime"
        )
        raise InvalidInput(text)
    return is_recursive_read_only(mount, supported)


def _own_mounts(
    pod: Pod, container: Container, services: Services, ips: tuple[str, ...], attempt: int
) -> list[cri.Mount]:
    """Build the mounts of every container: /etc/hosts unless a volume is there, and the termination message
    file.
    """
    mounts, selinux = [], services.volumes.directories.selinux.enabled
    paths = {os.path.normpath(mount.mount_path) for mount in container.volume_mounts or []}
    directory = services.volumes.directories.pod_directory(pod.uid)
    if "/etc/hosts" not in paths:
        file = hosts_file(directory, pod, ips, pod_hostname(pod, services.context.config.cluster_domain))
        mounts.append(cri_config.mount("/etc/hosts", file, relabel=selinux))
    if container.termination_message_path:
        file = termination_message_file(directory, container, attempt)
        mounts.append(cri_config.mount(container.termination_message_path, file, relabel=selinux))
    return mounts


async def _post_start(
    pod: Pod, container: Container, services: Services, container_id: str, record: PodRecord
) -> None:
    handler = container.lifecycle.post_start if container.lifecycle is not None else None
    if handler is None:
        return
    ip = (
        record.sandbox.ips[0] if record.sandbox is not None and record.sandbox.ips else services.facts.host_ip
    )
    try:
        await run_hook(services.runtime.client, pod, container, container_id, handler, pod_ip=ip)
    except (Refused, TimeoutError) as error:
        running = services.runtime.watch.pod(pod.uid).container(container.name)
        if running is not None:
            with contextlib.suppress(Refused):
                await stop_container(
                    pod, running, services, grace_seconds(pod, running), "FailedPostStartHook"
                )
        waiting = Waiting("PostStartHookError", str(error) or "the hook did not end within a day")
        raise StartRefused(waiting, event="FailedPostStartHook", text="PostStartHook failed") from error


def _refused(reason: str, text: str) -> StartRefused:
    return StartRefused(Waiting(reason, text), event="Failed", text=f"Error: {text}")
