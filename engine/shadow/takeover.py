"""Predict what happens to each pod if this agent takes the node over now, or a kubelet takes it back.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from engine.api import cpu_set
from engine.api.pod import Pod, Volume
from engine.api.qos import is_static
from engine.cpumanager.restoring import RestoredCpus
from engine.cri.records import ContainerRecord, PodRecord
from engine.devices.checkpoint import Checkpoint
from engine.dra.table import ClaimState
from engine.memorymanager.restoring import RestoredMemory
from engine.node.sources.static_pods import agrees
from engine.node.spec.cri_config import container_hash
from engine.node.sync.actions import ContainerHealth, compute_pod_actions
from engine.shadow.kinds.observation import ENDED, Observation

Fate = Literal["restarts", "moves", "refused", "kept", "ended"]
FATES: Final[tuple[Fate, ...]] = ("restarts", "moves", "refused", "kept", "ended")
"""The order of a report: pods that change come first."""

WITHOUT_DRIVER: Final = (
    "flex_volume", "git_repo", "glusterfs", "rbd", "cephfs", "flocker", "photon_persistent_disk", "quobyte",
    "scale_io", "storageos",
)  # fmt: skip
"""Volume sources that this agent does not mount. A running pod keeps them until it starts again."""
_RESIZING: Final = frozenset({"PodResizePending", "PodResizeInProgress"})


class PodFate(NamedTuple):
    """Describe the fate of one pod, the reason, and its fate if a kubelet takes the node back (`back`).
    `holds` lists its CPUs, memory, devices, claims and volumes.
    """

    pod: str
    fate: Fate
    why: str
    back: str
    holds: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "holds": list(self.holds)}


class NodeFinding(NamedTuple):
    """Report a fact about the node. One that `stops` the takeover has to be resolved before it."""

    subject: str
    text: str
    stops: bool = False


class PublishedVolume(NamedTuple):
    """Identify a volume that a CSI driver has published for a pod; `name` is that of its directory."""

    uid: str
    name: str
    driver: str
    handle: str


@dataclass(slots=True)
class Holdings:
    """Hold descriptions of the assignments of each pod, by uid: those that stay valid, and those that do
    not.
    """

    kept: dict[str, list[str]] = field(default_factory=dict)
    lost: dict[str, list[str]] = field(default_factory=dict)

    def add_cpus(self, restored: RestoredCpus) -> None:
        for uid, name, cpus in restored.state.entries():
            self.kept.setdefault(uid, []).append(f"{name}: CPUs {cpu_set.text(cpus)}")
        for one in restored.lost:
            text = f"{one.container} had CPUs {one.cpus}: {one.reason}"
            self.lost.setdefault(one.pod_uid, []).append(text)

    def add_memory(self, restored: RestoredMemory) -> None:
        for uid, name, blocks in restored.state.entries():
            for block in blocks:
                text = f"{name}: {block.size} bytes of {block.type} on NUMA {_numbers(block.nodes)}"
                self.kept.setdefault(uid, []).append(text)
        for one in restored.lost:
            text = f"{one.container} had memory of its own: {one.reason}"
            self.lost.setdefault(one.pod_uid, []).append(text)

    def add_volumes(self, volumes: Iterable[PublishedVolume]) -> None:
        for one in volumes:
            self.kept.setdefault(one.uid, []).append(f"CSI volume {one.name}: {one.driver} {one.handle}")

    def add_claims(self, claims: Iterable[ClaimState]) -> None:
        for claim in claims:
            devices = ", ".join(
                f"{driver} {device.pool}/{device.device}" for driver, device in claim.devices()
            )
            for uid in claim.pods:
                text = f"claim {claim.namespace}/{claim.name}: {devices or 'not prepared'}"
                self.kept.setdefault(uid, []).append(text)

    def add_devices(self, checkpoint: Checkpoint) -> None:
        for entry in checkpoint.pod_device_entries or ():
            text = f"{entry.container_name}: {entry.resource_name} {', '.join(sorted(entry.devices))}"
            self.kept.setdefault(entry.pod_uid, []).append(text)


def driver_findings(kind: str, held: Counter[str], answering: Collection[str]) -> Iterator[NodeFinding]:
    """Report for each driver in `held`, which maps it to the number of its volumes or claims (`kind`),
    whether it answers. A driver that does not answer stops the takeover.
    """
    for driver, count in sorted(held.items()):
        if driver in answering:
            text = f"its driver registers again with the new agent; {count} {kind} of pods stay as they are"
            yield NodeFinding(driver, text)
        else:
            text = (
                f"{count} {kind} of pods are of this driver, and no socket in plugins_registry answers for "
                "it: start it, or they can neither be released nor be prepared again"
            )
            yield NodeFinding(driver, text, stops=True)


def pod_fates(seen: Observation, holdings: Holdings) -> list[PodFate]:
    """Return the fate of every pod, in the order of `FATES` and of names."""
    found = [_fate(pod, seen.record(pod.uid), holdings) for pod in seen.pods.values()]
    return sorted(found, key=lambda one: (FATES.index(one.fate), one.pod))


def summary(fates: Sequence[PodFate]) -> Mapping[Fate, int]:
    """Return how many pods have each fate."""
    return {fate: sum(one.fate == fate for one in fates) for fate in FATES}


def _fate(pod: Pod, record: PodRecord, holdings: Holdings) -> PodFate:
    if pod.status.phase in ENDED:
        return PodFate(pod.full_name, "ended", *_after_its_end(pod))
    holds = (*holdings.kept.get(pod.uid, ()), *_volumes(pod))
    fate, why = _of_running(pod, record, holdings.lost.get(pod.uid, ()))
    return PodFate(pod.full_name, fate, why, _way_back(pod), holds)


def _of_running(pod: Pod, record: PodRecord, lost: Sequence[str]) -> tuple[Fate, str]:
    """Return the fate and its reason of a pod that has not ended."""
    if record.empty:
        return "kept", "nothing of it runs yet; it is admitted and started"
    why = _restarts(pod, record)
    if why:
        return "restarts", why
    if lost:
        return "moves", "; ".join(lost)
    without = [volume.name for volume in pod.spec.volumes or () if _has_no_driver(volume)]
    if without:
        text = f"runs on, but nothing of it starts again: no driver mounts its volumes {', '.join(without)}"
        return "refused", text
    return "kept", "adopted without another admission"


def _restarts(pod: Pod, record: PodRecord) -> str:
    """Return the reason why this agent would stop containers of a running pod, "" if it would not."""
    if is_static(pod) and not agrees(pod, record):
        return "its containers in the runtime differ from its manifest by name or content"
    actions = compute_pod_actions(pod, record, health=_healthy, spec_hash=container_hash)
    if actions.kill:
        return "; ".join(f"{one.container.name}: {one.message}" for one in actions.kill)
    if actions.kill_pod or actions.create_sandbox:
        return "its sandbox is not usable: it has ended, has no address, or is not the only one"
    return ""


def _healthy(running: ContainerRecord) -> ContainerHealth:
    """Return good health: results of probes are not known before the takeover."""
    return ContainerHealth()


def _volumes(pod: Pod) -> Iterator[str]:
    """Describe the volumes of a pod by name and source."""
    for volume in pod.spec.volumes or ():
        names = zip(volume.__struct_fields__, volume.__struct_encode_fields__, strict=True)
        sources = (shown for name, shown in names if name != "name" and getattr(volume, name) is not None)
        yield f"volume {volume.name} ({next(sources, 'emptyDir')})"


def _has_no_driver(volume: Volume) -> bool:
    return any(getattr(volume, name) is not None for name in WITHOUT_DRIVER)


def _way_back(pod: Pod) -> str:
    """Return the fate of a running pod if a kubelet takes the node back, provided that the pod does not
    change.
    """
    resizing = _RESIZING.intersection(condition.type for condition in pod.status.conditions or ())
    if is_static(pod) and resizing:
        return "restarts if its resize is carried out before: its manifest then has another uid"
    return "kept"


def _after_its_end(pod: Pod) -> tuple[str, str]:
    """Return the reason why an ended pod stays ended, and its fate if a kubelet takes the node back."""
    status = pod.status
    reason = f" ({status.reason})" if status.reason else ""
    text = f"has ended as {status.phase}{reason}"
    if is_static(pod) and status.reason:
        # The runtime holds nothing of a pod that was rejected or evicted, so neither agent knows of it.
        return f"{text}; without an API server its manifest is admitted or refused again", "judged again"
    return text, "stays ended"


def _numbers(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
