"""Compare cgroup values: the results of the formulas for every pod, and the files of the kernel.

An observation reads the files of the QoS levels, of pods that changed, and of a part of the others. To read
all files of a full node would take more time than the rest of the observation.
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
"""Seconds. The kubelet updates the QoS levels once a minute."""
POD_SETTLE: Final = 20.0
PARTS: Final = 30
"""The pods that did not change are divided into this many parts; an observation reads one of them."""

_CONTAINER_FILES: Final = frozenset(
    ["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "cpu.weight", "cpu.max",
     "memory.max", "memory.min", "memory.low", "memory.high", "memory.oom.group"]
)  # fmt: skip
"""Files of containers whose values a kubelet determines. The others have defaults of the OCI runtime."""
_RESIZING: Final = ("PodResizePending", "PodResizeInProgress")
_SCOPES: Final = {"containerd": "cri-containerd-", "cri-o": "crio-"}

Exclusive = Mapping[str, Sequence[str]]
"""Maps the uid of a pod to its containers that have exclusive CPUs."""


class ExpectedGroup(NamedTuple):
    """Describe one cgroup as it should be: its path, its subject (a pod, a container or a path), the texts of
    its files, and the reason for the values.

    `settle` is as in `Comparison`. `oom_score_adj` is set for containers; `oom_floor` is as in `CgroupRules`.
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
    """Hold the texts of the files of a cgroup in the kernel, None for a missing file, and `oom_score_adj` of
    its first process, None without one.
    """

    files: Mapping[str, str | None]
    oom_score_adj: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupRules:
    """Hold the rules of one configuration on this machine. `runtime` is the name that the runtime reports.

    `oom_floor` is the `oom_score_adj` of the runtime itself. A runtime that may not lower it (containerd with
    `restrict_oom_score_adj`) sets no lower value for its containers. None if unknown.
    """

    settings: CgroupSettings
    files: FileRules
    runtime: str = "containerd"
    oom_floor: int | None = None


def expected_levels(seen: Observation, rules: CgroupRules) -> Iterator[ExpectedGroup]:
    """Yield the cgroup of all pods, those of the QoS levels, and those of enforced reservations."""
    active = seen.active()
    for group in plan_levels(active, rules.settings, rules.files):
        # In cgroup v1 the kubelet copies the CPUs of the parent, which is no decision.
        files = {file: text for file, text in group.files.items() if not file.startswith("cpuset.")}
        reason = f"{len(active)} active pods, {group.qos_class or group.kind}"
        yield ExpectedGroup(group.path, group.path, files, reason, LEVEL_SETTLE)


def expected_of_pod(
    pod: Pod, record: PodRecord, rules: CgroupRules, exclusive: Exclusive
) -> Iterator[ExpectedGroup]:
    """Yield the cgroup of a pod with a ready sandbox, and those of its running containers. During a resize
    there are none, because old and new values may both be right.
    """
    if record.sandbox is None or not record.sandbox.ready or _is_resizing(pod):
        return
    settings = rules.settings
    pinned = exclusive.get(pod.uid, ())
    of_pod = msgspec.structs.replace(settings.pods, enforce_cpu_limits=False) if pinned else settings.pods
    path = to_path(pod_name(settings.root, qos_class(pod), pod.uid), settings.driver)
    files = rules.files.files(pod_values(pod, of_pod))
    yield ExpectedGroup(path, pod.full_name, files, _amounts(pod.all_containers), POD_SETTLE)
    for container in pod.all_containers:
        newest = record.container(container.name)
        if newest is None or not newest.running:
            continue
        resources = container_resources(pod, container, settings.containers)
        # A kubelet sets no quota for exclusive CPUs: the throttling of a pinned container would be wrong.
        if container.name in pinned and resources.cpu_quota:
            resources = msgspec.structs.replace(resources, cpu_quota=UNLIMITED_QUOTA)
        files = rules.files.files(container_values(resources))
        yield ExpectedGroup(
            f"{path}/{_directory(newest.id, rules)}",
            f"{pod.full_name}/{container.name}",
            {file: text for file, text in files.items() if file in _CONTAINER_FILES},
            _amounts([container]),
            POD_SETTLE,
            resources.oom_score_adj,
            rules.oom_floor,
        )


def compare_group(expected: ExpectedGroup, found: GroupReading | None) -> Iterator[Finding]:
    """Yield one comparison of a cgroup's values, and one of the OOM score of its processes.

    Files that the kernel does not have are left out: their controllers are not mounted. `found` is None if
    the cgroup does not exist.
    """
    subject, settle = expected.subject, expected.settle
    if found is None:
        yield Comparison(
            "cgroups", subject, "exists", "does not exist", expected.reason, expected.path, settle
        )
        return
    both = {file: text for file, text in expected.files.items() if found.files.get(file) is not None}
    differing = [file for file, text in both.items() if found.files[file] != text]
    shown = differing or list(both)
    yield Comparison(
        "cgroups",
        subject,
        " ".join(f"{file}={both[file]}" for file in shown),
        " ".join(f"{file}={found.files[file]}" for file in shown),
        expected.reason,
        f"read from {expected.path}",
        settle,
    )
    if expected.oom_score_adj is None or found.oom_score_adj is None:
        return
    if expected.oom_score_adj < found.oom_score_adj == expected.oom_floor:
        yield NotJudged("oom-score", subject, "the runtime restricts it to its own")
    else:
        yield Comparison(
            "oom-score", subject, str(expected.oom_score_adj), str(found.oom_score_adj), expected.reason,
            "oom_score_adj of the container's first process", settle,
        )  # fmt: skip


ReadGroup = Callable[[ExpectedGroup], GroupReading | None]
KEPT: Final = "the kubelet leaves what an earlier configuration gave until the pod starts again"


class RulesHistory:
    """Hold the rules of the live configuration, those of the configuration before, and the time of the
    change.
    """

    def __init__(self) -> None:
        self.now: CgroupRules | None = None
        self.earlier: CgroupRules | None = None
        self.changed_at = 0.0

    def update(self, rules: CgroupRules, at: float) -> None:
        """Set the rules of an observation at a Unix time."""
        if self.now is not None and self.now.settings != rules.settings:
            self.earlier, self.changed_at = self.now, at
        self.now = rules


def compare_pod(
    pod: Pod, record: PodRecord, rules: RulesHistory, exclusive: Exclusive, read: ReadGroup
) -> Iterator[Finding]:
    """Yield the comparisons of the cgroups of a pod and its containers.

    A kubelet v1.36 writes the values of a pod when it creates the pod's cgroup, which remains if the pod gets
    another sandbox. So values of the earlier configuration are no difference in a pod that is older than the
    change.
    """
    assert rules.now is not None
    earlier: dict[str, ExpectedGroup] = {}
    sandbox = record.sandbox
    older = sandbox is not None and (sandbox.attempt > 0 or sandbox.created_at < rules.changed_at)
    if rules.earlier is not None and older:
        earlier = {one.subject: one for one in expected_of_pod(pod, record, rules.earlier, exclusive)}
    for expected in expected_of_pod(pod, record, rules.now, exclusive):
        found, before = read(expected), earlier.get(expected.subject)
        kept = [] if before is None else [one.kind for one in compare_group(before, found) if _agrees(one)]
        for finding in compare_group(expected, found):
            if finding.kind in kept and not _agrees(finding):
                yield NotJudged(finding.kind, finding.subject, KEPT)
            else:
                yield finding


def _agrees(finding: Finding) -> bool:
    return isinstance(finding, Comparison) and finding.agrees


class Rotation:
    """Choose the pods whose cgroups an observation reads: pods that changed, those that differed, and one
    part of the others.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}
        self._turn = 0

    def choose(self, seen: Observation, doubted: Iterable[str]) -> list[Pod]:
        """Return the pods to read; `doubted` are subjects whose last comparison differed."""
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
    """Return a key that changes with the spec of a pod and with the state of its containers."""
    return (id(pod.spec), *(hash((c.id, c.state)) for c in record.containers))


def _is_resizing(pod: Pod) -> bool:
    return any(condition.type in _RESIZING for condition in pod.status.conditions or ())


def _directory(container_id: str, rules: CgroupRules) -> str:
    """Return the directory of a container below its pod's: a scope with the prefix of the runtime, or its
    id.
    """
    if rules.settings.driver != "systemd":
        return container_id
    return f"{_SCOPES.get(rules.runtime, '')}{container_id}.scope"


def _amounts(containers: Iterable[Container]) -> str:
    """Describe the requests and limits of the containers."""
    parts = []
    for container in containers:
        requests = " ".join(f"{name}={amount}" for name, amount in container.requests.items()) or "nothing"
        limits = " ".join(f"{name}={amount}" for name, amount in container.limits.items()) or "nothing"
        parts.append(f"{container.name} requests {requests}, limits {limits}")
    return "; ".join(parts)
