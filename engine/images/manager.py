"""Runs image GC: detects, collects, protects, and reports what else fills the disk. The acting module."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from engine.api.decisions import BatchedDecision
from engine.api.errors import InvalidInput, KubengineError, Refused, Unavailable
from engine.api.events import WARNING
from engine.api.pod import Pod
from engine.api.query import expect_known, is_set
from engine.cri.client import RuntimeClient
from engine.host.node_context import NodeContext, SteadyClock
from engine.host.trees import disk_usage
from engine.images import records_file, selection
from engine.images.collection import Collection, nothing_protects
from engine.images.filesystem import RuntimeFilesystems, same_device
from engine.images.keep_patterns import KeepPatterns
from engine.images.layers import Layers
from engine.images.lease import ImageLeases, normalized
from engine.images.listed import CONTAINERS_OF_PODS, USERS, ImageReader, images_used, images_used_by_handler
from engine.images.measured_run import UnusedImage, run_of, unused_images
from engine.images.policy import ImageGCPolicy
from engine.images.prepull import Prepull, PullImage
from engine.images.records import ImageRecords, SeenImage
from engine.images.report import REMOVED, ImageGCFailure, ImageGCReport
from engine.images.runtime_store import RuntimeStore
from engine.metrics import Registry
from engine.tables import NEVER
from engine.wire import cri_v1_pb2 as cri

PERIOD: Final = 300.0
STEP_SECONDS: Final = 1800.0
"""Seconds after which a run counts as stuck."""
IMAGE_CACHE_PERIOD: Final = 30.0

log = logging.getLogger("kubengine.images")
MEASURE_TIMEOUT = 30.0


class ImageManager:
    """Keep the image file system below its thresholds.

    `active_pods` returns the existing pods, whose image volumes are examined. `images_listed` receives after
    each periodic run the ids of the present images, and when they were listed. `state_dir` is for the
    records if `section.keep_records` is set; `pod_logs_dir` is measured when a run cannot free enough.
    Raises `InvalidInput` for contradictory thresholds.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        runtime: RuntimeClient,
        active_pods: Callable[[], Sequence[Pod]] = tuple,
        images_listed: Callable[[Sequence[str], float], Awaitable[None]] | None = None,
        pull: PullImage | None = None,
        state_dir: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        period: float = PERIOD,
    ) -> None:
        config = context.config
        self.section = context.kubengine_config.images
        self.policy = ImageGCPolicy.from_config(config, self.section)
        self._by_handler = config.gate("RuntimeClassInImageCriApi", False)
        self.records = ImageRecords(by_handler=self._by_handler)
        self.last_report: ImageGCReport | None = None
        self._runtime, self._recorder, self._active_pods = runtime, context.recorder, active_pods
        self._decisions, self._period, self._images_listed = context.decisions, period, images_listed
        self._now = SteadyClock(context.clock, monotonic)
        self._began = self._now()
        self._pod_logs_dir = Path(config.pod_logs_dir)
        self._image_volumes = config.gate("ImageVolume", False)
        self._file = state_dir / records_file.FILE_NAME if state_dir and self.section.keep_records else None
        self._leases = ImageLeases()
        self._keep = KeepPatterns(self.section.keep)
        self._reported_kept: dict[str, str] = {}
        self._layers: dict[str, Layers] = {}
        self._sandbox_image = self.section.sandbox_image
        self._volume_images: dict[str, frozenset[str]] = {}
        self._reader = ImageReader()
        self._listed: tuple[float, list[cri.Image]] = (float("-inf"), [])
        self._containers = b""
        self._running = asyncio.Lock()
        self._task = context.tasks.task("image-gc")
        self._prepull = self._create_prepull(context, pull)
        self._create_metrics(context.registry)
        if self._file is not None:
            records_file.load(self._file, self.records, self._now())

    def _create_prepull(self, context: NodeContext, pull: PullImage | None) -> Prepull:
        return Prepull(
            self.section.prepull if pull is not None else [],
            pull or _refuse_to_pull,
            at_once=self.section.prepull_at_once,
            decisions=context.decisions,
            registry=context.registry,
            tasks=context.tasks,
        )

    def _create_metrics(self, registry: Registry) -> None:
        self._collected = registry.counter(
            "kubelet_image_garbage_collected_total", "Images removed, by reason.", ["reason"]
        )
        self._freed = registry.counter(
            "kubengine_image_gc_freed_bytes_total",
            "Bytes freed by removed images, counted as `images.order` and `images.accounting` say.",
        )
        self._protected = registry.gauge(
            "kubengine_image_gc_protected",
            "Unused images that the last run kept because of a policy (images.keep, images.prepull).",
        )

    async def start(self) -> None:
        """Detect and collect now, and every five minutes."""
        self._began = self._now()
        self._task.start(self._loop)

    async def stop(self) -> None:
        await self._task.stop()
        await self._prepull.stop()
        self._save()

    def lease(self, image: str) -> AbstractAsyncContextManager[None]:
        """Enclose making an image present and creating its container, so that no run removes it in between.

        Does nothing unless `images.leases` is on.
        """
        return self._leases.hold(image) if self.section.leases else nullcontext()

    async def images(self) -> list[cri.Image]:
        """Return the runtime's images, at most 30 s old."""
        at, listed = self._listed
        if self._now() - at >= IMAGE_CACHE_PERIOD:
            listed = await self._runtime.list_images()
            self._listed = (self._now(), listed)
        return listed

    async def detect(self) -> None:
        """Detect present and used images. Raises `ImageGCFailure`."""
        async with self._running:
            await self._detect(self._now())

    async def garbage_collect(self, *, dry_run: bool = False) -> ImageGCReport:
        """Run one periodic collection. Never raises for failures outside: the report contains them."""
        return await self._run("gc", dry_run)

    async def delete_unused(self, *, dry_run: bool = False) -> ImageGCReport:
        """Remove every unused image above the minimum age, as under disk pressure."""
        return await self._run("delete-unused", dry_run)

    async def act(self, action: str, query: dict[str, str]) -> dict[str, Any]:
        """Run `gc` or `delete-unused`, each with `dry-run=true|false`."""
        expect_known(query, ("dry-run",), "images")
        dry_run = is_set(query, "dry-run", "images")
        if action == "gc":
            return (await self.garbage_collect(dry_run=dry_run)).to_json()
        if action == "delete-unused":
            return (await self.delete_unused(dry_run=dry_run)).to_json()
        raise InvalidInput("is not one of gc, delete-unused", subject=action)

    async def describe(self) -> dict[str, Any]:
        """Return the policy, and per image its times (Unix seconds, null: never used), users and protection.

        These are current; during a collection, or if the runtime fails, they are those of the last
        detection.
        """
        # A collection may take minutes: whoever asks meanwhile gets the last detection.
        if not self._running.locked():
            with contextlib.suppress(ImageGCFailure):
                await self.detect()
        now, cells, users = self._now(), self.records.table.cells, self._users()
        images = []
        for key in list(self.records.keys()):
            row = self.records.row(key)
            image = self.records.image(row)
            used = cells.last_used[row]
            images.append(
                {
                    "id": image.id,
                    "handler": image.handler,
                    "names": list(image.names),
                    "size": cells.size[row],
                    "firstDetected": cells.first_detected[row],
                    "lastUsed": None if used == NEVER else used,
                    "inUseBy": users.get(key, []),
                    "protected": self._why_protected(image)
                    or selection.reason_to_keep(cells, row, self.policy, now),
                }
            )
        return {
            "highThresholdPercent": self.policy.high_threshold_percent,
            "lowThresholdPercent": self.policy.low_threshold_percent,
            "minimumAge": self.policy.min_age,
            "maximumAge": self.policy.max_age,
            "order": self.policy.order,
            "now": now,
            "images": images,
            "lastRun": self.last_report.to_json() if self.last_report else None,
        }

    async def _loop(self) -> None:
        failed = False
        while True:
            try:
                with self._task.step(STEP_SECONDS):
                    error = await self._periodic()
            except Exception as bug:
                self._task.failed(bug)
                error = str(bug)
            # As in the kubelet, a first failure makes no event: after a start the runtime may not be ready.
            if error and failed:
                self._recorder.node(WARNING, "ImageGCFailed", error)
            elif error:
                log.warning("image garbage collection failed: %s", error)
            failed = bool(error)
            self._save()
            await asyncio.sleep(self._period)

    async def _periodic(self) -> str:
        """Return the error of one periodic run, or an empty text."""
        if not self.policy.off:
            error = (await self.garbage_collect()).error
        else:
            error = ""
            with contextlib.suppress(ImageGCFailure):
                await self.detect()
        if self._prepull:
            # After the collection, which may have made space for them.
            self._prepull.update(name for image in self.records.images() for name in image.names)
        if self._images_listed is not None:
            with contextlib.suppress(KubengineError):
                images = await self.images()
                await self._images_listed([image.id for image in images], self._listed[0])
        return error

    async def _run(self, trigger: str, dry_run: bool) -> ImageGCReport:
        async with self._running:
            report = ImageGCReport(self._now(), trigger, dry_run)
            section = self.section
            protects = any((section.leases, section.protect_sandbox_image, self._keep, self._prepull))
            store = RuntimeStore(
                self._runtime,
                self._leases if section.leases else None,
                self._why_protected if protects else nothing_protects,
                remove_timeout=float(section.remove_timeout),
                layers=self._layers,
            )
            collection = Collection(self.records, self.policy, store, report)
            before: Sequence[UnusedImage] = ()
            try:
                await self._detect(report.at)
                if self._decisions.record_measured is not None:
                    before = unused_images(self.records)
                if trigger == "gc":
                    await collection.garbage_collect(self._began)
                else:
                    await collection.delete_unused()
            except ImageGCFailure as failure:
                report.error, report.kind = str(failure), failure.kind
                await self._explain(report, store)
            finally:
                store.close()
                self._record_run(collection, report, before)
                self._record(collection, report)
                self._record_protected(collection, report)
                for cause, count in report.removed_by.items():
                    self._collected.inc(cause, by=count)
                self._freed.inc(by=0 if dry_run else report.freed_by_age + report.freed)
                for key in report.removed if self._layers else ():
                    self._layers.pop(key.partition(",")[0], None)
                if report.removed:
                    self._listed = (float("-inf"), [])  # the node's status must not show removed images
            for key, error in report.failed.items():
                log.warning("image %s could not be removed: %s", key, error)
            if not dry_run:
                self.last_report = report
            return report

    def _record_run(
        self, collection: Collection, report: ImageGCReport, before: Sequence[UnusedImage]
    ) -> None:
        """Give a record what the run was decided by; dry runs decide nothing."""
        if self._decisions.record_measured is not None and not report.dry_run:
            protected = {self.records.key_of(image) for image, _ in collection.protected()}
            self._decisions.record_measured(run_of(report, self._began, before, protected).measured())

    def _record(self, collection: Collection, report: ImageGCReport) -> None:
        """Record what a run has done or failed to do; untouched images and dry runs are not decisions."""
        shared = {
            "trigger": report.trigger,
            "wanted": report.wanted,
            "capacity": report.capacity,
            "available": report.available,
            "order": self.section.order,
        }
        last = collection.acted(self._decisions.capacity)

        def taken() -> Iterator[BatchedDecision]:
            for image, judged, freed in last():
                inputs = {
                    "image": self.records.key_of(image),
                    "names": image.names,
                    "size": image.size,
                    "freed": freed,
                    "cause": judged.cause,
                    **shared,
                }
                outcome = "collected" if judged.verdict == REMOVED else "failed"
                yield BatchedDecision(outcome, judged.reason, inputs)

        self._decisions.record_many("image-gc", collection.actions, taken)

    def _record_protected(self, collection: Collection, report: ImageGCReport) -> None:
        """Record images that one of our own policies kept although space was wanted, once per reason."""
        kept = {self.records.key_of(image): (image, reason) for image, reason in collection.protected()}
        if not report.dry_run:
            self._protected.set(len(kept))
        if report.dry_run or report.wanted is None:
            return
        for key, (image, reason) in kept.items():
            if self._reported_kept.get(key) != reason:
                inputs = {"image": key, "names": image.names, "size": image.size, "trigger": report.trigger}
                self._decisions.record("image-gc", "kept", reason, inputs)
        self._reported_kept = {key: reason for key, (_, reason) in kept.items()}

    async def _explain(self, report: ImageGCReport, store: RuntimeStore) -> None:
        if report.kind == "invalid_capacity" and not report.dry_run:
            self._recorder.node(WARNING, "InvalidDiskCapacity", report.error)
        if report.kind == "insufficient":
            if not report.dry_run:
                self._recorder.node(WARNING, "FreeDiskSpaceFailed", report.error)
            if store.where is not None:
                report.elsewhere = await other_disk_usage(
                    store.where, report, self._runtime, self._pod_logs_dir
                )

    async def _detect(self, now: float) -> None:
        try:
            images = await self._runtime.read_images(self._reader.read)
        except KubengineError as error:
            raise ImageGCFailure("list_images", str(error)) from error
        # After the images: a container that was created in between counts as a user of its image.
        try:
            used = await self._runtime.read_containers(self._used_keys)
            await self._find_image_volumes()
            await self._find_sandbox_image()
        except (KubengineError, ValueError) as error:
            raise ImageGCFailure("get_pods", str(error)) from error
        for mounted in self._volume_images.values():
            used.extend(mounted)
        self.records.detect(images, used, now)

    def _used_keys(self, message: bytes) -> list[str]:
        """Return the images that containers name."""
        used = images_used(message)
        if self._by_handler:
            used = [self.records.used_key(*by) for by in images_used_by_handler(message)]
        self._containers = message
        return used

    def _users(self) -> dict[str, list[str]]:
        """Return `namespace/pod:container` by image key, as of the last detection."""
        users: dict[str, list[str]] = {}
        used = self._used_keys(self._containers)
        for key, id, container, pod, namespace in zip(used, *USERS.pick(self._containers), strict=True):
            name = f"{namespace}/{pod}:{container}"
            users.setdefault(key, []).append(name)
            for mounted in self._volume_images.get(id, ()):
                users.setdefault(mounted, []).append(f"{name} (image volume)")
        return users

    async def _find_image_volumes(self) -> None:
        """Count mounted images as used. A container's mounts do not change, so each is asked once."""
        with_volumes = {
            pod.uid
            for pod in self._active_pods()
            if any(volume.image is not None for volume in pod.spec.volumes or ())
        }
        if not self._image_volumes and not with_volumes:
            self._volume_images = {}
            return
        containers = list(zip(*CONTAINERS_OF_PODS.pick(self._containers), strict=True))
        known = self._volume_images
        self._volume_images = {id: known[id] for id, _ in containers if id in known}
        for id, uid in containers:
            if id in known:
                continue
            if self._image_volumes or uid in with_volumes:
                status = (await self._runtime.container_status(id)).status
                mounted = (mount.image.image for mount in status.mounts)
                self._volume_images[id] = frozenset(image for image in mounted if image)

    async def _find_sandbox_image(self) -> None:
        if not self.section.protect_sandbox_image or self._sandbox_image:
            return
        info = (await self._runtime.status(verbose=True)).info
        try:
            self._sandbox_image = str(json.loads(info.get("config", "{}")).get("sandboxImage", ""))
        except (ValueError, AttributeError, RecursionError):
            self._sandbox_image = ""
        if not self._sandbox_image:
            log.warning("the runtime doesn't say which sandbox image it uses; set images.sandboxImage")

    def _why_protected(self, image: SeenImage) -> str:
        if self.section.leases and self._leases.holds((image.id, *image.names)):
            return "a pod that needs it is being started"
        if self.section.protect_sandbox_image and self._sandbox_image:
            sandbox = normalized(self._sandbox_image)
            if sandbox == image.id or sandbox in map(normalized, image.names):
                return "the sandbox image"
        leased = self._prepull.leases(image.names)
        if leased:
            return f"leased: {leased!r} is in images.prepull"
        pattern = self._keep.matching((image.id, *image.names)) if self._keep else ""
        return f"kept by the pattern {pattern!r} in images.keep" if pattern else ""

    def _save(self) -> None:
        if self._file is None:
            return
        try:
            records_file.save(self._file, self.records)
        except Refused as error:
            log.warning("cannot store the image records: %s", error)


async def _refuse_to_pull(name: str) -> None:
    raise Unavailable("this node has nothing that pulls images", subject=name)


async def other_disk_usage(
    where: RuntimeFilesystems, report: ImageGCReport, runtime: RuntimeClient, pod_logs_dir: Path
) -> dict[str, int]:
    """Return bytes by holder: remaining images, writable layers, pod logs on the same file system, and the
    rest.

    What is unknown falls to the rest.
    """
    used = (report.capacity or 0) - (report.available or 0) - report.freed
    found = {"images that remain": sum(v.size for v in report.images if v.verdict != REMOVED)}
    try:
        stats = await runtime.list_container_stats()
        found["writable layers of containers"] = sum(s.writable_layer.used_bytes.value for s in stats)
    except KubengineError:
        pass
    try:
        if same_device(where.images, pod_logs_dir):
            async with asyncio.timeout(MEASURE_TIMEOUT):
                found["pod logs"] = (await asyncio.to_thread(disk_usage, pod_logs_dir))[0]
    except (OSError, TimeoutError):
        pass
    found["files that do not belong to the runtime"] = max(used - sum(found.values()), 0)
    return found
