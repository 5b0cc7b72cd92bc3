"""Creates, adopts, resizes, finds and removes the cgroups of pods."""

from __future__ import annotations

import errno
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.qos import qos_class
from engine.api.resources import MEMORY
from engine.cgroups.formulas.file_names import CPU_BURST
from engine.cgroups.formulas.levels import LEVELS
from engine.cgroups.formulas.names import CgroupName, level_name, pod_name, pod_uid, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import pod_values
from engine.cgroups.interface_files import MEMORY_LIMIT, MEMORY_USAGE
from engine.cgroups.resize import PodStep
from engine.cgroups.tree import CgroupTree

_CPU_LIMITS = frozenset(["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", *CPU_BURST.values()])


class PodGroup(msgspec.Struct, frozen=True):
    """Hold a pod cgroup found on the machine: its class and path."""

    uid: str
    qos_class: str
    name: CgroupName
    path: str


class PodCgroups:
    """Create, update and remove the cgroups of pods.

    `known` holds by uid those created or adopted here; `refusals` holds what the kernel refused, until
    `restore` succeeds.
    """

    def __init__(
        self, tree: CgroupTree, settings: CgroupSettings, has_exclusive_cpus: Callable[[Pod], bool]
    ) -> None:
        self._has_exclusive_cpus = has_exclusive_cpus
        self.known: dict[str, tuple[Pod, CgroupName]] = {}
        self.refusals: dict[str, str] = {}
        self._tree = tree
        self._settings = settings
        self._limit = MEMORY_LIMIT[tree.mounts.version]
        self._usage = MEMORY_USAGE[tree.mounts.version]
        self._sampled = 0

    def name(self, pod: Pod) -> CgroupName:
        return pod_name(self._settings.root, qos_class(pod), pod.uid)

    def files(self, pod: Pod) -> dict[str, str]:
        """Return file → text that the pod's cgroup should have."""
        rules = self._settings.pods
        if self._has_exclusive_cpus(pod):
            rules = replace(rules, enforce_cpu_limits=False)
        return self._tree.rules.files(pod_values(pod, rules))

    def path(self, uid: str) -> str | None:
        """Return the pod's cgroup from the root of the hierarchy (`/kubepods/…`), or None."""
        known = self.known.get(uid)
        return self._tree.group(known[1]).path if known is not None else None

    def note(self, pod: Pod) -> None:
        """Know a pod and the values of its cgroup, without writing."""
        group = self._tree.group(self.name(pod))
        self.known[pod.uid] = (pod, group.name)
        group.wanted.update(self.files(pod))

    def make(self, pod: Pod) -> None:
        """Create or adopt the cgroup and write its values. Raises `Refused` with the path.

        An adopted cgroup may use more than its new values allow, if the manifest shrank while no agent ran.
        A limit below usage kills processes (v2) or is refused (v1), so such values wait in `refusals`.
        """
        group = self._tree.group(self.name(pod))
        name = group.name
        self.known[pod.uid] = (pod, name)
        # Containers get cgroups below, for which the controllers have to be enabled here.
        group.delegates = True
        # A pod of the same uid may have had a cgroup that somebody removed meanwhile.
        self._tree.check_identity(name)
        adopted = not group.made and self._tree.exists(name)
        files = self.files(pod)
        if not adopted:
            self._tree.write_files(name, files)
            return
        # Read before the write: v2 accepts a limit below the usage and then kills.
        used = self._memory_usage(name)
        if files[self._limit].isdigit() and used > int(files[self._limit]):
            self.refusals[pod.uid] = f"memory in use ({used}) is above the limit {files.pop(self._limit)}"
        try:
            self._tree.write_files(name, files)
        except Refused as error:
            if error.errno not in (errno.EBUSY, errno.EINVAL):
                raise
            self.refusals[pod.uid] = str(error)

    def check_usage(self, pod: Pod, step: PodStep) -> None:
        """Raise `Refused` if the step would set the memory limit below the usage, which kills processes."""
        if step.resource != MEMORY or step.part != "limit" or not step.shrinks:
            return
        name = self.name(pod)
        limit, used = self.files(pod)[self._limit], self._memory_usage(name)
        if limit.isdigit() and used >= int(limit):
            raise Refused(
                f"attempting to set pod memory limit ({limit}) below current usage ({used})",
                subject=self._tree.group(name).path,
                errno=errno.EBUSY,
            )

    def resize(self, pod: Pod, step: PodStep) -> None:
        """Write one part of the new values. Raises `Refused` as `check_usage` does."""
        # The whole resize was checked, but the usage may have grown while containers were updated.
        self.check_usage(pod, step)
        name = self.name(pod)
        limits = {self._limit} if step.resource == MEMORY else _CPU_LIMITS
        chosen = {
            file: text
            for file, text in self.files(pod).items()
            if file.partition(".")[0] == step.resource and (file in limits) == (step.part == "limit")
        }
        self._tree.write_files(name, chosen)

    def restore(self, sample: int) -> int:
        """Retry refused values, create missing cgroups again, and read the next `sample`; return how many
        files others had changed.
        """
        uids = list(self.known)
        chosen = {uids[(self._sampled + i) % len(uids)] for i in range(sample) if uids}
        # A sliding window, so that each cgroup is read in its turn.
        self._sampled += sample
        return sum(self._restore(uid, sampled=uid in chosen) for uid in uids)

    def _restore(self, uid: str, *, sampled: bool) -> int:
        pod, name = self.known[uid]
        group = self._tree.group(name)
        refused = self.refusals.pop(uid, None) is not None
        if not sampled and group.made and not refused:
            return 0
        changed = len(self._tree.verify(name)) if sampled else 0
        try:
            self._tree.write_files(name, group.wanted)
            # `make` compares usage and limit again, which it does only for a cgroup that it adopts.
            if refused:
                group.made = False
                self.make(pod)
        except Refused as error:
            self.refusals[uid] = str(error)
        return changed

    def remove(self, uid: str, *, kill: bool, wait: float) -> None:
        """Remove the cgroup from every hierarchy with everything below it; see `CgroupTree.remove`."""
        known = self.known.get(uid)
        # An earlier agent's pod may be at any level: its class is unknown without its spec.
        for name in [known[1]] if known is not None else self._left_of(uid):
            self._tree.remove(name, kill=kill, wait=wait)
        self.known.pop(uid, None)
        self.refusals.pop(uid, None)

    def kill(self, uid: str, container_id: str) -> int:
        """Kill what runs in a container's cgroup; return the number of processes.

        Only the id in its name is common to all runtimes and drivers: containerd names it `<id>` on cgroupfs
        and `cri-containerd-<id>.scope` for systemd.
        """
        known = self.known.get(uid)
        return self._tree.kill_children(known[1], container_id) if known is not None else 0

    def write_below(self, uid: str, container_id: str, file: str, text: str) -> None:
        """Write a file of a container's cgroup, which the runtime created and named after the container's id.

        A missing cgroup is fine. Raises `Refused` with the path.
        """
        path = self.path(uid)
        if path is None:
            return
        for child in self._tree.children(self.known[uid][1]):
            if container_id in child:
                self._tree.write_path(f"{path}/{child}", file, text)

    def found(self) -> list[PodGroup]:
        """Return the pod cgroups on the machine, whoever created them; a uid may appear at two levels."""
        root, driver = self._settings.root, self._settings.driver
        found: list[PodGroup] = []
        for level in LEVELS:
            parent = level_name(root, level)
            for child in self._tree.children(parent):
                path = f"{to_path(parent, driver).rstrip('/')}/{child}"
                uid = pod_uid(root, path, driver)
                if uid is not None:
                    found.append(PodGroup(uid, level, pod_name(root, level, uid), path))
        return found

    def _left_of(self, uid: str) -> list[CgroupName]:
        """Return a pod's cgroups on the machine, whoever created them."""
        names = (pod_name(self._settings.root, level, uid) for level in LEVELS)
        return [name for name in names if self._tree.exists_anywhere(name)]

    def _memory_usage(self, name: CgroupName) -> int:
        return int(self._tree.read(name, self._usage) or "0")
