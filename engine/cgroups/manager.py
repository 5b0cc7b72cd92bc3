"""The façade: one node's cgroups, kept as they should be.

The node calls `start` once, `create_pod` before a pod's sandbox, `remove_pod` after its last
container; every call is synchronous, since a cgroup file takes microseconds. What one pod's coming or
going changes is known from running sums, so it costs O(1) however many pods there are, and only
values that differ are written. `reconcile`, once a minute, makes sure of a sample.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Container, Pod, ResourceList
from engine.api.qos import qos_class
from engine.api.quantity import Quantity
from engine.api.resources import MEMORY
from engine.cgroups import inspection
from engine.cgroups.allocatable import PID
from engine.cgroups.checks import Finding
from engine.cgroups.containers import ContainerResources, container_resources
from engine.cgroups.conversion import WeightFormula
from engine.cgroups.files import MEMORY_LIMIT, MEMORY_USAGE, FileRules
from engine.cgroups.level_keeper import LevelKeeper
from engine.cgroups.levels import LEVELS, Contribution, LevelSums
from engine.cgroups.machine import huge_page_sizes, swap_capacity
from engine.cgroups.mounts import Mounts, find_mounts
from engine.cgroups.names import CgroupName, level_name, pod_name, pod_uid, to_path
from engine.cgroups.resize import PodStep, resize_steps
from engine.cgroups.runtime_formula import detect_formula
from engine.cgroups.settings import CgroupSettings, ReservedGroup
from engine.cgroups.tree import CgroupTree
from engine.cgroups.values import pod_values
from engine.metrics import Registry

REQUIRED = ("cpu", "memory")
WANTED = ("pids", "cpuset")
DURATION_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A pod cgroup found on the machine: its class and where it is."""

    uid: str
    qos_class: str
    name: CgroupName
    path: str


class CgroupManager:
    """Cgroups of one node.

    `root` is where the hierarchies are mounted (found if not given). `capacity` has quantities, or
    integers in milli-CPU for cpu and base units for the rest, `pid` among them if known.
    """

    enabled = True

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        section: CgroupsSection | None = None,
        capacity: Mapping[str, Quantity | int],
        root: str | None = None,
        registry: Registry | None = None,
        mounts: Mounts | None = None,
    ) -> None:
        self.section = section or CgroupsSection()
        self.mounts = mounts or find_mounts(root)
        version = self.mounts.version
        controllers = self.mounts.controllers
        sizes = huge_page_sizes() if "hugetlb" in controllers else ()
        self.settings = CgroupSettings.resolve(
            config,
            capacity,
            cgroup_v2=version == 2,
            section=self.section,
            swap_controller="memory" in controllers and swap_capacity() > 0,
            swap_capacity=swap_capacity(),
            huge_page_sizes=huge_page_sizes(),
        )
        if version == 1 and config.single_process_oom_kill is False:
            raise InvalidInput("false needs cgroup v2", subject="singleProcessOOMKill")
        self.formula: WeightFormula
        if version == 1:
            self.formula, self.formula_reason = "linear", "cgroup v1 has shares, not weights"
        elif self.section.cpu_weight == "auto":
            self.formula, self.formula_reason = detect_formula(self.section.oci_runtime)
        else:
            self.formula, self.formula_reason = self.section.cpu_weight, "configured"
        files = FileRules(
            version,
            self.formula,
            sizes,
            controllers & {"cpu", "memory", "pids", "hugetlb", "cpuset", "io"},
        )
        slices = None
        if self.settings.driver == "systemd":
            from engine.cgroups.systemd import SystemdSlices

            slices = SystemdSlices.connect()
        self.tree = CgroupTree(self.mounts, files, driver=self.settings.driver, slices=slices)
        self.levels = LevelKeeper(self.tree, self.settings)
        self.lacking: tuple[str, ...] = ()
        self.refusals: dict[str, str] = {}
        self.pods: dict[str, tuple[Pod, CgroupName]] = {}
        self._sample = 0
        registry = registry or Registry()
        self._durations = registry.histogram(
            "kubelet_cgroup_manager_duration_seconds",
            "Duration of cgroup manager operations, in seconds.",
            ("operation_type",),
            DURATION_BUCKETS,
        )
        registry.gauge("kubelet_cgroup_version", "The cgroup version of this host.").set(version)
        self._drift = registry.counter(
            "kubengine_cgroup_drift_total", "Cgroup files that were changed behind the agent's back."
        )
        registry.collected(
            "counter",
            "kubengine_cgroup_writes_total",
            "Cgroup files written.",
            (),
            lambda: [((), float(self.tree.writes))],
        )

    def start(self) -> None:
        """Make the root of all pods and the QoS levels and give them their values.

        Raises `Refused` with the path for a missing cpu or memory controller, a read-only mount, a
        refused value, or reservations larger than the node.
        """
        over = self.settings.node.over_reserved()
        if over:
            raise Refused(
                f"more {', '.join(over)} is reserved than the node has; lower kubeReserved, "
                "systemReserved or evictionHard",
                subject="node allocatable",
            )
        self._check_controllers()
        self.levels.use_cpuset(self._inherited_cpuset())
        for level in LEVELS:
            name = self.levels.names[level]
            self.tree.group(name).delegates = True
            with self._timed("create"):
                self.tree.make(name)
        self._write_levels()
        for reserved in self.settings.reserved_groups:
            self._enforce(reserved)

    def stop(self) -> None:
        """Close descriptors. Groups stay, as the pods in them go on running."""
        self.tree.close()

    def create_pod(self, pod: Pod) -> str:
        """Make the pod's cgroup (or adopt it) and give it its values; returns the CRI cgroup parent.

        The levels follow at once. Raises `Refused` with the path; calling again repairs what can be.
        """
        name = self._pod_name(pod)
        self.pods[pod.uid] = (pod, name)
        self.levels.sums.put(pod.uid, Contribution.of(pod))
        self._write_levels()
        self.tree.group(name).delegates = True
        with self._timed("create"):
            self._write_pod(pod, name)
        return self.cgroup_parent(pod)

    def _write_pod(self, pod: Pod, name: CgroupName) -> None:
        """A group that was there before may hold more than its new values allow (the manifest shrank
        while no agent was looking): they then wait in `refusals` for `reconcile`, as a limit below
        usage kills (v2) or is refused (v1)."""
        adopted = not self.tree.group(name).made and self.tree.exists(name)
        files = self.pod_files(pod)
        if not adopted:
            self.tree.write(name, files)
            return
        limit = MEMORY_LIMIT[self.mounts.version]
        used = self.tree.read(name, MEMORY_USAGE[self.mounts.version]) or "0"
        if files[limit].isdigit() and int(used) > int(files[limit]):
            self.refusals[pod.uid] = f"memory in use ({used}) is above the limit {files.pop(limit)}"
        try:
            self.tree.write(name, files)
        except Refused as error:
            if error.errno not in (errno.EBUSY, errno.EINVAL):
                raise
            self.refusals[pod.uid] = str(error)

    def cgroup_parent(self, pod: Pod) -> str:
        """What the runtime is given as the sandbox's `cgroup_parent`: a path, or a slice's name."""
        path = to_path(self._pod_name(pod), self.settings.driver)
        return path.rpartition("/")[2] if self.settings.driver == "systemd" else path

    def pod_files(self, pod: Pod) -> dict[str, str]:
        """File → text that the pod's cgroup should have."""
        return self.tree.rules.files(pod_values(pod, self.settings.pods))

    async def resize_pod(
        self,
        old: Pod,
        new: Pod,
        update_container: Callable[[str, ContainerResources], Awaitable[None]],
        container_usage: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Do an in-place resize: the pod's group, its containers through `update_container` (name and
        values; CRI UpdateContainerResources) and its level, in the order that KEP-1287 asks for.

        `container_usage` is memory in use by container name, in bytes. A memory limit below what is in
        use is refused before anything would be killed. Raises `Refused` at the first step that cannot
        be done; calling again goes on from there. Containers that restart for it are not updated.
        """
        before, after = self.levels.sums.pods.get(new.uid), Contribution.of(new)
        if before is not None and after.cpu_milli > before.cpu_milli:
            self.levels.sums.put(new.uid, after)
            self._write_levels()
        for step in resize_steps(old, new, self.settings.pods, self.settings.containers):
            if isinstance(step, PodStep):
                self._resize_group(new, step)
                continue
            limit, used = step.resources.memory_limit_in_bytes, container_usage.get(step.container, 0)
            if step.resource == MEMORY and step.shrinks and 0 < limit < used:
                raise Refused(
                    f"attempting to set container {step.container} memory limit ({limit}) below "
                    f"current usage ({used})",
                    subject=new.full_name,
                    errno=errno.EBUSY,
                )
            await update_container(step.container, step.resources)
        if before is not None:
            self.levels.sums.put(new.uid, after)
            self._write_levels()
        if new.uid in self.pods:
            self.pods[new.uid] = (new, self.pods[new.uid][1])

    def _resize_group(self, pod: Pod, step: PodStep) -> None:
        name = self._pod_name(pod)
        files = self.pod_files(pod)
        if step.resource == MEMORY:
            limits = {MEMORY_LIMIT[self.mounts.version]}
        else:
            limits = {"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"}
        chosen = {
            file: text
            for file, text in files.items()
            if file.partition(".")[0] == step.resource and (file in limits) == (step.part == "limit")
        }
        if step.resource == MEMORY and step.part == "limit" and step.shrinks:
            limit = chosen[MEMORY_LIMIT[self.mounts.version]]
            used = self.tree.read(name, MEMORY_USAGE[self.mounts.version]) or "0"
            if limit.isdigit() and int(used) > int(limit):
                raise Refused(
                    f"attempting to set pod memory limit ({limit}) below current usage ({used})",
                    subject=self.tree.group(name).path,
                    errno=errno.EBUSY,
                )
        with self._timed("update"):
            self.tree.write(name, chosen)

    def has_pod(self, uid: str) -> bool:
        """Whether we made or adopted a group for this pod; O(1), unlike `existing_pods`."""
        return uid in self.pods

    def allocatable(self) -> ResourceList:
        """What pods may request: capacity less reservations and hard eviction thresholds. `pid`, which
        pods cannot request, is left out."""
        amounts = self.settings.node.allocatable()
        amounts.pop(PID, None)
        return amounts

    def container_resources(self, pod: Pod, container: Container) -> ContainerResources:
        """What the runtime is told for one container."""
        return container_resources(pod, container, self.settings.containers)

    def finish_pod(self, uid: str) -> None:
        """The pod has ended: its requests no longer count for its level. Its group stays until
        `remove_pod`."""
        self.levels.sums.drop(uid)
        self._write_levels()

    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        """Remove the pod's cgroup from every hierarchy, with all groups below it.

        Processes left in it are killed first (`kill`). It is tried again for `wait` seconds, then
        `Refused` (EBUSY) is raised; call again later. A pod without a group is fine.
        """
        self.levels.sums.drop(uid)
        known = self.pods.get(uid)
        names = [known[1]] if known is not None else [g.name for g in self.pod_groups() if g.uid == uid]
        for found in names:
            with self._timed("destroy"):
                self.tree.remove(found, kill=kill, wait=wait)
        self.pods.pop(uid, None)
        self.refusals.pop(uid, None)
        self._write_levels()

    def existing_pods(self) -> dict[str, PodGroup]:
        """Pod cgroups on the machine, whoever made them, by uid: for cleaning up at start."""
        return {group.uid: group for group in self.pod_groups()}

    def pod_path(self, uid: str) -> str | None:
        """The pod's cgroup from the root of the hierarchy (`/kubepods/…`), None if it has none."""
        known = self.pods.get(uid)
        return to_path(known[1], self.settings.driver) if known is not None else None

    def kill_container(self, uid: str, group: str) -> int:
        """Kill what runs in one group of a pod's (a container's id); the count of processes. For a
        container that its runtime has lost hold of."""
        known = self.pods.get(uid)
        return self.tree.kill((*known[1], group)) if known is not None else 0

    def root_path(self) -> str:
        """The root of all pods' cgroups, from the root of the hierarchy."""
        return to_path(self.settings.root, self.settings.driver)

    def pod_groups(self) -> list[PodGroup]:
        """Like `existing_pods`; a uid is there twice if it has a group under two levels."""
        root, driver = self.settings.root, self.settings.driver
        found: list[PodGroup] = []
        for level in LEVELS:
            parent = level_name(root, level)
            for child in self.tree.children(parent):
                path = f"{to_path(parent, driver).rstrip('/')}/{child}"
                uid = pod_uid(root, path, driver)
                if uid is not None:
                    found.append(PodGroup(uid, level, pod_name(root, level, uid), path))
        return found

    def update_qos(self, active_pods: Sequence[Pod]) -> int:
        """Set the sums from all active pods anew, and write what differs; the count of files."""
        self.levels.sums = LevelSums()
        for pod in active_pods:
            self.levels.sums.put(pod.uid, Contribution.of(pod))
        return self._write_levels()

    def reconcile(self, pods: Iterable[Pod] = ()) -> int:
        """Once a minute: retry refused values, write what is not as it should be, and re-read a
        sample of the groups, the root and levels always. Returns the number of files put right.

        Refusals are kept in `refusals` and not raised. `pods`, if given, become the active pods.
        """
        before = self.tree.writes
        pods = list(pods)
        if pods:
            self.levels.sums = LevelSums()
            for pod in pods:
                self.levels.sums.put(pod.uid, Contribution.of(pod))
        for name in (self.levels.names[level] for level in LEVELS):
            self._drift.inc(by=len(self.tree.verify(name)))
        self._write_levels(everything=True)
        uids = list(self.pods)
        sample = {uids[(self._sample + i) % len(uids)] for i in range(self.section.reconcile_sample) if uids}
        self._sample += self.section.reconcile_sample
        for uid in uids:
            self._restore(uid, self.pods[uid][1], sampled=uid in sample)
        return self.tree.writes - before

    def _restore(self, uid: str, name: CgroupName, *, sampled: bool) -> None:
        group = self.tree.group(name)
        refused = self.refusals.pop(uid, None) is not None
        if sampled:
            self._drift.inc(by=len(self.tree.verify(name)))
        elif group.made and not refused:
            return
        try:
            self.tree.write(name, group.wanted)
            if refused:
                group.made = False
                self._write_pod(self.pods[uid][0], name)
        except Refused as error:
            self.refusals[uid] = str(error)

    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        """Remove the root of all pods with everything below it: the end of a development node."""
        self.tree.remove(self.settings.root, kill=kill, wait=wait)
        self.pods.clear()
        for depth in range(len(self.settings.root) - 1, 0, -1):
            try:
                self.tree.remove(self.settings.root[:depth])
            except Refused:
                break

    def snapshot(self, *, containers: bool = True) -> list[dict[str, Any]]:
        """Every group with each file's wanted and actual text: the root, the levels, then pods."""
        return inspection.snapshot(self, containers=containers)

    def describe(self, *, uid: str = "", **_: str) -> dict[str, Any]:
        """For `kubengine cgroups` and the status page: the node's settings and every group."""
        return inspection.describe(self, uid)

    def check(self, pods: Sequence[Pod] | None = None, *, fix: bool = False) -> list[Finding]:
        """Faults of the node's cgroups, and what each means; with `fix` they are put right if possible.

        `pods` are all pods of the node, by default those that were created here.
        """
        known = [pod for pod, _ in self.pods.values()] if pods is None else pods
        return inspection.check(self, known, fix=fix)

    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """`check`, with `fix=1` to put right what it finds. Raises `InvalidInput` for anything else."""
        if action != "check":
            raise InvalidInput("expected check", subject=action)
        return [finding.as_dict() for finding in self.check(fix=query.get("fix") == "1")]

    def adopt(self, pods: Iterable[Pod]) -> None:
        """Know these pods as if they had been created here, writing nothing: for looking at a node
        that another agent runs."""
        for pod in pods:
            name = self._pod_name(pod)
            self.pods[pod.uid] = (pod, name)
            self.levels.sums.put(pod.uid, Contribution.of(pod))
            self.tree.group(name).wanted = self.pod_files(pod)
        self.levels.want()

    def use_formula(self, formula: WeightFormula) -> None:
        """Give weights by another formula from now on, and every group its new weight."""
        self.formula, self.formula_reason = formula, "matched to the containers' weights"
        self.tree.rules = replace(self.tree.rules, formula=formula)
        for pod, name in self.pods.values():
            self.tree.group(name).wanted.update(self.pod_files(pod))
        self.levels.want()

    def write_all(self) -> int:
        """Write what differs, everywhere; the count of files. Raises `Refused` at the first refusal."""
        levels = [self.levels.names[level] for level in LEVELS]
        names = [*levels, *(name for _, name in self.pods.values())]
        return sum(self.tree.write(name, self.tree.group(name).wanted) for name in names)

    def _pod_name(self, pod: Pod) -> CgroupName:
        return pod_name(self.settings.root, qos_class(pod), pod.uid)

    def _inherited_cpuset(self) -> str | None:
        """All CPUs of the parent: v1 wants them named, under v2 an empty text means them."""
        if "cpuset" not in self.mounts.controllers:
            return None
        if self.mounts.version == 2:
            return ""
        parent = to_path(self.settings.root[:-1], self.settings.driver)
        self.tree.make(self.settings.root[:-1])
        return self.tree.read_path(parent.rstrip("/"), "cpuset.cpus") or None

    def _check_controllers(self) -> None:
        offered = self.mounts.controllers
        for hierarchy in self.mounts.hierarchies:
            if hierarchy.read_only:
                raise Refused(
                    "the cgroup file system is mounted read-only; remount it read-write",
                    subject=hierarchy.path,
                    errno=errno.EROFS,
                )
        missing = [controller for controller in REQUIRED if controller not in offered]
        if missing:
            where = self.mounts.hierarchies[0].path if self.mounts.version == 2 else "/proc/cgroups"
            raise Refused(
                f"the {' and '.join(missing)} controller is missing; enable it on the kernel command "
                "line, or run without cgroups (cgroupsPerQOS: false)",
                subject=where,
                errno=errno.ENOENT,
            )
        self.lacking = tuple(controller for controller in WANTED if controller not in offered)

    def _write_levels(self, *, everything: bool = False) -> int:
        with self._timed("update"):
            return self.levels.write(everything=everything)

    def _enforce(self, reserved: ReservedGroup) -> None:
        """Write a reservation to a group that somebody else made, as the kubelet does."""
        if not self.tree.exists(reserved.name):
            path = to_path(reserved.name, self.settings.driver)
            raise Refused(f"{reserved.kind} is enforced, but its cgroup does not exist", subject=path)
        self.tree.write(reserved.name, self.tree.rules.given_files(reserved.values()))

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._durations.observe(time.perf_counter() - started, operation)
