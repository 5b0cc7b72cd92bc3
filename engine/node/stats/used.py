"""Describes which cgroups were read, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from engine.cri.records import ContainerRecord, PodRecord
from engine.node.stats.filesystems import Filesystem
from engine.node.stats.group import GroupSample, GroupTable
from engine.node.stats.network import Interface


class UsedGroup(msgspec.Struct, frozen=True):
    """Hold a cgroup and its row in each reading; `owner` is the id of its container or sandbox, or ""."""

    cgroup: str
    row: int
    owner: str = ""
    container: ContainerRecord | None = None


class UsedPod(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Hold a pod's cgroups; the object stays while the runtime reports the same and no cgroup has moved.

    `sandbox` is the cgroup of the sandbox, if there is one; `reported` is the runtime's report; `complete`
    means that the sandbox and each container that may run have a cgroup.
    """

    record: PodRecord
    group: UsedGroup
    containers: Sequence[UsedGroup]
    sandbox: UsedGroup | None = None
    reported: tuple[object, ...] = ()
    complete: bool = False

    @property
    def groups(self) -> list[UsedGroup]:
        """Return all cgroups of the pod, in the order of their rows."""
        return [self.group, *self.containers, *([self.sandbox] if self.sandbox is not None else [])]

    @property
    def by_name(self) -> dict[str, tuple[UsedGroup, ContainerRecord]]:
        """Return the newest container of each name; the runtime may have no statistics of older ones."""
        newest_last = reversed(self.containers)
        return {
            each.container.name: (each, each.container) for each in newest_last if each.container is not None
        }

    @property
    def inner_rows(self) -> range:
        """Return the rows of the cgroups inside of the pod's own."""
        inner = len(self.containers) + (self.sandbox is not None)
        return range(self.group.row + 1, self.group.row + 1 + inner)


class NodeUsage(msgspec.Struct, frozen=True):
    """Hold the usage of the node.

    `time` is a Unix time; `table` has all cgroups; `system` are the cgroups of the agent (`kubelet`), the
    runtime and all pods. `pods` is the same object while the pods are the same. `network` are the host's
    devices, `networks` by uid those of each pod with its own network. `filesystems` are the machine's.
    `lacking` is true if something may run that has no numbers here. `memory` is the machine's memory in
    use and its working set, in bytes.
    """

    time: float
    table: GroupTable
    root: UsedGroup
    system: Mapping[str, UsedGroup]
    pods: Sequence[UsedPod]
    network: Sequence[Interface]
    memory: tuple[int, int]
    networks: Mapping[str, Sequence[Interface]] = msgspec.field(default_factory=dict)
    lacking: bool = False
    filesystems: Sequence[Filesystem] = ()

    def sample(self, group: UsedGroup) -> GroupSample:
        return self.table.sample(group.row)
