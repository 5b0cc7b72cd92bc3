"""Measures how long pods take to start and how long each sync takes, under the kubelet's metric names."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from engine.api.errors import Refused
from engine.api.pod import Container, Pod
from engine.api.qos import is_static
from engine.metrics import Registry
from engine.node.images.pull import StartRefused
from engine.node.sync.resize_metrics import ResizeMetrics
from engine.node.sync.status import RUNNING_PHASE

STARTUP_BUCKETS: Final = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900),
    *(1200, 1800, 2700, 3600),
)


_REJECTIONS: Final = frozenset(
    {
        *("AppArmor", "Evicted", "InitContainerRestartPolicyForbidden", "InvalidNodeInfo", "NodeShutdown"),
        *("OutOfcpu", "OutOfephemeral-storage", "OutOfmemory", "OutOfpods", "PodFeatureUnsupported"),
        *("PodLevelResourcesNotSupported", "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch"),
        *("SupplementalGroupsPolicyNotSupported", "SysctlForbidden", "TopologyAffinityError"),
        *("UnexpectedAdmissionError", "UnexpectedPredicateFailureType", "UnknownReason"),
        *("VolumeAttachmentLimitExceeded", "node(s) had taints that the pod didn't tolerate"),
        *("InvalidCgroupAnnotation", "UnsupportedPodFields"),  # reasons that a kubelet does not have
    }
)


def counted_reason(reason: str) -> str:
    """Return the label under which a rejection is counted.

    Resources and predicates have any number of names, so that those without a label of their own are counted
    together (kubelet v1.36, `recordAdmissionRejection`).
    """
    if reason in _REJECTIONS:
        return reason
    return "OutOfExtendedResources" if reason.startswith("OutOf") else "Other"


class PodMetrics:
    """Record the rejections of pods of one node, and their durations in seconds."""

    def __init__(self, registry: Registry) -> None:
        self._rejections = registry.counter(
            "kubelet_admission_rejections_total",
            "Cumulative number pod admission rejections by the Kubelet.",
            ["reason"],
        )
        self._retried = registry.counter(
            "kubengine_rejected_pods_retried_total",
            "Repeated admissions of a rejected static pod, each after a change on the node.",
        )
        self.resizes = ResizeMetrics(registry)
        self.starts = StartCounts(registry)
        self._restarted = registry.counter(
            "kubelet_restarted_pods_total",
            "Pods that were deleted and created again with the same uid.",
            ["static"],
        )
        self._orphans = registry.counter(
            "kubelet_orphaned_runtime_pods_total", "Pods that the runtime had and no source wanted."
        )
        self._containers = registry.histogram(
            "kubelet_containers_per_pod_count", "Containers of each pod.", buckets=(1, 2, 4, 8, 16)
        )
        self._count_durations(registry)
        self._starting: dict[str, _Startup] = {}

    def _count_durations(self, registry: Registry) -> None:
        self._work = registry.histogram(
            "kubelet_pod_worker_duration_seconds",
            "Duration of one sync of a pod: to create, update or sync it, to kill it, and to "
            "clean up after it has terminated.",
            ["operation_type"],
        )
        self._worker_start = registry.histogram(
            "kubelet_pod_worker_start_duration_seconds",
            "Time from first seeing a pod to the first work on it.",
        )
        self._start = registry.histogram(
            "kubelet_pod_start_duration_seconds",
            "Time from first seeing a pod to its running.",
            buckets=STARTUP_BUCKETS,
        )
        self._start_total = registry.histogram(
            "kubelet_pod_start_total_duration_seconds",
            "Time from the creation of an API pod until the node reported that all its containers "
            "had started.",
            buckets=STARTUP_BUCKETS,
        )
        self._start_sli = registry.histogram(
            "kubelet_pod_start_sli_duration_seconds",
            "The same for stateless pods, without the time for image pulls and init containers.",
            buckets=STARTUP_BUCKETS,
        )

    def rejected(self, reason: str) -> None:
        """Count a rejection, whose `reason` is that of the pod's status."""
        self._rejections.inc(counted_reason(reason))

    def restarted(self, *, static: bool) -> None:
        """Count a pod that was deleted and created again with the same uid."""
        self._restarted.inc("true" if static else "")

    def orphaned(self) -> None:
        """Count a pod of the runtime that no source wants and the agent did not know."""
        self._orphans.inc()

    def retried(self) -> None:
        """Count that a rejected pod goes through admission again."""
        self._retried.inc()

    def worked(self, operation: str, seconds: float) -> None:
        """Record one operation: `create`, `update`, `sync`, `kill` or `terminated`."""
        self._work.observe(seconds, operation)

    def began(self, seconds: float) -> None:
        """Record the time between the first sight of a pod and the first work on it."""
        self._worker_start.observe(seconds)

    def seen(self, uid: str, at: float, containers: int) -> None:
        """Note that a pod that has not started was seen for the first time, at Unix time `at`."""
        self._starting[uid] = _Startup(at)
        self._containers.observe(containers)

    def pulled(self, uid: str, seconds: float) -> None:
        """Add the time spent on pulling an image."""
        if uid in self._starting:
            self._starting[uid].pulling += seconds

    def status_published(self, pod: Pod, now: float) -> None:
        """Take note of a possibly new status; the start of a pod is measured once."""
        startup = self._starting.get(pod.uid)
        if startup is None or pod.status.phase != RUNNING_PHASE:
            return
        if not startup.runs:
            startup.runs = True
            self._start.observe(now - startup.seen)
        if all(status.state.running is not None for status in pod.status.container_statuses or ()):
            self._started(pod, startup.pulling, now)
            self.forget(pod.uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that will not start."""
        self._starting.pop(uid, None)

    def _started(self, pod: Pod, pulling: float, now: float) -> None:
        created = pod.metadata.creation_timestamp
        if is_static(pod) or created is None:
            return
        total = max(now - created.timestamp(), 0.0)
        self._start_total.observe(total)
        if not is_stateful(pod):
            self._start_sli.observe(max(total - pulling - _initializing(pod), 0.0))


class _Startup(msgspec.Struct):
    """Hold the start of one pod: `seen` is a Unix time, `pulling` the seconds spent on images."""

    seen: float
    pulling: float = 0.0
    runs: bool = False


def is_stateful(pod: Pod) -> bool:
    """Tell whether the pod has a volume other than emptyDir and those filled from the API."""
    return any(
        volume.secret is None
        and volume.config_map is None
        and volume.downward_api is None
        and volume.empty_dir is None
        and volume.projected is None
        for volume in pod.spec.volumes or ()
    )


def _initializing(pod: Pod) -> float:
    """Return how many seconds the finished init containers ran."""
    ended = (
        status.state.terminated
        for status in pod.status.init_container_statuses or ()
        if status.state.terminated is not None
    )
    return sum(
        max((each.finished_at - each.started_at).total_seconds(), 0.0)
        for each in ended
        if each.finished_at is not None and each.started_at is not None
    )


MOUNT_FAILED: Final = "ImageVolumeMountFailed"
"""How a runtime's refusal to mount an image begins (`k8s.io/cri-api/pkg/errors`)."""


class StartCounts:
    """Count the starts of one node; a cancelled start does not count as a failure."""

    def __init__(self, registry: Registry) -> None:
        self._pods = registry.counter("kubelet_started_pods_total", "Sandboxes started.")
        self._pod_errors = registry.counter(
            "kubelet_started_pods_errors_total", "Sandboxes that could not be started."
        )
        self._sandboxes = registry.histogram(
            "kubelet_run_podsandbox_duration_seconds",
            "Time that the runtime took to run a sandbox, by runtime handler.",
            ["runtime_handler"],
        )
        self._sandbox_errors = registry.counter(
            "kubelet_run_podsandbox_errors_total",
            "Sandboxes that the runtime failed to run, by runtime handler.",
            ["runtime_handler"],
        )
        self._containers = registry.counter(
            "kubelet_started_containers_total", "Containers started.", ["container_type"]
        )
        self._container_errors = registry.counter(
            "kubelet_started_containers_errors_total",
            "Containers that could not be started, by the reason in their status.",
            ["container_type", "code"],
        )

        self._namespaced = registry.counter(
            "kubelet_started_user_namespaced_pods_total", "Sandboxes with a user namespace started."
        )
        self._namespaced_errors = registry.counter(
            "kubelet_started_user_namespaced_pods_errors_total",
            "Sandboxes with a user namespace that could not be started.",
        )
        self._image_volumes = registry.counter(
            "kubelet_image_volume_requested_total", "Number of requested image volumes."
        )
        self._mounted = registry.counter(
            "kubelet_image_volume_mounted_succeed_total", "Number of successful image volume mounts."
        )
        self._mount_errors = registry.counter(
            "kubelet_image_volume_mounted_errors_total", "Number of failed image volume mounts."
        )

    @contextmanager
    def image_volumes(self, container: Container, volumes: Collection[str]) -> Iterator[None]:
        """Count the image volumes of a container that is created.

        Any other refusal counts as a successful mount, as with a kubelet.
        """
        if not volumes:
            yield
            return
        self._image_volumes.inc(by=len(volumes))
        counter = self._mounted
        try:
            yield
        except Refused as error:
            if error.message.startswith(MOUNT_FAILED):
                counter = self._mount_errors
            raise
        finally:
            counter.inc(by=sum(mount.name in volumes for mount in container.volume_mounts or ()))

    @contextmanager
    def sandbox(self, handler: str, *, namespaced: bool = False) -> Iterator[None]:
        """Count a call to the runtime that creates a sandbox; `namespaced` if it has its own users."""
        self._pods.inc()
        if namespaced:
            self._namespaced.inc()
        began = time.monotonic()
        try:
            yield
        except Refused:
            self._pod_errors.inc()
            if namespaced:
                self._namespaced_errors.inc()
            self._sandbox_errors.inc(handler)
            raise
        finally:
            self._sandboxes.observe(time.monotonic() - began, handler)

    @contextmanager
    def container(self, pod: Pod, container: Container) -> Iterator[None]:
        """Count the start of a container, pulls and hook included."""
        kind = _kind(pod, container)
        self._containers.inc(kind)
        try:
            yield
        except StartRefused as error:
            self._container_errors.inc(kind, error.waiting.reason)
            raise


def _kind(pod: Pod, container: Container) -> str:
    if any(each.name == container.name for each in pod.init_containers):
        return "init_container"
    regular = any(each.name == container.name for each in pod.spec.containers)
    return "container" if regular else "ephemeral_container"
