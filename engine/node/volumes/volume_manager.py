"""Manages pods' volumes from setup to removal, and updates their contents when API objects change.

When an object, a label, an annotation or a token changes, one task per pod writes the volume at once. The
task ends when no volume is stale. Operations on the volumes of one pod are serialized: none is set up while,
or after, they are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from engine.api.duration import RetryDelays
from engine.api.errors import NotFound, Refused
from engine.api.events import WARNING
from engine.api.node import Node
from engine.api.objects.storage import LocalVolume
from engine.api.pod import Pod, Volume
from engine.api.quantity import Quantity
from engine.host.node_context import NodeContext
from engine.host.selinux import takes_labels
from engine.host.threads import to_own_thread
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.claims import (
    BoundVolume,
    bound_volume,
    claim_name,
    cloud_volume,
    in_tree_source,
    is_cloud_volume,
    is_csi_volume,
    is_read_only,
    mount_options,
)
from engine.node.volumes.contents import Contents, ContentSource
from engine.node.volumes.csi_storage import CsiStorage
from engine.node.volumes.intree_storage import InTreeStorage
from engine.node.volumes.local_devices import LocalDevices
from engine.node.volumes.mounted_volumes import MountedVolume
from engine.node.volumes.pod_volumes import PodVolumes, VolumeSource, in_thread, used_volumes
from engine.node.volumes.refusals import UnprocessedVolume, VolumeRefused, refusing
from engine.node.volumes.selinux_labels import is_relabelled, mount_label
from engine.node.volumes.volume_counts import UNMOUNT, VolumeCounts, mounting, plugin_name

if TYPE_CHECKING:
    from engine.node.volumes.expansion import VolumeExpander

RETRIES: Final = RetryDelays(1.0, 120.0)
PATIENCE_SECONDS: Final = 60.0
REPUBLISH_SECONDS: Final = 60.0
EXPANSION_SECONDS: Final = 60.0

log = logging.getLogger("kubengine.volumes")


class VolumeHost(msgspec.Struct, frozen=True):
    """Return the node's current properties, as the kubelet's `VolumeHost` does for its volume plugins."""

    host_ips: Callable[[], tuple[str, ...]]
    node: Callable[[], Node]
    allocatable: Callable[[], Mapping[str, Quantity]]


class VolumeManager:
    """Manage the volumes of one node."""

    def __init__(
        self,
        context: NodeContext,
        volumes: PodVolumes,
        objects: ClusterObjects,
        csi: CsiStorage,
        local: LocalDevices,
        in_tree: InTreeStorage,
        host: VolumeHost,
    ) -> None:
        self._volumes = volumes
        self._objects = objects
        self._csi = csi
        self._local = local
        self._in_tree = in_tree
        self._host = host
        self._recorder = context.recorder
        self._clock, self._steady = context.clock, context.steady
        self._tasks = context.tasks.passing("volumes")
        self._states: dict[str, _VolumeState] = {}
        self._counts = VolumeCounts(context.registry, self._states.values)
        objects.on_change(self._changed)

    async def start(self) -> None:
        """Remove what an earlier agent left of pods that are gone. Raises `Refused`."""
        await self._csi.start()
        await self._local.sweep()
        await self._in_tree.start()

    def follow(self, pod: Pod) -> None:
        """Follow the objects that the pod refers to from now on."""
        self._objects.follow(pod)
        state = self._states.get(pod.uid)
        if state is None or state.removing:
            self._states[pod.uid] = _VolumeState(pod)
        else:
            state.pod = pod

    async def set_up(self, pod: Pod) -> Mapping[str, Path]:
        """Set up the volumes; return name → host path. Raises `VolumeRefused` naming the volume.

        If the caller is cancelled, the setup continues to its end.
        """
        self.follow(pod)
        result: asyncio.Future[Mapping[str, Path]] = asyncio.get_running_loop().create_future()
        # A separate task: cancelling the caller must not cancel a driver's call halfway.
        self._tasks.start(self._set_up(self._states[pod.uid], result), f"of {pod.full_name}")
        return await result

    def mounted_volumes(self, uid: str) -> Mapping[str, MountedVolume]:
        """Return the volumes that have been set up for a pod, by name."""
        state = self._states.get(uid)
        return {} if state is None or state.removing else state.mounted

    @asynccontextmanager
    async def hold_contents(self, uid: str) -> AsyncIterator[None]:
        """Write no new contents into a pod's volumes meanwhile; changes are written afterwards.

        The runtime cannot mount the file of a subPath that was replaced after the agent opened it. A
        kubelet updates volumes before it starts containers, in the same worker.
        """
        state = self._states.get(uid)
        if state is None:
            yield
            return
        # Taken so that an update in progress ends first.
        async with state.lock:
            state.holds += 1
        try:
            yield
        finally:
            state.holds -= 1
            if state.stale:
                self._changed(uid)

    def pod_changed(self, pod: Pod) -> None:
        """Handle changed labels, annotations or resource amounts of the pod."""
        if pod.uid in self._states:
            self.follow(pod)
            self._changed(pod.uid)

    async def remove_volumes(self, uid: str) -> None:
        """Remove the volumes of a pod that no longer runs. Raises `Refused`."""
        await self._remove(uid, self._volumes.remove_volumes)

    async def tear_down(self, uid: str) -> None:
        """Remove everything that the pod has on disk. Raises `Refused`."""
        await self._remove(uid, self._volumes.tear_down)

    async def stop(self) -> None:
        """Stop, and leave volumes as they are."""
        for state in self._states.values():
            state.cancel_timer()
        await self._tasks.stop()
        await self._csi.stop()
        await self._in_tree.stop()

    async def _remove(self, uid: str, remove: Callable[[str], None]) -> None:
        self._objects.forget(uid)
        state = self._states.get(uid)
        if state is not None:
            state.begin_removal()
            state.cancel_timer()
            try:
                # The pod worker retries: a driver's call may take minutes, and must end first.
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await state.lock.acquire()
            except TimeoutError:
                raise Refused("the pod's volumes are still being set up") from None
            # The lock only served to wait for the setup: `removing` prevents another setup.
            state.lock.release()
        with self._counts.timed() as durations, ExitStack() as operations:
            for plugin in {plugin for plugin, here in (state.plugins() if state is not None else ()) if here}:
                operations.enter_context(durations.of(plugin, UNMOUNT))
            pod = state.pod if state is not None else None
            # Mounts of subPaths keep the volumes busy, so they go first; local devices are released last,
            # when nothing of the pod is mounted any longer.
            await in_thread(pod, self._volumes.remove_sub_paths, uid)
            await self._csi.tear_down(uid)
            await self._in_tree.tear_down(uid)
            await in_thread(pod, remove, uid)
            await self._local.release(uid)
        if self._has_claims:
            self._expander.forget(uid)
        self._states.pop(uid, None)

    async def _set_up(self, state: _VolumeState, result: asyncio.Future[Mapping[str, Path]]) -> None:
        try:
            async with state.lock:
                # Cleared before the contents are read, so that a change during the read marks them stale
                # again.
                state.stale = False
                contents: dict[str, Contents] = {}
                bound: dict[str, BoundVolume] = {}
                if state.pod.spec.volumes:
                    contents = await self._contents(state)
                    bound = await self._reserve_local(state.pod, await self._bound(state.pod))
                sources: dict[str, VolumeSource] = {**contents, **bound}
                # The pod may have been removed while objects were read.
                if state.removing:
                    raise VolumeRefused("the pod's volumes are being removed")
                with self._counts.timed() as durations:
                    set_up = partial(self._volumes.set_up, durations=durations)
                    allocatable = self._host.allocatable()
                    paths = await in_thread(state.pod, set_up, state.pod, sources, allocatable=allocatable)
                volumes: dict[str, MountedVolume] = {}
                if state.pod.spec.volumes:
                    specs = {volume.name: volume for volume in used_volumes(state.pod)}
                    local = {
                        name: self._mounted_volume(specs[name], bound.get(name), path)
                        for name, path in paths.items()
                    }
                    volumes = local | await self._publish_all(state, bound)
                    await self._expand_at_mount(state.pod, volumes)
                    self._schedule_update(state, contents)
                state.mounted = volumes
                state.is_set_up = True
            # `_changed` starts no refresh before `is_set_up`, so a change during the setup is handled here.
            if state.stale:
                self._changed(state.pod.uid)
        except Exception as error:
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result({name: volume.path for name, volume in volumes.items()})
        finally:
            # If this task was cancelled because the node stops, the caller must not wait forever.
            result.cancel()

    def _changed(self, uid: str) -> None:
        state = self._states.get(uid)
        if state is None:
            return
        state.stale = True
        if state.is_set_up and not state.refreshing:
            state.refreshing = True
            self._tasks.start(self._refresh(state), f"of {state.pod.full_name}")

    async def _refresh(self, state: _VolumeState) -> None:
        """Write until the contents are current, or a failure requires a pause."""
        try:
            while state.stale and not state.removing:
                async with state.lock:
                    if state.holds:
                        # Still stale: `hold_contents` starts another update.
                        return
                    state.stale = False
                    try:
                        contents = await self._contents(state)
                        await self._write(state, contents)
                        await self._republish(state)
                        await self._expand(state)
                    except VolumeRefused as error:
                        self._update_failed(state, error)
                    else:
                        state.failures, state.reported = 0, ""
                        self._schedule_update(state, contents)
        finally:
            state.refreshing = False

    async def _contents(self, state: _VolumeState) -> dict[str, Contents]:
        source = ContentSource(state.pod, self._objects, self._host.host_ips(), self._host.allocatable())
        contents = {}
        for volume in used_volumes(state.pod):
            if is_agent_written(volume):
                with refusing(volume.name):
                    contents[volume.name] = await source.of(volume)
        return contents

    async def _bound(self, pod: Pod) -> dict[str, BoundVolume]:
        bound = {}
        for volume in used_volumes(pod):
            claim = claim_name(pod, volume)
            with refusing(volume.name):
                if claim is not None:
                    found = await bound_volume(pod, volume, claim, self._objects, self._host.node())
                    label = self._mount_label(pod, volume, found)
                    bound[volume.name] = replace(found, label=label) if label else found
                elif is_cloud_volume(volume):
                    bound[volume.name] = cloud_volume(volume, pod.metadata.namespace)
        return bound

    async def _reserve_local(self, pod: Pod, bound: Mapping[str, BoundVolume]) -> dict[str, BoundVolume]:
        """Reserve local volumes for the pod, and mount those on devices for the node first."""
        found = dict(bound)
        for volume in used_volumes(pod):
            each = bound.get(volume.name)
            if each is None or not isinstance(each.source, LocalVolume):
                continue
            await self._local.reserve(pod.uid, each)
            if not each.block:
                options = mount_options(volume, each)
                directory = await self._local.set_up(pod.uid, each, each.source, options)
                found[volume.name] = replace(each, directory=directory)
        return found

    def _mounted_volume(self, volume: Volume, bound: BoundVolume | None, path: Path) -> MountedVolume:
        relabel = is_relabelled(volume, bound)
        if bound is None or not isinstance(bound.source, LocalVolume):
            return MountedVolume(path, bound, relabel)
        return MountedVolume(path, bound, relabel, self._local.expand, online_expansion=True)

    def _mount_label(self, pod: Pod, volume: Volume, bound: BoundVolume) -> str:
        """Return the SELinux label to mount a volume with. Raises `VolumeRefused`."""
        try:
            return mount_label(pod, volume, bound, self._volumes.selinux)
        except Refused as error:
            raise UnprocessedVolume(volume.name, error.message) from error

    async def _publish_all(
        self, state: _VolumeState, bound: Mapping[str, BoundVolume]
    ) -> dict[str, MountedVolume]:
        """Set up CSI, NFS, iSCSI and Fibre Channel volumes in parallel, then raise the first failure."""
        volumes = [
            volume
            for volume in used_volumes(state.pod)
            if is_csi_volume(volume, bound.get(volume.name))
            or in_tree_source(volume, bound.get(volume.name)) is not None
        ]
        setups = (self._publish(state, v, bound.get(v.name)) for v in volumes)
        results = await asyncio.gather(*setups, return_exceptions=True)
        # All calls have ended here: a driver must not be called again while an earlier call runs.
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        found = zip(volumes, results, strict=True)
        return {volume.name: each for volume, each in found if isinstance(each, MountedVolume)}

    async def _publish(self, state: _VolumeState, volume: Volume, bound: BoundVolume | None) -> MountedVolume:
        with self._counts.timed() as durations, durations.of(plugin_name(volume, bound), mounting(bound)):
            storage = self._in_tree if in_tree_source(volume, bound) is not None else self._csi
            mounted = await storage.set_up(state.pod, volume, bound, state.removal)
        if mounted.relabel and self._volumes.selinux.enabled:
            return replace(mounted, relabel=await to_own_thread(takes_labels, mounted.path))
        return mounted

    @cached_property
    def _expander(self) -> VolumeExpander:
        """Return the expander, which is created only on a node with claims."""
        from engine.node.volumes.expansion import VolumeExpander

        return VolumeExpander(self._host.node().metadata.name, self._objects, self._recorder, self._clock)

    @property
    def _has_claims(self) -> bool:
        return "_expander" in self.__dict__

    async def _expand_at_mount(self, pod: Pod, volumes: Mapping[str, MountedVolume]) -> None:
        for volume in used_volumes(pod):
            mounted = volumes.get(volume.name)
            if mounted is not None and mounted.expand is not None:
                await self._expander.expand_at_mount(pod, mounted, read_only=is_read_only(volume))

    async def _republish(self, state: _VolumeState) -> None:
        names = self._csi.volumes_to_republish(state.pod.uid)
        if names:
            bound = await self._bound(state.pod)
            for volume in used_volumes(state.pod):
                if volume.name in names and not state.removing:
                    await self._publish(state, volume, bound.get(volume.name))

    async def _expand(self, state: _VolumeState) -> None:
        """Expand volumes in use; a claim that cannot be read is read again later."""
        claims = self._expandable_claims(state.pod.uid)
        for volume in used_volumes(state.pod):
            claim = claim_name(state.pod, volume)
            if claim is None or claim not in claims or state.removing:
                continue
            try:
                bound = await bound_volume(state.pod, volume, claim, self._objects, self._host.node())
            except VolumeRefused as error:
                log.info("pod %s: claim %s is not expanded yet: %s", state.pod.full_name, claim, error)
                continue
            try:
                await self._expander.expand_online(state.pod.uid, bound)
            except VolumeRefused as error:
                raise VolumeRefused(str(error), reason="VolumeResizeFailed") from error.__cause__

    def _expandable_claims(self, uid: str) -> set[str]:
        """Return the claims of a pod whose volumes may be expanded while it runs."""
        return self._expander.expandable_claims(uid) if self._has_claims else set()

    async def _write(self, state: _VolumeState, contents: Mapping[str, Contents]) -> None:
        for volume in used_volumes(state.pod):
            if volume.name in contents and not state.removing:
                with refusing(volume.name):
                    await asyncio.to_thread(
                        self._volumes.write,
                        state.pod,
                        volume,
                        contents[volume.name],
                        self._host.allocatable(),
                    )

    def _update_failed(self, state: _VolumeState, error: VolumeRefused) -> None:
        """Report a failed update, and schedule a retry unless a watch will report the missing object. The old
        contents stay.
        """
        # A namespace in deletion may lose the objects before the pod, which needs no newer contents. A
        # kubelet does not update volumes of deleted pods either (`findAndAddNewPods`).
        is_deleted = state.pod.metadata.deletion_timestamp is not None
        if str(error) != state.reported and not is_deleted:
            state.reported = str(error)
            self._recorder.pod(state.pod, WARNING, error.reason, str(error))
        # A watch reports a missing object as soon as it appears; asking again would not find it sooner.
        if not isinstance(error.__cause__, NotFound):
            state.failures += 1
            self._update_after(state, RETRIES.after(state.failures))

    def _schedule_update(self, state: _VolumeState, contents: Mapping[str, Contents]) -> None:
        """Schedule the next update: renew a token, call a driver again, or read a claim."""
        state.cancel_timer()
        first = min((each.renew_at for each in contents.values()), default=float("inf"))
        if self._csi.volumes_to_republish(state.pod.uid):
            first = min(first, self._steady() + REPUBLISH_SECONDS)
        if self._expandable_claims(state.pod.uid):
            first = min(first, self._steady() + EXPANSION_SECONDS)
        if first != float("inf"):
            self._update_after(state, max(first - self._steady(), RETRIES.first))

    def _update_after(self, state: _VolumeState, seconds: float) -> None:
        state.cancel_timer()
        if not state.removing:
            update = partial(self._changed, state.pod.uid)
            state.timer = asyncio.get_running_loop().call_later(seconds, update)


class _VolumeState:
    """Hold the state of one pod's volumes: `is_set_up` after the setup, `stale` when contents may have
    changed, `removing` during removal. `holds` counts those who want the contents to stay.
    """

    __slots__ = (
        "_removal", "failures", "holds", "is_set_up", "lock", "mounted", "pod", "refreshing", "removing",
        "reported", "stale", "timer",
    )  # fmt: skip

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.lock = asyncio.Lock()
        self._removal: asyncio.Event | None = None
        self.is_set_up = self.stale = self.refreshing = self.removing = False
        self.mounted: Mapping[str, MountedVolume] = {}
        self.failures, self.reported = 0, ""
        self.holds = 0
        self.timer: asyncio.TimerHandle | None = None

    def begin_removal(self) -> None:
        self.removing = True
        if self._removal is not None:
            self._removal.set()

    @property
    def removal(self) -> asyncio.Event:
        """Return an event that is set on removal. It is created on demand, since it takes almost 1 KiB."""
        if self._removal is None:
            self._removal = asyncio.Event()
            if self.removing:
                self._removal.set()
        return self._removal

    def plugins(self) -> Iterator[tuple[str, bool]]:
        """Return the plugin of each of the pod's volumes, and whether the volume is mounted."""
        for volume in used_volumes(self.pod):
            mounted = self.mounted.get(volume.name)
            yield plugin_name(volume, mounted.bound if mounted is not None else None), mounted is not None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
