"""How long pods take: until they run, and each time that something is done for one (kubelet's names)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.api.pod import Pod
from engine.api.qos import is_static
from engine.metrics import Registry
from engine.node.sync.status import RUNNING_PHASE

STARTUP_BUCKETS: Final = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900),
    *(1200, 1800, 2700, 3600),
)


class PodMetrics:
    """One per node. Times are seconds."""

    def __init__(self, registry: Registry) -> None:
        self._work = registry.histogram(
            "kubelet_pod_worker_duration_seconds",
            "Time that was worked on a pod at a stretch: to create, update or sync it, to kill it, and to "
            "take away what is left when it has terminated.",
            ["operation_type"],
        )
        self._worker_start = registry.histogram(
            "kubelet_pod_worker_start_duration_seconds", "From first seeing a pod to working on it."
        )
        self._start = registry.histogram(
            "kubelet_pod_start_duration_seconds",
            "From first seeing a pod to its running.",
            buckets=STARTUP_BUCKETS,
        )
        self._start_total = registry.histogram(
            "kubelet_pod_start_total_duration_seconds",
            "From an API pod's creation until all its containers had started and the node had said so.",
            buckets=STARTUP_BUCKETS,
        )
        self._start_sli = registry.histogram(
            "kubelet_pod_start_sli_duration_seconds",
            "The same of stateless pods, without the time of image pulls and init containers.",
            buckets=STARTUP_BUCKETS,
        )
        self._retried = registry.counter(
            "kubengine_rejected_pods_retried_total",
            "How often a rejected pod of a manifest was judged again because something had changed.",
        )
        self._starting: dict[str, _Startup] = {}

    def retried(self) -> None:
        """A pod that was rejected is judged again."""
        self._retried.inc()

    def worked(self, operation: str, seconds: float) -> None:
        """`create`, `update`, `sync`, `kill` or `terminated`."""
        self._work.observe(seconds, operation)

    def began(self, seconds: float) -> None:
        """A pod was first worked on so long after it had been seen."""
        self._worker_start.observe(seconds)

    def seen(self, uid: str, at: float) -> None:
        """A pod that has not begun was seen for the first time, at `at` in Unix seconds."""
        self._starting[uid] = _Startup(at)

    def pulled(self, uid: str, seconds: float) -> None:
        """So long was waited for an image."""
        if uid in self._starting:
            self._starting[uid].pulling += seconds

    def looked_at(self, pod: Pod, now: float) -> None:
        """The pod's status may be another one. What is measured of its start is measured once."""
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
        """The pod starts no more."""
        self._starting.pop(uid, None)

    def _started(self, pod: Pod, pulling: float, now: float) -> None:
        created = pod.metadata.creation_timestamp
        if is_static(pod) or created is None:
            return
        total = max(now - created.timestamp(), 0.0)
        self._start_total.observe(total)
        if not is_stateful(pod):
            self._start_sli.observe(max(total - pulling - _initializing(pod), 0.0))


@dataclass(slots=True)
class _Startup:
    """`seen` is in Unix seconds, `pulling` how many went to images."""

    seen: float
    pulling: float = 0.0
    runs: bool = False


def is_stateful(pod: Pod) -> bool:
    """Whether it has a volume that is more than what the API gives and an empty directory."""
    return any(
        volume.secret is None
        and volume.config_map is None
        and volume.downward_api is None
        and volume.empty_dir is None
        and volume.projected is None
        for volume in pod.spec.volumes or ()
    )


def _initializing(pod: Pod) -> float:
    """Seconds that init containers ran which have ended."""
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
