"""Manages pods' volumes from setup to removal, and keeps their contents as the API has them.

When an object, a label, an annotation or a token changes, the volume is written at once, by one task per pod
that ends when nothing is left to write. Operations on the volumes of one pod are serialized: none is set up
while, or after, they are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
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
from engine.host.tasks import to_own_thread
from engine.node.controlplane.control_plane import ClusterObjects
from engine.node.volumes.agent_written import is_agent_written
from engine.node.volumes.claims import (
    BoundVolume,
    bound_volume,
    claim_name,
    cloud_volume,
    in_tree_source,
    is_of_cloud,
    is_of_driver,
    is_read_only,
    mount_options,
)
from engine.node.volumes.contents import Contents, ContentSource
from engine.node.volumes.csi_storage import CsiStorage
from engine.node.volumes.intree_storage import InTreeStorage
from engine.node.volumes.local_devices import LocalDevices
from engine.node.volumes.mounted_volumes import MadeVolume
from engine.node.volumes.pod_volumes import Given, PodVolumes, in_thread, used_volumes
from engine.node.volumes.refusals import UnprocessedVolume, VolumeRefused, refusing
from engine.node.volumes.selinux_labels import is_relabelled, mount_label
from engine.node.volumes.volume_counts import UNMOUNT, VolumeCounts, mounting, plugin_name

if TYPE_CHECKING:
    from engine.node.volumes.expansion import VolumeExpander

RETRIES: Final = RetryDelays(1.0, 120.0)
PATIENCE_SECONDS: Final = 60.0
REPUBLISH_SECONDS: Final = 60.0
GROWTH_SECONDS: Final = 60.0

log = logging.getLogger("kubengine.volumes")


class ShownNode(msgspec.Struct, frozen=True):
    """Hold what volumes show of the node, or match with it, as it is now."""

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
        shown: ShownNode,
    ) -> None:
        self._volumes = volumes
        self._objects = objects
        self._csi = csi
        self._local = local
        self._in_tree = in_tree
        self._shown = shown
        self._recorder = context.recorder
        self._clock, self._steady = context.clock, context.steady
        self._working = context.tasks.passing("volumes")
        self._kept: dict[str, _Kept] = {}
        self._counts = VolumeCounts(context.registry, self._kept.values)
        objects.on_change(self._changed)

    async def start(self) -> None:
        """Remove what an earlier agent left of pods that are gone. Raises `Refused`."""
        await self._csi.start()
        await self._local.sweep()
        await self._in_tree.start()

    def follow(self, pod: Pod) -> None:
        """Follow the objects that the pod refers to from now on."""
        self._objects.follow(pod)
        kept = self._kept.get(pod.uid)
        if kept is None or kept.left:
            self._kept[pod.uid] = _Kept(pod)
        else:
            kept.pod = pod

    async def set_up(self, pod: Pod) -> Mapping[str, Path]:
        """Set up the volumes; return name → host path. Raises `VolumeRefused` naming the volume.

        If the caller gives up, the setup continues to its end.
        """
        self.follow(pod)
        made: asyncio.Future[Mapping[str, Path]] = asyncio.get_running_loop().create_future()
        # A task of its own: a caller that is cancelled halfway must not leave a driver's call without its
        # end.
        self._working.start(self._set_up(self._kept[pod.uid], made), f"of {pod.full_name}")
        return await made

    def made(self, uid: str) -> Mapping[str, MadeVolume]:
        """Return the volumes that a pod has by now, by name."""
        kept = self._kept.get(uid)
        return {} if kept is None or kept.left else kept.made

    def described(self, pod: Pod) -> None:
        """Handle changed labels, annotations or amounts of the pod."""
        if pod.uid in self._kept:
            self.follow(pod)
            self._changed(pod.uid)

    async def remove_volumes(self, uid: str) -> None:
        """Remove the volumes of a pod that no longer runs. Raises `Refused`."""
        await self._take_away(uid, self._volumes.remove_volumes)

    async def tear_down(self, uid: str) -> None:
        """Remove everything that the pod has on disk. Raises `Refused`."""
        await self._take_away(uid, self._volumes.tear_down)

    async def stop(self) -> None:
        """Stop, and leave volumes as they are."""
        for kept in self._kept.values():
            kept.forget_time()
        await self._working.stop()
        await self._csi.stop()
        await self._in_tree.stop()

    async def _take_away(self, uid: str, remove: Callable[[str], None]) -> None:
        self._objects.forget(uid)
        kept = self._kept.get(uid)
        if kept is not None:
            kept.begin_removal()
            kept.forget_time()
            try:
                # The worker tries again: a driver's call may take minutes, and must come to its end first.
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await kept.lock.acquire()
            except TimeoutError:
                raise Refused("the pod's volumes are still being set up") from None
            # Only the end of the setup was awaited: `left` keeps everybody else from beginning again.
            kept.lock.release()
        with self._counts.timed() as durations, ExitStack() as operations:
            for plugin in {plugin for plugin, here in (kept.plugins() if kept is not None else ()) if here}:
                operations.enter_context(durations.of(plugin, UNMOUNT))
            pod = kept.pod if kept is not None else None
            # Mounts of subPaths keep the volumes busy, so they go first; local devices are released last,
            # when nothing of the pod is mounted any longer.
            await in_thread(pod, self._volumes.remove_sub_paths, uid)
            await self._csi.withdraw(uid)
            await self._in_tree.withdraw(uid)
            await in_thread(pod, remove, uid)
            await self._local.release(uid)
        if self._has_claims:
            self._expander.forget(uid)
        self._kept.pop(uid, None)

    async def _set_up(self, kept: _Kept, made: asyncio.Future[Mapping[str, Path]]) -> None:
        try:
            async with kept.lock:
                # Before the contents are read: a change meanwhile makes them stale again.
                kept.stale = False
                contents: dict[str, Contents] = {}
                bound: dict[str, BoundVolume] = {}
                if kept.pod.spec.volumes:
                    contents = await self._contents(kept)
                    bound = await self._with_directories(kept.pod, await self._bound(kept.pod))
                given: dict[str, Given] = {**contents, **bound}
                # The pod may have been removed while objects were read.
                if kept.left:
                    raise VolumeRefused("the pod's volumes are being removed")
                with self._counts.timed() as durations:
                    set_up = partial(self._volumes.set_up, durations=durations)
                    allocatable = self._shown.allocatable()
                    paths = await in_thread(kept.pod, set_up, kept.pod, given, allocatable=allocatable)
                volumes: dict[str, MadeVolume] = {}
                if kept.pod.spec.volumes:
                    specs = {volume.name: volume for volume in used_volumes(kept.pod)}
                    made_here = {
                        name: self._made(specs[name], bound.get(name), path) for name, path in paths.items()
                    }
                    volumes = made_here | await self._of_drivers(kept, bound)
                    await self._grow_at_mount(kept.pod, volumes)
                    self._schedule_update(kept, contents)
                kept.made = volumes
                kept.shown = True
            # `_changed` does nothing before `shown`, so a change during the setup is caught up here.
            if kept.stale:
                self._changed(kept.pod.uid)
        except Exception as error:
            if not made.done():
                made.set_exception(error)
        else:
            if not made.done():
                made.set_result({name: volume.path for name, volume in volumes.items()})
        finally:
            # If the task itself was cancelled (the node stops), nobody else ends the caller's wait.
            made.cancel()

    def _changed(self, uid: str) -> None:
        kept = self._kept.get(uid)
        if kept is None:
            return
        kept.stale = True
        if kept.shown and not kept.refreshing:
            kept.refreshing = True
            self._working.start(self._refresh(kept), f"of {kept.pod.full_name}")

    async def _refresh(self, kept: _Kept) -> None:
        """Write until the contents are current, or a failure requires a pause."""
        try:
            while kept.stale and not kept.left:
                kept.stale = False
                async with kept.lock:
                    try:
                        contents = await self._contents(kept)
                        await self._write(kept, contents)
                        await self._publish_again(kept)
                        await self._grow(kept)
                    except VolumeRefused as error:
                        self._failed(kept, error)
                    else:
                        kept.failures, kept.reported = 0, ""
                        self._schedule_update(kept, contents)
        finally:
            kept.refreshing = False

    async def _contents(self, kept: _Kept) -> dict[str, Contents]:
        source = ContentSource(kept.pod, self._objects, self._shown.host_ips(), self._shown.allocatable())
        contents = {}
        for volume in used_volumes(kept.pod):
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
                    found = await bound_volume(pod, volume, claim, self._objects, self._shown.node())
                    label = self._mount_label(pod, volume, found)
                    bound[volume.name] = replace(found, label=label) if label else found
                elif is_of_cloud(volume):
                    bound[volume.name] = cloud_volume(volume, pod.metadata.namespace)
        return bound

    async def _with_directories(self, pod: Pod, bound: Mapping[str, BoundVolume]) -> dict[str, BoundVolume]:
        """Reserve local volumes for the pod, and mount those on devices for the node first."""
        found = dict(bound)
        for volume in used_volumes(pod):
            each = bound.get(volume.name)
            if each is None or not isinstance(each.source, LocalVolume):
                continue
            await self._local.take(pod.uid, each)
            if not each.block:
                options = mount_options(volume, each)
                directory = await self._local.set_up(pod.uid, each, each.source, options)
                found[volume.name] = replace(each, directory=directory)
        return found

    def _made(self, volume: Volume, bound: BoundVolume | None, path: Path) -> MadeVolume:
        relabel = is_relabelled(volume, bound)
        if bound is None or not isinstance(bound.source, LocalVolume):
            return MadeVolume(path, bound, relabel)
        return MadeVolume(path, bound, relabel, self._local.expand, grows=True)

    def _mount_label(self, pod: Pod, volume: Volume, bound: BoundVolume) -> str:
        """Return the SELinux label to mount a volume with. Raises `VolumeRefused`."""
        try:
            return mount_label(pod, volume, bound, self._volumes.selinux)
        except Refused as error:
            raise UnprocessedVolume(volume.name, error.message) from error

    async def _of_drivers(self, kept: _Kept, bound: Mapping[str, BoundVolume]) -> dict[str, MadeVolume]:
        """Set up the volumes of drivers, NFS and iSCSI in parallel; raise the first refusal at the end."""
        volumes = [
            volume
            for volume in used_volumes(kept.pod)
            if is_of_driver(volume, bound.get(volume.name))
            or in_tree_source(volume, bound.get(volume.name)) is not None
        ]
        making = (self._publish(kept, v, bound.get(v.name)) for v in volumes)
        made = await asyncio.gather(*making, return_exceptions=True)
        # All have come to their end by now: a driver must not be called again while an earlier call runs.
        for failure in made:
            if isinstance(failure, BaseException):
                raise failure
        found = zip(volumes, made, strict=True)
        return {volume.name: each for volume, each in found if isinstance(each, MadeVolume)}

    async def _publish(self, kept: _Kept, volume: Volume, bound: BoundVolume | None) -> MadeVolume:
        with self._counts.timed() as durations, durations.of(plugin_name(volume, bound), mounting(bound)):
            storage = self._in_tree if in_tree_source(volume, bound) is not None else self._csi
            made = await storage.set_up(kept.pod, volume, bound, kept.removal)
        if made.relabel and self._volumes.selinux.enabled:
            return replace(made, relabel=await to_own_thread(takes_labels, made.path))
        return made

    @cached_property
    def _expander(self) -> VolumeExpander:
        """Return what expands volumes; created only on a node with claims."""
        from engine.node.volumes.expansion import VolumeExpander

        return VolumeExpander(self._shown.node().metadata.name, self._objects, self._recorder, self._clock)

    @property
    def _has_claims(self) -> bool:
        return "_expander" in self.__dict__

    async def _grow_at_mount(self, pod: Pod, volumes: Mapping[str, MadeVolume]) -> None:
        for volume in used_volumes(pod):
            made = volumes.get(volume.name)
            if made is not None and made.expand is not None:
                await self._expander.at_mount(pod, made, read_only=is_read_only(volume))

    async def _publish_again(self, kept: _Kept) -> None:
        names = self._csi.to_publish_again(kept.pod.uid)
        if names:
            bound = await self._bound(kept.pod)
            for volume in used_volumes(kept.pod):
                if volume.name in names and not kept.left:
                    await self._publish(kept, volume, bound.get(volume.name))

    async def _grow(self, kept: _Kept) -> None:
        """Expand volumes in use; a claim that cannot be read now is read again later."""
        claims = self._may_grow(kept.pod.uid)
        for volume in used_volumes(kept.pod):
            claim = claim_name(kept.pod, volume)
            if claim is None or claim not in claims or kept.left:
                continue
            try:
                bound = await bound_volume(kept.pod, volume, claim, self._objects, self._shown.node())
            except VolumeRefused as error:
                log.info("pod %s: claim %s is not expanded yet: %s", kept.pod.full_name, claim, error)
                continue
            try:
                await self._expander.meanwhile(kept.pod.uid, bound)
            except VolumeRefused as error:
                raise VolumeRefused(str(error), reason="VolumeResizeFailed") from error.__cause__

    def _may_grow(self, uid: str) -> set[str]:
        """Return the claims of a pod whose volumes may be expanded while it runs."""
        return self._expander.may_grow(uid) if self._has_claims else set()

    async def _write(self, kept: _Kept, contents: Mapping[str, Contents]) -> None:
        for volume in used_volumes(kept.pod):
            if volume.name in contents and not kept.left:
                with refusing(volume.name):
                    await asyncio.to_thread(
                        self._volumes.write,
                        kept.pod,
                        volume,
                        contents[volume.name],
                        self._shown.allocatable(),
                    )

    def _failed(self, kept: _Kept, error: VolumeRefused) -> None:
        """Handle a failed update: the old contents stay. A missing object will be reported; other failures
        are retried.
        """
        # An ending namespace may lose the objects before the pod, which needs no newer contents. A kubelet
        # no longer writes any (`findAndAddNewPods`).
        is_deleted = kept.pod.metadata.deletion_timestamp is not None
        if str(error) != kept.reported and not is_deleted:
            kept.reported = str(error)
            self._recorder.pod(kept.pod, WARNING, error.reason, str(error))
        # A watch reports a missing object as soon as it appears; asking again would not find it sooner.
        if not isinstance(error.__cause__, NotFound):
            kept.failures += 1
            self._update_in(kept, RETRIES.after(kept.failures))

    def _schedule_update(self, kept: _Kept, contents: Mapping[str, Contents]) -> None:
        """Schedule the next update: a token expires, a driver wants another call, a claim is to be read."""
        kept.forget_time()
        first = min((each.renew_at for each in contents.values()), default=float("inf"))
        if self._csi.to_publish_again(kept.pod.uid):
            first = min(first, self._steady() + REPUBLISH_SECONDS)
        if self._may_grow(kept.pod.uid):
            first = min(first, self._steady() + GROWTH_SECONDS)
        if first != float("inf"):
            self._update_in(kept, max(first - self._steady(), RETRIES.first))

    def _update_in(self, kept: _Kept, seconds: float) -> None:
        kept.forget_time()
        if not kept.left:
            update = partial(self._changed, kept.pod.uid)
            kept.timer = asyncio.get_running_loop().call_later(seconds, update)


class _Kept:
    """Hold the volumes of one pod: `shown` once set up, `stale` when contents may have changed, `left` during
    removal.
    """

    __slots__ = (
        "_removal", "failures", "left", "lock", "made", "pod", "refreshing", "reported", "shown", "stale",
        "timer",
    )  # fmt: skip

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.lock = asyncio.Lock()
        self._removal: asyncio.Event | None = None
        self.shown = self.stale = self.refreshing = self.left = False
        self.made: Mapping[str, MadeVolume] = {}
        self.failures, self.reported = 0, ""
        self.timer: asyncio.TimerHandle | None = None

    def begin_removal(self) -> None:
        self.left = True
        if self._removal is not None:
            self._removal.set()

    @property
    def removal(self) -> asyncio.Event:
        """Return an event that is set on removal; created on demand, since it takes most of a KiB."""
        if self._removal is None:
            self._removal = asyncio.Event()
            if self.left:
                self._removal.set()
        return self._removal

    def plugins(self) -> Iterator[tuple[str, bool]]:
        """Return the plugin of each of the pod's volumes, and whether the pod has it."""
        for volume in used_volumes(self.pod):
            made = self.made.get(volume.name)
            yield plugin_name(volume, made.bound if made is not None else None), made is not None

    def forget_time(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
