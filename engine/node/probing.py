"""Between pods and their probes: who is probed, what the runtime says of them, and what follows.

What was ready and started is kept in `<pod directory>/readiness.json`, so that an agent that comes back
doesn't call ready pods unready until their first probe, nor run startup probes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.status import ContainerStatus, PodStatus
from engine.cri.records import EXITED, RUNNING, ContainerRecord, PodRecord
from engine.host.kept import keep, kept
from engine.node.actions import Health
from engine.probes.manager import ProbeManager

FILE = "readiness.json"
_STATES: dict[int, str] = {RUNNING: "running", EXITED: "terminated"}

Known = dict[str, tuple[str, bool, bool]]
"""Container name → its id, whether it was ready, whether it had started."""


class Probing:
    """`pod_directory(uid)` is where a pod's files are."""

    def __init__(self, probes: ProbeManager, pod_directory: Callable[[str], Path]) -> None:
        self.probes = probes
        self._pod_directory = pod_directory
        self._written: dict[str, int] = {}
        """Pod UID → hash of what its file says."""

    def accepted(self, pod: Pod) -> None:
        """Begin to probe the pod."""
        self.probes.add_pod(pod, restored=self._restored(pod.uid))

    def observed(self, pod: Pod, record: PodRecord) -> None:
        """What the runtime holds of the pod now."""
        sandbox = record.sandbox
        ip = pod.status.pod_ip or (sandbox.ips[0] if sandbox is not None and sandbox.ips else "")
        self.probes.update_pod(pod.uid, pod_ip=ip, phase=pod.status.phase)
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
        self._written.pop(uid, None)

    def health(self, uid: str, container: ContainerRecord) -> Health:
        started = self.probes.is_started(uid, container.name, container.id)
        return Health(started, self.probes.failed(uid, container.name, container.id))

    def ready(self, uid: str, container: ContainerRecord) -> bool:
        return container.running and self.probes.is_ready(uid, container.name, container.id)

    def remember(self, pod: Pod) -> None:
        """Keep what the status says of readiness, if it says anything new."""
        statuses = _statuses(pod.status)
        known = {s.name: (s.container_id, s.ready, bool(s.started)) for s in statuses if s.container_id}
        if not known and pod.uid not in self._written:
            return
        text = msgspec.json.encode(known)
        directory = self._pod_directory(pod.uid)
        if hash(text) == self._written.get(pod.uid) or not directory.is_dir():
            return
        with contextlib.suppress(Refused):
            keep(directory / FILE, text)
            self._written[pod.uid] = hash(text)

    def _restored(self, uid: str) -> PodStatus | None:
        path = self._pod_directory(uid) / FILE
        known = kept(path, _decode, without="what was ready counts as not ready")
        if known is None:
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


def _decode(content: bytes) -> Known:
    return msgspec.json.decode(content, type=Known)


def _statuses(status: PodStatus) -> list[ContainerStatus]:
    return [*(status.init_container_statuses or []), *(status.container_statuses or [])]
