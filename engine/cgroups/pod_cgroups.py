"""Keeping pods' groups: made or adopted, given their values, resized, found on the machine, removed."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from engine.api.errors import Refused
from engine.api.pod import Pod
from engine.api.qos import qos_class
from engine.api.resources import MEMORY
from engine.cgroups.files import MEMORY_LIMIT, MEMORY_USAGE
from engine.cgroups.formulas.file_names import CPU_BURST
from engine.cgroups.formulas.levels import LEVELS
from engine.cgroups.formulas.names import CgroupName, level_name, pod_name, pod_uid, to_path
from engine.cgroups.formulas.settings import CgroupSettings
from engine.cgroups.formulas.values import pod_values
from engine.cgroups.resize import PodStep
from engine.cgroups.tree import CgroupTree

_CPU_LIMITS = frozenset(["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", *CPU_BURST.values()])


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A pod cgroup found on the machine: its class and where it is."""

    uid: str
    qos_class: str
    name: CgroupName
    path: str


class PodCgroups:
    """The groups of pods. `known` holds, by uid, those made or adopted here; `refusals` says what the
    kernel does not take yet, until `restore` gets it through."""

    def __init__(self, tree: CgroupTree, settings: CgroupSettings) -> None:
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
        """File → text that the pod's group should have."""
        return self._tree.rules.files(pod_values(pod, self._settings.pods))

    def path(self, uid: str) -> str | None:
        """The pod's group from the root of the hierarchy (`/kubepods/…`), None if it has none."""
        known = self.known.get(uid)
        return self._tree.group(known[1]).path if known is not None else None

    def note(self, pod: Pod) -> None:
        """Know a pod and what its group should have, writing nothing."""
        group = self._tree.group(self.name(pod))
        self.known[pod.uid] = (pod, group.name)
        group.wanted.update(self.files(pod))

    def make(self, pod: Pod) -> None:
        """Make the group, or adopt it, and give it its values. Raises `Refused` with the path.

        A group that was there before may hold more than its new values allow (the manifest shrank
        while no agent was looking): they then wait in `refusals`, as a limit below usage kills (v2) or
        is refused (v1).
        """
        group = self._tree.group(self.name(pod))
        name = group.name
        self.known[pod.uid] = (pod, name)
        group.delegates = True
        adopted = not group.made and self._tree.exists(name)
        files = self.files(pod)
        if not adopted:
            self._tree.write(name, files)
            return
        used = self._memory_usage(name)
        if files[self._limit].isdigit() and used > int(files[self._limit]):
            self.refusals[pod.uid] = f"memory in use ({used}) is above the limit {files.pop(self._limit)}"
        try:
            self._tree.write(name, files)
        except Refused as error:
            if error.errno not in (errno.EBUSY, errno.EINVAL):
                raise
            self.refusals[pod.uid] = str(error)

    def resize(self, pod: Pod, step: PodStep) -> None:
        """Write one part of the new values. Raises `Refused`, and before anything would be killed if
        the new memory limit is below what is in use."""
        name = self.name(pod)
        limits = {self._limit} if step.resource == MEMORY else _CPU_LIMITS
        chosen = {
            file: text
            for file, text in self.files(pod).items()
            if file.partition(".")[0] == step.resource and (file in limits) == (step.part == "limit")
        }
        if step.resource == MEMORY and step.part == "limit" and step.shrinks:
            limit, used = chosen[self._limit], self._memory_usage(name)
            if limit.isdigit() and used > int(limit):
                raise Refused(
                    f"attempting to set pod memory limit ({limit}) below current usage ({used})",
                    subject=self._tree.group(name).path,
                    errno=errno.EBUSY,
                )
        self._tree.write(name, chosen)

    def restore(self, sample: int) -> int:
        """Retry what was refused, make groups that are known to be gone, and re-read the next `sample`
        of them; the count of files that were changed behind our back."""
        uids = list(self.known)
        chosen = {uids[(self._sampled + i) % len(uids)] for i in range(sample) if uids}
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
            self._tree.write(name, group.wanted)
            if refused:
                group.made = False
                self.make(pod)
        except Refused as error:
            self.refusals[uid] = str(error)
        return changed

    def remove(self, uid: str, *, kill: bool, wait: float) -> None:
        """Remove the group from every hierarchy, with all groups below it; see `CgroupTree.remove`."""
        known = self.known.get(uid)
        for name in [known[1]] if known is not None else self._left_of(uid):
            self._tree.remove(name, kill=kill, wait=wait)
        self.known.pop(uid, None)
        self.refusals.pop(uid, None)

    def kill(self, uid: str, group: str) -> int:
        """Kill what runs in one group of a pod's; the count of processes."""
        known = self.known.get(uid)
        return self._tree.kill((*known[1], group)) if known is not None else 0

    def write_below(self, uid: str, container_id: str, file: str, text: str) -> None:
        """Write a file of a container's group, which the runtime made and named by the container's id. One
        that is gone is fine. Raises `Refused` with the path."""
        path = self.path(uid)
        if path is None:
            return
        for child in self._tree.children(self.known[uid][1]):
            if container_id in child:
                self._tree.write_path(f"{path}/{child}", file, text)

    def found(self) -> list[PodGroup]:
        """Pods' groups on the machine, whoever made them; a uid is there twice if it has a group under
        two levels."""
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
        """Groups that a pod has on the machine, whoever made them."""
        names = (pod_name(self._settings.root, level, uid) for level in LEVELS)
        return [name for name in names if self._tree.exists_anywhere(name)]

    def _memory_usage(self, name: CgroupName) -> int:
        return int(self._tree.read(name, self._usage) or "0")
