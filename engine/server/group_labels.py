"""Keeps the label texts of the cgroups on a metrics page.

The labels of a pod are made once and kept while the pod stays the same, because making them takes longest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from engine._fast.writing.exposition import ABSENT, Texts, joined
from engine.node.stats.network import Interface
from engine.node.stats.used import NodeUsage, UsedGroup, UsedPod
from engine.server.metrics_text import labelled

_NAMES = ("container", "id", "image", "name", "namespace", "pod")


class LabelledGroups(msgspec.Struct, frozen=True, eq=False):
    """Hold the cgroups in the order of the page, the root first.

    They have rows in a reading, labels, and start times in microseconds (`ABSENT` if unknown). `pods` is the
    index of each pod's first cgroup, `owners` the cgroup that has the pod's network.
    """

    system: tuple[UsedGroup, ...]
    of: Sequence[UsedPod]
    rows: array[int]
    labels: Texts
    started: array[int]
    pods: dict[UsedPod, int]
    owners: list[int]

    def networks_of(self, usage: NodeUsage) -> Iterator[tuple[int, Sequence[Interface]]]:
        for pod, owner in zip(self.of, self.owners, strict=True):
            yield owner, usage.networks.get(pod.record.uid, ())

    def kept(self, pod: UsedPod) -> Texts | None:
        """Return the labels of a pod, if they are kept."""
        first = self.pods.get(pod)
        if first is None:
            return None
        text, ends = self.labels
        begin, last = ends[first - 1], first + len(pod.groups)
        return Texts(text[begin : ends[last - 1]], array("q", [end - begin for end in ends[first:last]]))


class GroupLabels:
    """Build `LabelledGroups` from the previous one."""

    def __init__(self) -> None:
        self._last: LabelledGroups | None = None

    def of(self, usage: NodeUsage) -> LabelledGroups:
        last = self._last
        system = (usage.root, *(each for each in usage.system.values() if each.cgroup.strip("/")))
        # The same list is returned while no pod came or went, so that its identity tells.
        if last is None or last.of is not usage.pods or last.system != system:
            self._last = last = _shown(system, usage.pods, last)
        return last


def _shown(
    system: tuple[UsedGroup, ...], pods: Sequence[UsedPod], before: LabelledGroups | None
) -> LabelledGroups:
    rows = [group.row for group in system]
    texts = [joined([_labels(group.cgroup) for group in system])]
    started = [0.0] * len(system)
    places: dict[UsedPod, int] = {}
    owners: list[int] = []
    for pod in pods:
        first = places[pod] = len(rows)
        inner = len(pod.containers)
        owners.append(first + 1 + inner if pod.sandbox is not None else first)
        rows += (pod.group.row, *pod.inner_rows)
        began = pod.record.sandbox.created_at if pod.record.sandbox is not None else 0.0
        started.append(began)
        started += [
            each.container.started_at if each.container is not None else 0.0 for each in pod.containers
        ]
        if pod.sandbox is not None:
            started.append(began)
        kept = before.kept(pod) if before is not None else None
        texts.append(joined(list(_labels_of(pod))) if kept is None else kept)
    times = [int(time * 10**6) for time in started]
    return LabelledGroups(
        system,
        pods,
        array("q", rows),
        _chained(texts),
        array("q", [time if time > 0 else ABSENT for time in times]),
        places,
        owners,
    )


def _chained(texts: Sequence[Texts]) -> Texts:
    ends = array("q")
    begin = 0
    for text, own_ends in texts:
        ends.extend([begin + end for end in own_ends])
        begin += len(text)
    return Texts(b"".join(each.text for each in texts), ends)


def _labels_of(pod: UsedPod) -> Iterable[bytes]:
    record = pod.record
    whose = (record.namespace, record.name)
    yield _labels(pod.group.cgroup, *whose)
    for group in pod.containers:
        of = group.container
        assert of is not None
        yield _labels(group.cgroup, *whose, of.id, of.name, of.image)
    if pod.sandbox is not None:
        yield _labels(pod.sandbox.cgroup, *whose, pod.sandbox.owner)


def _labels(
    cgroup: str, namespace: str = "", pod: str = "", name: str = "", container: str = "", image: str = ""
) -> bytes:
    return labelled(_NAMES, (container, cgroup, image, name, namespace, pod)).encode()
