"""Provides the façade of a node's cgroups, with the machine's huge pages, swap and disks.

Running sums tell what one pod changes, so a change costs O(1) for any number of pods, and only differing
values are written. `reconcile` verifies a sample once a minute.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.api.resources import MEMORY
from engine.cgroups import inspection
from engine.cgroups.formulas.checks import Finding
from engine.cgroups.formulas.conversion import DEFAULT_PERIOD_US, milli_cpu_to_quota
from engine.cgroups.formulas.file_names import CPU_BURST, CPU_IDLE, CPU_USAGE
from engine.cgroups.formulas.levels import Contribution
from engine.cgroups.formulas.names import CgroupName, to_path
from engine.cgroups.formulas.pod_annotations import FILES, asked, read_annotations
from engine.cgroups.formulas.runtime_formula import choose_formula
from engine.cgroups.formulas.settings import CgroupSettings, ReservedGroup
from engine.cgroups.interface_files import FileRules
from engine.cgroups.node_cgroups import NO_USAGE, NodeCgroups, UpdateContainer, check_asked
from engine.cgroups.pod_cgroups import PodCgroups, PodGroup
from engine.cgroups.qos_cgroups import QosCgroups
from engine.cgroups.resize import ContainerStep, PodStep, resize_steps
from engine.cgroups.slices import Slices
from engine.cgroups.tree import CgroupTree
from engine.host.cgroupfs.mounts import CgroupHierarchy, Mounts, find_mounts
from engine.metrics import Registry

DURATION_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


class CgroupManager(NodeCgroups):
    """Manage the cgroups of one node on `mounts` (searched if not given).

    `capacity` has quantities, or integers in milli-CPU for cpu and base units for the rest, including `pid`
    if known. `levels` and `pods` maintain the cgroups of both kinds in `tree`.
    """

    enabled = True

    def __init__(
        self,
        *,
        config: KubeletConfiguration,
        section: CgroupsSection | None = None,
        capacity: Mapping[str, Quantity | int],
        registry: Registry | None = None,
        mounts: Mounts | None = None,
    ) -> None:
        section = section or CgroupsSection()
        self.mounts = mounts or find_mounts()
        version, memory = self.mounts.version, self.mounts.holding("memory")
        # memory.oom.group exists in v2 only; the kubelet refuses this, too.
        if version == 1 and config.single_process_oom_kill is False:
            raise InvalidInput("false needs cgroup v2", subject="singleProcessOOMKill")
        settings = CgroupSettings.resolve(
            config,
            capacity,
            cgroup_v2=version == 2,
            section=section,
            swap_controller=memory is not None and swap_controller(memory, version),
            swap_capacity=swap_capacity(),
            huge_page_sizes=huge_page_sizes(),
            device_number=device_number,
        )
        super().__init__(settings)
        self.formula, self.formula_reason = choose_formula(version, section)
        rules = FileRules.on(self.mounts, self.formula, huge_page_sizes())
        self.tree = CgroupTree(self.mounts, rules, driver=settings.driver, slices=_slices(settings))
        self.levels = QosCgroups(self.tree, settings)
        self.pods = PodCgroups(self.tree, settings, lambda pod: self.has_exclusive_cpus(pod, None))
        self._burst_file = CPU_BURST[version]
        self._sample = section.reconcile_sample
        self._observe(registry or Registry())

    def _observe(self, registry: Registry) -> None:
        self._durations = registry.histogram(
            "kubelet_cgroup_manager_duration_seconds",
            "Duration of cgroup manager operations, in seconds.",
            ("operation_type",),
            DURATION_BUCKETS,
        )
        registry.gauge("kubelet_cgroup_version", "The cgroup version of this host.").set(self.mounts.version)
        self._drift = registry.counter(
            "kubengine_cgroup_drift_total", "Cgroup files that another process changed."
        )
        registry.collected(
            "counter",
            "kubengine_cgroup_writes_total",
            "Cgroup files written.",
            (),
            lambda: [((), float(self.tree.writes))],
        )
        registry.collected(
            "gauge",
            "kubengine_cgroup_annotated_pods",
            "Pods with an annotation that sets values of their cgroups.",
            ("annotation",),
            self._annotated,
        )
        registry.collected(
            "gauge",
            "kubengine_best_effort_cpu_ceiling_cores",
            "The CPU that all BestEffort pods together may use; absent while there is no ceiling.",
            (),
            self._ceiling,
        )
        if self.settings.levels.best_effort_idle:
            registry.collected(
                "gauge",
                "kubengine_best_effort_idle_pods",
                "BestEffort pods, which run only while the CPU is otherwise idle; absent unless "
                "cgroups.bestEffortIdle is on.",
                (),
                lambda: [((), float(self.levels.sums.best_effort))],
            )

    # Life of the node

    def start(self) -> None:
        over = self.settings.node.over_reserved()
        if over:
            raise Refused(
                f"more {', '.join(over)} is reserved than the node has; lower kubeReserved, "
                "systemReserved or evictionHard",
                subject="node allocatable",
            )
        self.mounts.check_usable()
        with self._timed("create"):
            self.levels.make()
        # After the cgroups exist: v2 shows these files nowhere but in a cgroup with the controller.
        self._check_annotations()
        if self.settings.levels.best_effort_idle:
            self._check_file(CPU_IDLE, "cgroups.bestEffortIdle cannot be on")
        # The level grows before the pod comes, and shrinks only after a pod has gone (`remove_pod`), so that
        # no pod runs in a level that is too small.
        self._write_levels()
        for reserved in self.settings.reserved_groups:
            self._enforce(reserved)

    def stop(self) -> None:
        self.tree.close()

    def reconcile(self) -> int:
        """Verify a sample of cgroups. Refusals are stored in `pods.refusals` and not raised."""
        before = self.tree.writes
        # Levels are few, so all of them are read each time; pods are sampled.
        drift = self.levels.verify()
        self._write_levels(everything=True)
        drift += self.pods.restore(self._sample)
        self._drift.inc(by=drift)
        return self.tree.writes - before

    def remove_all(self, *, kill: bool = False, wait: float = 0.0) -> None:
        self.tree.remove(self.settings.root, kill=kill, wait=wait)
        self.pods.known.clear()
        # Parents above the root may hold cgroups of others, and stay then. They are not removed to find out:
        # systemd would stop everything in the slice, and empty cgroups of others would go first.
        for depth in range(len(self.settings.root) - 1, 0, -1):
            parent = self.settings.root[:depth]
            try:
                if self.tree.children(parent) or self.tree.processes(parent):
                    break
                self.tree.remove(parent)
            except Refused:
                break

    # Life of a pod

    def create_pod(self, pod: Pod) -> str:
        self.levels.sums.put(pod.uid, Contribution.of(pod))
        self._write_levels()
        with self._timed("create"):
            self.pods.make(pod)
        path = self.tree.group(self.pods.name(pod)).path
        # CRI takes the name of the slice under systemd, and a path under cgroupfs.
        return path.rpartition("/")[2] if self.settings.driver == "systemd" else path

    async def resize_pod(
        self, old: Pod, new: Pod, update: UpdateContainer, usage: Mapping[str, int | None] = NO_USAGE
    ) -> None:
        before, after = self.levels.sums.pods.get(new.uid), Contribution.of(new)
        steps = list(resize_steps(old, new, self.settings.pods, self.settings.containers))
        # All of them before the first one, so that a refused resize leaves everything as it was.
        for step in steps:
            if isinstance(step, PodStep):
                self.pods.check_usage(new, step)
            else:
                _check_usage(new, step, usage.get(step.container, 0))
        # Growth first goes to the level, shrinking last: a child's shares never exceed its parent's.
        if before is not None and after.cpu_milli > before.cpu_milli:
            self.levels.sums.put(new.uid, after)
            self._write_levels()
        for step in steps:
            if isinstance(step, PodStep):
                with self._timed("update"):
                    self.pods.resize(new, step)
            else:
                values = step.resources
                if self.has_exclusive_cpus(new, step.container):
                    # A container with exclusive CPUs runs without a CFS quota (kubelet: gate
                    # DisableCPUQuotaWithExclusiveCPUs).
                    values = self._without_quota(values)
                await update(step.container, values)
        if before is not None:
            self.levels.sums.put(new.uid, after)
            self._write_levels()
        if self.has_pod(new.uid):
            self.pods.note(new)

    def cpu_seconds(self, name: CgroupName) -> float:
        """Return the CPU seconds that a cgroup and everything below has used. Raises `Refused`."""
        return self._cpu_seconds(to_path(name, self.settings.driver))

    def pod_cpu_seconds(self, uid: str) -> float:
        path = self.pods.path(uid)
        if path is None:
            raise Refused("the pod has no cgroup", subject=uid)
        return self._cpu_seconds(path)

    def _cpu_seconds(self, path: str) -> float:
        file = CPU_USAGE[self.mounts.version]
        text = self.tree.read_path(path, file)
        if text is None:
            raise Refused("there is no such file", subject=f"{path}/{file}")
        # cpuacct.usage counts nanoseconds; the first line of cpu.stat is `usage_usec`.
        return int(text) / 1e9 if self.mounts.version == 1 else int(text.split(maxsplit=2)[1]) / 1e6

    def limit_best_effort(self, milli: int | None) -> None:
        """Limit the CPU of all BestEffort pods together; None removes the limit. Raises `Refused`."""
        self.levels.best_effort_quota = None if milli is None else milli_cpu_to_quota(milli)
        self._write_levels()

    def set_burst(self, pod: Pod, container_id: str, quota: int) -> None:
        rules = self.settings.pods
        wanted = read_annotations(pod, rules.annotations, rules.device_number)
        if wanted.cpu_burst:
            self.pods.write_below(pod.uid, container_id, self._burst_file, str(wanted.burst(quota)))

    def remove_pod(self, uid: str, *, kill: bool = True, wait: float = 0.0) -> None:
        self.levels.sums.drop(uid)
        with self._timed("destroy"):
            self.pods.remove(uid, kill=kill, wait=wait)
        self._write_levels()

    def kill_container(self, uid: str, container_id: str) -> int:
        return self.pods.kill(uid, container_id)

    def has_pod(self, uid: str) -> bool:
        return uid in self.pods.known

    def existing_pods(self) -> dict[str, PodGroup]:
        return {group.uid: group for group in self.pods.found()}

    def pod_path(self, uid: str) -> str | None:
        return self.pods.path(uid)

    def root_path(self) -> str:
        return to_path(self.settings.root, self.settings.driver)

    # Inspection and repair

    def describe(self, *, pod: str = "") -> dict[str, Any]:
        return inspection.describe(self, pod)

    def check(self, pods: Sequence[Pod] | None = None, *, fix: bool = False) -> list[Finding]:
        """Find faults in the node's cgroups; with `fix`, repair what can be repaired.

        `pods` are all pods of the node, by default those that were created here.
        """
        known = [pod for pod, _ in self.pods.known.values()] if pods is None else pods
        return inspection.check(self, known, fix=fix)

    async def act(self, action: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        fix = check_asked(action, query)
        return [finding.as_dict() for finding in self.check(fix=fix)]

    def adopt(self, pods: Iterable[Pod]) -> None:
        """Know these pods as if they had been created here, without writing: for inspecting another agent's
        node.
        """
        for pod in pods:
            self.levels.sums.put(pod.uid, Contribution.of(pod))
            self.pods.note(pod)
        self.levels.want()

    def use_formula(self, formula: WeightFormula) -> None:
        """Use another weight formula from now on, and write every weight again."""
        self.formula, self.formula_reason = formula, "matched to the containers' weights"
        self.tree.rules = replace(self.tree.rules, formula=formula)
        for pod, _ in list(self.pods.known.values()):
            self.pods.note(pod)
        self.levels.want()

    def write_all(self) -> int:
        """Write every differing value; return the number of files. Raises `Refused` at the first refusal."""
        names = [*self.levels.names.values(), *(name for _, name in self.pods.known.values())]
        return sum(self.tree.write_files(name, self.tree.group(name).wanted) for name in names)

    # Parts

    def _write_levels(self, *, everything: bool = False) -> int:
        with self._timed("update"):
            return self.levels.write(everything=everything)

    def _check_annotations(self) -> None:
        """Raise `Refused` if the kernel has no file for an enabled annotation."""
        for name in sorted(self.settings.pods.annotations):
            self._check_file(FILES[self.mounts.version][name], f"{name} cannot be in cgroups.podAnnotations")

    def _check_file(self, file: str, consequence: str) -> None:
        if self.tree.read(self.settings.root, file) is None:
            path = f"{self.root_path()}/{file}"
            raise Refused(f"this kernel has no such file: {consequence}", subject=path)

    def _ceiling(self) -> list[tuple[tuple[str, ...], float]]:
        quota = self.levels.best_effort_quota
        return [] if quota is None else [((), quota / DEFAULT_PERIOD_US)]

    def _annotated(self) -> list[tuple[tuple[str, ...], float]]:
        counts = Counter(
            name for pod, _ in self.pods.known.values() for name in asked(pod, self.settings.pods.annotations)
        )
        return [((name,), float(count)) for name, count in sorted(counts.items())]

    def _enforce(self, reserved: ReservedGroup) -> None:
        """Write a reservation to a cgroup that somebody else created, as the kubelet does."""
        if not self.tree.exists(reserved.name):
            path = to_path(reserved.name, self.settings.driver)
            raise Refused(f"{reserved.kind} is enforced, but its cgroup does not exist", subject=path)
        self.tree.write_files(reserved.name, self.tree.rules.given_files(reserved.values()))

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._durations.observe(time.perf_counter() - started, operation)


def _slices(settings: CgroupSettings) -> Slices | None:
    """Return the connection to systemd if it is the driver."""
    if settings.driver != "systemd":
        return None
    from engine.cgroups.systemd import SystemdSlices

    return SystemdSlices.connect()


def _check_usage(pod: Pod, step: ContainerStep, used: int | None) -> None:
    """Raise `Refused` if a container's new memory limit is below its usage, or may be because that is unknown
    (None).
    """
    limit = step.resources.memory_limit_in_bytes
    if step.resource != MEMORY or not step.shrinks:
        return
    if used is None:
        raise Refused(f"missing container {step.container} memory usage", subject=pod.full_name)
    if 0 < limit <= used:
        raise Refused(
            f"attempting to set container {step.container} memory limit ({limit}) below "
            f"current usage ({used})",
            subject=pod.full_name,
            errno=errno.EBUSY,
        )


@cache
def huge_page_sizes(pools: str = "/sys/kernel/mm/hugepages") -> tuple[int, ...]:
    """Return the page sizes in bytes for which the kernel has pools, ascending."""
    directory = Path(pools)
    names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
    return tuple(sorted(int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024 for name in names))


def swap_capacity(meminfo: str = "/proc/meminfo") -> int:
    """Return the swap space in bytes."""
    for line in Path(meminfo).read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def swap_controller(hierarchy: CgroupHierarchy, version: int, own: str = "/proc/self/cgroup") -> bool:
    """Tell whether the kernel can limit swap, even if there is none; `swapaccount=0` disables it.

    cgroup v2 has the file in every cgroup but the root, so the agent looks at its own.
    """
    if version == 1:
        return Path(hierarchy.path, "memory.memsw.limit_in_bytes").exists()
    line = next((line for line in Path(own).read_text().splitlines() if line.startswith("0::")), "0::/")
    return Path(hierarchy.path, line.removeprefix("0::").lstrip("/"), "memory.swap.max").exists()


def device_number(path: str) -> str:
    """Return a block device's number as the kernel spells it, `8:0`. Raises `InvalidInput` for
    anything else.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"no such device: {error}", subject=path) from None
    if not stat.S_ISBLK(status.st_mode):
        raise InvalidInput("is not a block device", subject=path)
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
