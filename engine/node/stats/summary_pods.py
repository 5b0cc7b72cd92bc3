"""Writes the pods of a summary as JSON, in pieces.

Text that does not change is kept from one summary to the next; usage numbers are columns, written while the
caller reads. Each container and each pod is an item: the containers of a pod in sequence, then the pod.
Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgspec

from engine._fast.reading.groups import ABSENT
from engine._fast.writing.exposition import Texts, joined
from engine._fast.writing.members import filled
from engine.api.struct import to_json
from engine.api.timestamps import rfc3339
from engine.node.stats import shown
from engine.node.stats.network import Interface
from engine.node.stats.runtime_numbers import LAYER, PROCESSES, USE, RuntimeStats
from engine.node.stats.summary_columns import (
    CONTAINER,
    DISK,
    EPHEMERAL,
    NETWORK,
    NONE,
    POD,
    Items,
    counted,
    forms,
)
from engine.node.stats.used import NodeUsage, UsedPod

Entry = dict[str, Any]
Place = tuple[str, str, str]
"""Name, namespace and uid."""
_NO_DISK: Final = (ABSENT,) * len(DISK)


class PodFiles(msgspec.Struct, frozen=True):
    """Hold the files of a pod: `logs` by container, `volumes` and the names of the `ephemeral` ones, bytes
    and inodes of `hosts`, and the `disk` that holds all of them.
    """

    logs: Mapping[str, Entry]
    volumes: Sequence[Entry]
    ephemeral: frozenset[str]
    hosts: tuple[int, int]
    disk: Entry


class _Known(NamedTuple):
    """Hold the inputs of a pod's text; `listed` are the containers that the runtime lists."""

    place: Place
    used: UsedPod | None
    listed: Sequence[str]
    files: PodFiles | None
    of_drivers: Sequence[Entry]
    devices: Sequence[Interface]


class _Inputs(NamedTuple):
    """Hold the inputs of all texts: `places` and `containers` from the runtime, mappings by uid."""

    pods: Sequence[UsedPod]
    places: Sequence[Place]
    containers: Sequence[Sequence[str]]
    files: Mapping[str, PodFiles]
    of_drivers: Mapping[str, Sequence[Entry]]
    networks: Mapping[str, Sequence[Interface]]


class _Kept(msgspec.Struct, frozen=True, eq=False):
    """Hold the texts of a pod with the form after each and its item, the constant numbers of the items, and
    the items of the containers that the runtime lists.
    """

    known: _Known
    texts: list[bytes]
    forms: list[int]
    items: list[int]
    rows: list[int]
    disk: tuple[int, ...]
    files: tuple[int, int]
    listed: list[int]


class _Layout(msgspec.Struct, frozen=True, eq=False):
    """Hold all pods in sequence: the texts with the form and the item after each, and the items as `Items`
    describes them.
    """

    pods: Sequence[_Kept]
    texts: Texts
    forms: array[int]
    places: array[int]
    rows: array[int]
    disk: Sequence[array[int]]
    own: Sequence[int]
    of: Sequence[int]
    files: Sequence[tuple[int, int]]


class SummaryPods:
    """Keep the texts of pods while they are in the summary; only CPU, memory and swap unless `whole`."""

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._kept: dict[str, _Kept] = {}
        self._layout: _Layout | None = None
        self._inputs: _Inputs | None = None
        self._places: Sequence[int] = ()

    def pages(
        self,
        opening: bytes,
        usage: NodeUsage,
        stats: RuntimeStats,
        files: Mapping[str, PodFiles],
        of_drivers: Mapping[str, Sequence[Entry]],
    ) -> Iterator[bytes]:
        """Yield `opening` and the list of pods: those with a cgroup, then others that the runtime lists."""
        networks = usage.networks if self._whole else {}
        inputs = _Inputs(usage.pods, stats.places, stats.names, dict(files), dict(of_drivers), dict(networks))
        # Most summaries differ from the last one in numbers only: then no text is formatted again.
        if self._layout is None or inputs != self._inputs:
            self._layout, self._places = self._lay_out(inputs)
            self._inputs = inputs
        runtime = _runtime_columns(self._layout, self._places, stats, counted(usage.table))
        return _written(opening, usage, self._layout, runtime, self._whole)

    def _lay_out(self, inputs: _Inputs) -> tuple[_Layout, list[int]]:
        """Arrange the texts; unchanged pods keep theirs. Also returns each pod's index in the runtime's list,
        or -1.
        """
        by_uid = {place[2]: at for at, place in enumerate(inputs.places)}
        used = {pod.record.uid: pod for pod in inputs.pods}
        before, self._kept = self._kept, {}
        places = []
        for uid in used | by_uid:
            pod, at = used.get(uid), by_uid.get(uid, -1)
            known = _Known(
                _place(pod) if pod is not None else inputs.places[at],
                pod,
                inputs.containers[at] if at >= 0 else [],
                inputs.files.get(uid),
                inputs.of_drivers.get(uid, ()),
                inputs.networks.get(uid, ()),
            )
            kept = before.get(uid)
            self._kept[uid] = kept if kept is not None and kept.known == known else _made(known)
            places.append(at)
        pods = list(self._kept.values())
        if self._layout is None or self._layout.pods != pods:
            return _laid_out(pods), places
        return self._layout, places


def _runtime_columns(
    layout: _Layout, places: Sequence[int], stats: RuntimeStats, counted: Sequence[bool]
) -> dict[str, list[int]]:
    """Return the runtime's columns by `USE`, `LAYER` and `PROCESSES`.

    `places` are the indexes of the pods in `stats`, -1 if absent; of cgroups that are `counted`, only the
    layers come from the runtime.
    """
    containers: list[tuple[int, int]] = []
    pods: list[tuple[int, int]] = []
    begins = [*accumulate(map(len, stats.names), initial=0)]
    for kept, own, place in zip(layout.pods, layout.own, places, strict=True):
        if place >= 0:
            first = own + 1 - len(kept.rows)
            containers += [(first + item, at) for at, item in enumerate(kept.listed, begins[place])]
            pods.append((own, place))
    columns = {name: [ABSENT] * len(layout.rows) for name in (*USE, *LAYER, PROCESSES)}
    for values_of, found in ((stats.containers, containers), (stats.pods, pods)):
        uncounted = [
            (item, at) for item, at in found if layout.rows[item] < 0 or not counted[layout.rows[item]]
        ]
        for name, values in values_of.items():
            column = columns[name]
            for item, at in found if name in LAYER else uncounted:
                column[item] = values[at]
    return columns


def _grouped(pod: UsedPod) -> dict[str, tuple[int, float]]:
    """Return row and start time of each container by name."""
    return {name: (group.row, container.started_at) for name, (group, container) in pod.by_name.items()}


def _place(pod: UsedPod) -> Place:
    return pod.record.name, pod.record.namespace, pod.record.uid


def _made(known: _Known) -> _Kept:
    name, namespace, uid = known.place
    grouped = _grouped(known.used) if known.used is not None else {}
    containers = [*dict.fromkeys((*grouped, *known.listed))]
    files = known.files
    texts: list[bytes] = []
    forms: list[int] = []
    items: list[int] = []

    def add(form: int, item: int) -> None:
        """Add the parts since the last form as one text, followed by a form."""
        texts.append(b"".join(parts))
        parts.clear()
        forms.append(form)
        items.append(item)

    parts = [b'{"podRef":', to_json({"name": name, "namespace": namespace, "uid": uid})]
    sandbox = known.used.record.sandbox if known.used is not None else None
    if sandbox is not None:
        parts.append(b',"startTime":' + to_json(rfc3339(sandbox.created_at)))
    parts.append(b',"containers":[')
    for item, container in enumerate(containers):
        parts.append((b"," if item else b"") + b'{"name":' + to_json(container))
        if container in grouped:
            parts.append(b',"startTime":' + to_json(rfc3339(grouped[container][1])))
        add(CONTAINER, item)
        logs = files.logs.get(container) if files is not None else None
        if logs is not None:
            parts.append(b',"logs":' + to_json(logs))
        parts.append(b"}")
    own = len(containers)
    parts.append(b"]")
    add(POD, own)
    if known.devices:
        parts.append(b',"network":{')
        add(NETWORK, own)
        parts.append(b"," + to_json(shown.devices(known.devices))[1:])
    if files is not None:
        parts.append(b',"volume":' + to_json([*files.volumes, *known.of_drivers]))
        parts.append(b',"ephemeral-storage":' + to_json(files.disk)[:-1])
        add(EPHEMERAL, own)
        parts.append(b"}")
    parts.append(b"}")
    add(NONE, own)
    rows = [grouped[each][0] if each in grouped else -1 for each in containers]
    rows.append(known.used.group.row if known.used is not None else -1)
    disk = tuple(files.disk[each] for each in DISK) if files is not None else _NO_DISK
    listed = [containers.index(each) for each in known.listed]
    return _Kept(known, texts, forms, items, rows, disk, _files_used(files, containers), listed)


def _files_used(files: PodFiles | None, containers: Sequence[str]) -> tuple[int, int]:
    """Return bytes and inodes of a pod's ephemeral storage without writable layers."""
    if files is None:
        return 0, 0
    used, inodes = files.hosts
    logs = (files.logs[name] for name in containers if name in files.logs)
    volumes = (volume for volume in files.volumes if volume["name"] in files.ephemeral)
    for part in chain(logs, volumes):
        used += part["usedBytes"]
        inodes += part["inodesUsed"]
    return used, inodes


def _laid_out(pods: Sequence[_Kept]) -> _Layout:
    begins = [*accumulate((len(pod.rows) for pod in pods), initial=0)]
    texts = [
        text
        for pod in pods
        for text in (pod.texts if pod is pods[0] else (b"," + pod.texts[0], *pod.texts[1:]))
    ]
    return _Layout(
        pods,
        joined(texts),
        array("q", [form for pod in pods for form in pod.forms]),
        array("q", [begin + item for begin, pod in zip(begins, pods, strict=False) for item in pod.items]),
        array("q", [row for pod in pods for row in pod.rows]),
        [array("q", [pod.disk[at] for pod in pods]) for at in range(len(DISK))],
        [end - 1 for end in begins[1:]],
        [index for index, pod in enumerate(pods) for _ in pod.rows],
        [pod.files for pod in pods],
    )


def _written(
    opening: bytes, usage: NodeUsage, layout: _Layout, runtime: Mapping[str, Sequence[int]], whole: bool
) -> Iterator[bytes]:
    items = Items(layout.rows, runtime, layout.disk, layout.own, layout.of, layout.files)
    yield opening
    yield from filled(layout.texts, forms(usage.table, items, whole), layout.forms, layout.places)
    yield b"]}"
