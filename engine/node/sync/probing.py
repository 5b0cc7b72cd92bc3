"""Connects pods with their probes: starts probing, passes on runtime records, applies results.

Results are kept on disk, so that a restarted agent neither reports ready pods as not ready until their first
probe nor runs startup probes again.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.pod import Pod
from engine.api.status import ContainerStatus, PodStatus
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord
from engine.node.nodeinfo.addresses import pod_ips
from engine.node.pod.records import ReadinessRecords
from engine.node.sync.actions import ContainerHealth
from engine.probes.manager import ProbeManager
from engine.probes.probe_annotations import ANNOTATION

_STATES: dict[int, str] = {RUNNING: "running", EXITED: "terminated"}


UNPROBED = ContainerHealth()


def has_probes(pod: Pod) -> bool:
    """Tell whether the pod has probes, or the annotation about them."""
    for container in pod.all_containers:
        if container.readiness_probe or container.liveness_probe or container.startup_probe:
            return True
    return ANNOTATION in pod.annotations


class Probing:
    def __init__(self, probes: ProbeManager, kept: ReadinessRecords) -> None:
        self.probes = probes
        self._kept = kept
        self._probed: set[str] = set()
        """Uids of the pods on this node that have probes; all others count as started and ready."""
        self._recorded: set[str] = set()
        """Uids of the pods whose readiness is recorded."""

    def accepted(self, pod: Pod) -> None:
        """Start probing the pod."""
        if not has_probes(pod):
            return
        self._probed.add(pod.uid)
        if any(c.readiness_probe or c.startup_probe for c in pod.all_containers):
            self._recorded.add(pod.uid)
        self.probes.add_pod(pod, restored=self._restored(pod.uid))

    def observed(self, pod: Pod, record: PodRecord, host_ips: Sequence[str]) -> None:
        """Update the probes from the runtime's record of the pod."""
        if pod.uid not in self._probed:
            return
        sandbox = record.sandbox
        # The published status may still have the address of an earlier sandbox, which may be another pod's.
        ips = pod_ips(pod, sandbox.ips if sandbox is not None else (), host_ips)
        ready = sandbox.id if sandbox is not None and sandbox.ready else ""
        self.probes.update_pod(pod.uid, pod_ip=ips[0] if ips else "", phase=pod.status.phase, sandbox=ready)
        for container in pod.all_containers:
            newest = record.container(container.name)
            if newest is not None:
                self.probes.update_container(
                    pod.uid,
                    container.name,
                    container_id=newest.id,
                    state=_STATES.get(newest.state, "waiting"),
                    started_at=newest.started_at,
                )

    def ending(self, uid: str) -> None:
        self.probes.stop_liveness_and_startup(uid)

    def released(self, uid: str) -> None:
        self.probes.remove_pod(uid)
        self._probed.discard(uid)
        self._recorded.discard(uid)

    def health(self, uid: str, container: ContainerRecord) -> ContainerHealth:
        if uid not in self._probed:
            return UNPROBED
        started = self.probes.is_started(uid, container.name, container.id)
        return ContainerHealth(started, self.probes.failed(uid, container.name, container.id))

    def ready(self, uid: str, container: ContainerRecord) -> bool:
        return container.running and (
            uid not in self._probed or self.probes.is_ready(uid, container.name, container.id)
        )

    def remember(self, pod: Pod) -> None:
        """Store the readiness that the status reports, if it has changed."""
        if pod.uid in self._recorded:
            statuses = _statuses(pod.status)
            known = {s.name: (s.container_id, s.ready, bool(s.started)) for s in statuses if s.container_id}
            self._kept.write(pod.uid, known)

    def _restored(self, uid: str) -> PodStatus | None:
        known = self._kept.read(uid) if uid in self._recorded else {}
        if not known:
            return None
        return PodStatus(
            container_statuses=[
                ContainerStatus(
                    name=name,
                    container_id=identity.rpartition("/")[2],
                    ready=ready,
                    started=started,
                    restart_count=0,
                    image="",
                    image_id="",
                )
                for name, (identity, ready, started) in known.items()
            ]
        )


def _statuses(status: PodStatus) -> list[ContainerStatus]:
    return [*(status.init_container_statuses or []), *(status.container_statuses or [])]
