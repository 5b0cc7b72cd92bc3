"""Whose groups were read, and what was read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.cri.records import ContainerRecord, PodRecord
from engine.node.stats.group import GroupSample, GroupTable
from engine.node.stats.network import Interface


@dataclass(frozen=True, slots=True)
class UsedGroup:
    """A group, its row in each reading, and whose it is: `owner` is the id of a container or sandbox, "" for
    others."""

    cgroup: str
    row: int
    owner: str = ""
    container: ContainerRecord | None = None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class UsedPod:
    """The same object as long as the runtime says the same of it and its groups are where they were.
    `sandbox` is the group of the pod's sandbox, if it has one; `told` is all that the runtime says;
    `complete`: the sandbox and each container that may run have a group."""

    record: PodRecord
    group: UsedGroup
    containers: Sequence[UsedGroup]
    sandbox: UsedGroup | None = None
    told: tuple[object, ...] = ()
    complete: bool = False

    @property
    def groups(self) -> list[UsedGroup]:
        """All of them, in the order of their rows."""
        return [self.group, *self.containers, *([self.sandbox] if self.sandbox is not None else [])]

    @property
    def by_name(self) -> dict[str, tuple[UsedGroup, ContainerRecord]]:
        """The newest container of each name; an older one may be there of which the runtime cannot say."""
        newest_last = reversed(self.containers)
        return {
            each.container.name: (each, each.container) for each in newest_last if each.container is not None
        }

    @property
    def inner_rows(self) -> range:
        """Rows of what is in the pod's own group."""
        inner = len(self.containers) + (self.sandbox is not None)
        return range(self.group.row + 1, self.group.row + 1 + inner)


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """`time` is Unix seconds; `table` has all groups; `system` are the groups of the agent (`kubelet`), the
    runtime and all pods. `pods` is the same object while they are the same; `network` are the host's devices,
    `networks` those of each pod with a network of its own, by uid. `lacking` is true where something
    may run that has no numbers of its own here."""

    time: float
    table: GroupTable
    root: UsedGroup
    system: Mapping[str, UsedGroup]
    pods: Sequence[UsedPod]
    network: Sequence[Interface]
    networks: Mapping[str, Sequence[Interface]] = field(default_factory=dict)
    lacking: bool = False

    def sample(self, group: UsedGroup) -> GroupSample:
        return self.table.sample(group.row)
