"""Builds the CRI configuration of a container: environment, mounts, devices and amounts."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from engine.api.errors import InvalidInput, NotFound
from engine.api.pod import Container, EphemeralContainer, Pod, VolumeMount
from engine.api.quantity import Quantity
from engine.cgroups.formulas.containers import ContainerResources
from engine.cri.paths import logged_attempts, pod_log_directory
from engine.cri.records import PodRecord
from engine.devices.run_options import DeviceRunOptions
from engine.dra.claims import has_claims, without_claimed
from engine.host.node_context import NodeContext
from engine.node.controlplane.control_plane import ClusterObjects, config_maps_of, secrets_of
from engine.node.images.pull import PresentImage
from engine.node.nodeinfo.addresses import HostAddresses, pod_ips
from engine.node.runtime_view.runtime_health import HandlerFeatures
from engine.node.spec import cri_config
from engine.node.spec.dns import pod_hostname
from engine.node.spec.env_file import EnvFile
from engine.node.spec.environment import EnvSources, container_environment
from engine.node.spec.security import effective_security
from engine.node.sync.ephemeral_containers import target_id
from engine.node.sync.services import Allocations, RuntimeServices, VolumeServices
from engine.node.sync.status import is_recursive_read_only
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.block_device import block_devices
from engine.node.volumes.claims import is_read_only
from engine.node.volumes.container_files import hosts_file, termination_message_file
from engine.node.volumes.env_files import env_files
from engine.node.volumes.image import check_sub_path
from engine.node.volumes.pod_volumes import in_thread
from engine.node.volumes.sub_path import expanded_sub_path, mount_sub_path
from engine.wire import cri_v1_pb2 as cri

T = TypeVar("T")
_RESOURCES = ContainerResources.__struct_fields__
_AMOUNTS = attrgetter(*_RESOURCES)


class ContainerConfigBuilder:
    """Build the configurations of containers that are about to be created."""

    def __init__(
        self,
        context: NodeContext,
        runtime: RuntimeServices,
        addresses: HostAddresses,
        volumes: VolumeServices,
        allocations: Allocations,
        objects: ClusterObjects,
        allocatable: Callable[[], Mapping[str, Quantity]],
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._addresses = addresses
        self._volumes = volumes
        self._allocations = allocations
        self._objects = objects
        self._allocatable = allocatable
        self._seccomp = context.root / "seccomp"
        self._logs = Path(context.config.pod_logs_dir)

    async def build(
        self,
        pod: Pod,
        container: Container,
        volumes: Mapping[str, Path],
        record: PodRecord,
        sandbox: cri.PodSandboxConfig,
        images: Mapping[str, PresentImage],
        attempts: tuple[int | None, int],
    ) -> cri.ContainerConfig:
        """Build the configuration of a container.

        `images` maps the name of each image volume to its image, and '' to the container's own. The higher of
        `attempts` is used; if the first is None, the logs decide. Raises `InvalidInput`, `Refused` and
        `OSError`.
        """
        image = images[""]
        assert record.sandbox is not None
        claimed = self._allocations.claims.container_devices(pod, container) if has_claims(pod) else []
        grant = await self._allocations.devices.container_config(without_claimed(pod), container.name)
        ips = pod_ips(pod, record.sandbox.ips, self._addresses.ips)
        files = await in_thread(pod, env_files, container, volumes) if container.env else {}
        given = await self._env_sources(pod, container, ips, files)
        environment = container_environment(pod, container, given)
        environment = {**environment, **grant.envs}
        features = self._runtime.health.features.of_handler(record.sandbox.handler)
        attempt, mounts = await in_thread(
            pod, self._files, pod, container, features, volumes, images, environment, ips, attempts
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
                self._allocations.placement.place(
                    pod, container, self._allocations.cgroups.container_resources(pod, container)
                )
            ),
            users=_users(sandbox),
            target_id=target_id(container, record) if isinstance(container, EphemeralContainer) else "",
            seccomp_root=self._seccomp,
            devices=[
                *(block_devices(pod, container, volumes) if container.volume_devices else ()),
                *grant.devices,
            ],
            cdi_devices=_cdi_devices(claimed, grant) if claimed or grant.cdi_devices else [],
            annotations=grant.annotations,
        )
        return cri_config.container_config(pod, container, inputs, self._context.config)

    def hold_contents(self, pod: Pod, container: Container) -> AbstractAsyncContextManager[None]:
        """Keep the files that the container's subPaths lead to until the runtime has mounted them."""
        written = {volume.name for volume in pod.spec.volumes or [] if is_agent_written(volume)}
        mounts = container.volume_mounts or []
        if any(m.name in written and (m.sub_path or m.sub_path_expr) for m in mounts):
            return self._volumes.manager.hold_contents(pod.uid)
        return nullcontext()

    async def _env_sources(
        self,
        pod: Pod,
        container: Container,
        ips: tuple[str, ...],
        files: Mapping[tuple[str, str], EnvFile],
    ) -> EnvSources:
        """Collect the sources of the environment.

        Raises `NotFound` for a required object that does not exist, and `Refused` for one that is not known
        yet.
        """
        objects = self._objects
        return EnvSources(
            pod_ips=ips,
            host_ips=self._addresses.ips,
            allocatable=self._allocatable() if container.env else {},
            services=objects.services(),
            config_maps=await _named(config_maps_of(container), partial(objects.config_map, pod)),
            secrets=await _named(secrets_of(container), partial(objects.secret, pod)),
            files=files,
        )

    def _files(
        self,
        pod: Pod,
        container: Container,
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
        # A new container must not write into the log of an earlier one that the runtime has lost.
        if known is None:
            known = _attempts_logged(pod_log_directory(self._logs, pod) / container.name)
        attempt = max(least, known)
        return attempt, [
            *self._volume_mounts(
                pod,
                container,
                volumes,
                images,
                environment,
                features.recursive_read_only_mounts,
            ),
            *self._own_mounts(pod, container, ips, attempt),
        ]

    def _volume_mounts(
        self,
        pod: Pod,
        container: Container,
        volumes: Mapping[str, Path],
        images: Mapping[str, PresentImage],
        environment: Mapping[str, str],
        recursive: bool,
    ) -> Iterator[cri.Mount]:
        """Build the volume mounts; `recursive`: the runtime supports recursive read-only mounts."""
        if not container.volume_mounts:
            return
        specs = {volume.name: volume for volume in pod.spec.volumes or []}
        directory = self._volumes.directories.pod_directory(pod.uid)
        selinux = self._volumes.directories.selinux
        mounted = self._volumes.manager.mounted_volumes(pod.uid) if selinux.enabled else {}
        for index, mount in enumerate(container.volume_mounts):
            volume = specs[mount.name]
            sub_path = expanded_sub_path(mount, environment)
            if volume.image is not None:
                check_sub_path(sub_path, self._runtime.name, self._runtime.version)
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
                relabel=mount.name in mounted and mounted[mount.name].relabel,
            )

    def _own_mounts(
        self, pod: Pod, container: Container, ips: tuple[str, ...], attempt: int
    ) -> list[cri.Mount]:
        """Build the mounts of every container: its termination message file, and /etc/hosts unless a volume
        is there.
        """
        mounts, selinux = [], self._volumes.directories.selinux.enabled
        paths = {os.path.normpath(mount.mount_path) for mount in container.volume_mounts or []}
        directory = self._volumes.directories.pod_directory(pod.uid)
        if "/etc/hosts" not in paths:
            file = hosts_file(directory, pod, ips, pod_hostname(pod, self._context.config.cluster_domain))
            mounts.append(cri_config.mount("/etc/hosts", file, relabel=selinux))
        if container.termination_message_path:
            file = termination_message_file(directory, container, attempt)
            mounts.append(cri_config.mount(container.termination_message_path, file, relabel=selinux))
        return mounts


def _attempts_logged(directory: Path) -> int:
    """Return one more than the newest attempt that left a log; the runtime may have lost earlier
    containers.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return 0
    return max(logged_attempts(names), default=-1) + 1


def _cdi_devices(claimed: Sequence[str], grant: DeviceRunOptions) -> list[cri.CDIDevice]:
    """Return the CDI devices, those of claims first, each once: a runtime refuses a duplicate."""
    names = dict.fromkeys([*claimed, *(device.name for device in grant.cdi_devices)])
    return [cri.CDIDevice(name=name) for name in names]


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
        except NotFound:
            if not optional:
                raise
    return found


def cri_resources(values: ContainerResources) -> cri.LinuxContainerResources:
    """Convert the values of `engine.cgroups` to CRI; huge pages become (size, limit) pairs."""
    fields = dict(zip(_RESOURCES, _AMOUNTS(values), strict=True))
    limits = fields.pop("hugepage_limits")
    if not limits:
        return cri.LinuxContainerResources(**fields)
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
