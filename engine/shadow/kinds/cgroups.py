"""Compare cgroup values: what the formulas give for every pod, and what the kernel has.

An observation reads the files of the QoS levels, of pods that changed, and a part of the others, because
reading all files of a full node would cost more than everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from engine.api.pod import Container, Pod
from engine.api.qos import qos_class
from engine.cgroups.formulas.containers import container_resources
from engine.cgroups.formulas.conversion import UNLIMITED_QUOTA
from engine.cgroups.formulas.names import pod_name, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import pod_values
from engine.cgroups.interface_files import FileRules
from engine.cgroups.plan import container_values, plan_levels
from engine.cri.records import PodRecord
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.observation import Observation

LEVEL_SETTLE: Final = 130.0
"""Seconds; the kubelet updates the QoS levels once a minute, and its own values with the next observation."""
POD_SETTLE: Final = 20.0
PARTS: Final = 30
"""An observation reads one of so many parts of the pods that did not change."""

_CONTAINER_FILES: Final = frozenset(
    ["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "cpu.weight", "cpu.max",
     "memory.max", "memory.min", "memory.low", "memory.high", "memory.oom.group"]
)  # fmt: skip
"""Files whose values a kubelet determines for containers. The OCI runtime's defaults fill the others."""
_RESIZING: Final = ("PodResizePending", "PodResizeInProgress")
_SCOPES: Final = {"containerd": "cri-containerd-", "cri-o": "crio-"}

Exclusive = Mapping[str, Sequence[str]]
"""Pod uid → the containers that have exclusive CPUs."""


class WantedGroup(NamedTuple):
    """Describe one cgroup: its path, what it is in words, file → text, and the reason for the values.

    `oom_score_adj` is set for containers; `oom_floor` is as in `CgroupRules`.
    """

    path: str
    subject: str
    files: Mapping[str, str]
    reason: str
    settle: float
    oom_score_adj: int | None = None
    oom_floor: int | None = None


@dataclass(slots=True)
class GroupReading:
    """Hold what the kernel has: file → text, None for a missing file; `oom_score_adj` of its first
    process.
    """

    files: Mapping[str, str | None]
    oom_score_adj: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupRules:
    """Hold the rules of one configuration on this machine; `runtime` is the name that the runtime reports.

    `oom_floor` is the runtime's own `oom_score_adj`: one that may not lower it (containerd's
    `restrict_oom_score_adj`) gives its containers no less.
    """

    settings: CgroupSettings
    files: FileRules
    runtime: str = "containerd"
    oom_floor: int | None = None


def wanted_levels(seen: Observation, rules: CgroupRules) -> Iterator[WantedGroup]:
    """Yield the root of all pods, the QoS levels, and enforced reservations."""
    active = seen.active()
    for group in plan_levels(active, rules.settings, rules.files):
        # In v1 the agent copies the parent's CPUs, which says nothing about a decision.
        files = {file: text for file, text in group.files.items() if not file.startswith("cpuset.")}
        reason = f"{len(active)} active pods, {group.qos_class or group.kind}"
        yield WantedGroup(group.path, group.path, files, reason, LEVEL_SETTLE)


def wanted_of_pod(
    pod: Pod, record: PodRecord, rules: CgroupRules, exclusive: Exclusive
) -> Iterator[WantedGroup]:
    """Yield the cgroup of a pod that has begun to run, and those of its running containers."""
    if record.sandbox is None or not record.sandbox.ready or _is_resizing(pod):
        return
    settings = rules.settings
    pinned = exclusive.get(pod.uid, ())
    of_pod = msgspec.structs.replace(settings.pods, enforce_cpu_limits=False) if pinned else settings.pods
    path = to_path(pod_name(settings.root, qos_class(pod), pod.uid), settings.driver)
    files = rules.files.files(pod_values(pod, of_pod))
    yield WantedGroup(path, pod.full_name, files, _amounts(pod.all_containers), POD_SETTLE)
    for container in pod.all_containers:
        newest = record.container(container.name)
        if newest is None or not newest.running:
            continue
        wanted = container_resources(pod, container, settings.containers)
        if container.name in pinned and wanted.cpu_quota:
            wanted = msgspec.structs.replace(wanted, cpu_quota=UNLIMITED_QUOTA)
        files = rules.files.files(container_values(wanted))
        yield WantedGroup(
            f"{path}/{_directory(newest.id, rules)}",
            f"{pod.full_name}/{container.name}",
            {file: text for file, text in files.items() if file in _CONTAINER_FILES},
            _amounts([container]),
            POD_SETTLE,
            wanted.oom_score_adj,
            rules.oom_floor,
        )


def compare_group(wanted: WantedGroup, found: GroupReading | None) -> Iterator[Finding]:
    """Yield one comparison of a cgroup's values, and one of its processes' OOM score.

    Files that the kernel does not have are left out: their controllers are not mounted. `found` is None if
    the cgroup does not exist.
    """
    if found is None:
        yield Comparison(
            "cgroups", wanted.subject, "exists", "does not exist", wanted.reason, wanted.path, wanted.settle
        )
        return
    both = {file: text for file, text in wanted.files.items() if found.files.get(file) is not None}
    differing = [file for file, text in both.items() if found.files[file] != text]
    shown = differing or list(both)
    yield Comparison(
        "cgroups",
        wanted.subject,
        " ".join(f"{file}={both[file]}" for file in shown),
        " ".join(f"{file}={found.files[file]}" for file in shown),
        wanted.reason,
        f"read from {wanted.path}",
        wanted.settle,
    )
    if wanted.oom_score_adj is None or found.oom_score_adj is None:
        return
    if wanted.oom_score_adj < found.oom_score_adj == wanted.oom_floor:
        yield NotJudged("oom-score", wanted.subject, "the runtime restricts it to its own")
    else:
        yield Comparison(
            "oom-score", wanted.subject, str(wanted.oom_score_adj), str(found.oom_score_adj), wanted.reason,
            "oom_score_adj of the container's first process", wanted.settle,
        )  # fmt: skip


ReadGroup = Callable[[WantedGroup], GroupReading | None]
KEPT: Final = "the kubelet leaves what an earlier configuration gave until the pod starts again"


class RulesInTime:
    """Hold the rules of the live configuration, and those before it with the time of the change."""

    def __init__(self) -> None:
        self.now: CgroupRules | None = None
        self.earlier: CgroupRules | None = None
        self.changed_at = 0.0

    def follow(self, rules: CgroupRules, at: float) -> None:
        """Take the rules of an observation at a Unix time."""
        if self.now is not None and self.now.settings != rules.settings:
            self.earlier, self.changed_at = self.now, at
        self.now = rules


def compare_pod(
    pod: Pod, record: PodRecord, rules: RulesInTime, exclusive: Exclusive, read: ReadGroup
) -> Iterator[Finding]:
    """Yield the comparisons of a pod's cgroups and those of its containers.

    A kubelet v1.36 that starts with another configuration writes the values of a pod when it makes the pod's
    cgroup, which stays if the pod gets another sandbox. So values of the earlier configuration are no
    difference if the pod is older than the change.
    """
    assert rules.now is not None
    earlier: dict[str, WantedGroup] = {}
    sandbox = record.sandbox
    older = sandbox is not None and (sandbox.attempt > 0 or sandbox.created_at < rules.changed_at)
    if rules.earlier is not None and older:
        earlier = {one.subject: one for one in wanted_of_pod(pod, record, rules.earlier, exclusive)}
    for wanted in wanted_of_pod(pod, record, rules.now, exclusive):
        found, before = read(wanted), earlier.get(wanted.subject)
        kept = [] if before is None else [one.kind for one in compare_group(before, found) if _agrees(one)]
        for finding in compare_group(wanted, found):
            if finding.kind in kept and not _agrees(finding):
                yield NotJudged(finding.kind, finding.subject, KEPT)
            else:
                yield finding


def _agrees(finding: Finding) -> bool:
    return isinstance(finding, Comparison) and finding.agrees


class Rotation:
    """Choose the pods whose cgroups an observation reads: changed ones, those in doubt, and a part of the
    rest.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}
        self._turn = 0

    def choose(self, seen: Observation, doubted: Iterable[str]) -> list[Pod]:
        """Return the pods to read; `doubted` are names of pods whose last comparison differed."""
        in_doubt = {"/".join(subject.split("/")[:2]) for subject in doubted}
        self._turn = (self._turn + 1) % PARTS
        chosen, known = [], {}
        for place, pod in enumerate(seen.active()):
            state = _fingerprint(pod, seen.record(pod.uid))
            known[pod.uid] = state
            if self._known.get(pod.uid) != state or pod.full_name in in_doubt or place % PARTS == self._turn:
                chosen.append(pod)
        self._known = known
        return chosen


def _fingerprint(pod: Pod, record: PodRecord) -> tuple[int, ...]:
    return (id(pod.spec), *(hash((c.id, c.state)) for c in record.containers))


def _is_resizing(pod: Pod) -> bool:
    return any(condition.type in _RESIZING for condition in pod.status.conditions or ())


def _directory(container_id: str, rules: CgroupRules) -> str:
    if rules.settings.driver != "systemd":
        return container_id
    return f"{_SCOPES.get(rules.runtime, '')}{container_id}.scope"


def _amounts(containers: Iterable[Container]) -> str:
    """Describe the requests and limits of the containers."""
    said = []
    for container in containers:
        requests = " ".join(f"{name}={amount}" for name, amount in container.requests.items()) or "nothing"
        limits = " ".join(f"{name}={amount}" for name, amount in container.limits.items()) or "nothing"
        said.append(f"{container.name} requests {requests}, limits {limits}")
    return "; ".join(said)
