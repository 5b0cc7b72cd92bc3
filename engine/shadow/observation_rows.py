"""Encode observations as rows of a record, and decode them again. Pure.

An observation has up to three rows: the values of the statistics, the values of the counters, and last a row
for everything else. That last row is either a row of state, which holds everything, or holds only the changes
since the observation before. It has a number, so that a reader detects a lost row. The names of values are
listed in the row in which they change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from engine.api.config import KubeletConfiguration, keep_zeros
from engine.api.errors import InvalidInput
from engine.api.node import Node
from engine.api.pod import Pod
from engine.api.struct import decode_hook
from engine.cri.records import PodRecord
from engine.eviction.usage import ContainerUsage, Disk
from engine.images.records import SeenImage
from engine.record.blocks import RecordRow
from engine.shadow.kinds.observation import (
    FileSystem,
    MeasuredNode,
    MeasuredPod,
    Observation,
    SeenImages,
)
from engine.shadow.machine_facts import MachineFacts

STREAM: Final = "observation"
STATE, CHANGED, SKIPPED = "state", "changed", "skipped"
STATISTICS, COUNTERS = "statistics", "counters"
_UNKNOWN: Final = -1
"""The value of an amount that is None."""
_MOST: Final = 2**63 - 1
_NO_OBSERVATION: Final = -2
"""A number that no observation follows: the rows are useless until the next row of state."""
_FILE_SYSTEMS: Final = ("nodefs", "imagefs", "containerfs")
_AMOUNTS: Final = (
    "memory_available", "memory_working_set", "pods_available", "pods_working_set", "max_pids", "processes",
)  # fmt: skip
_OF_FILE_SYSTEM: Final = tuple(one.name for one in fields(FileSystem))
_NODE_VALUES: Final = len(_AMOUNTS) + len(_FILE_SYSTEMS) * len(_OF_FILE_SYSTEM)
_POD_VALUES, _CONTAINER_VALUES, _VOLUME_VALUES = 3, 5, 2
T = TypeVar("T")


class RecordedObservation(NamedTuple):
    """Hold an observation and the facts of its machine."""

    seen: Observation
    facts: MachineFacts


class ObservationEncoder:
    """Encode observations as rows. `_last` holds the values in earlier rows, to encode changes only."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._pods: dict[str, Pod] = {}
        self._records: dict[str, PodRecord] = {}

    def rows(self, recorded: RecordedObservation, number: int, *, state: bool) -> Iterator[RecordRow]:
        """Yield the rows of an observation. With `state`, the last one holds everything, else the changes."""
        if state:
            self._last, self._pods, self._records = {}, {}, {}
        seen = recorded.seen
        counters, others = _counters(seen.series)
        inputs: dict[str, Any] = {"number": number, "at": seen.at, "now": seen.now}
        inputs["measured"] = seen.use is not None
        if seen.use is not None:
            yield _values_row(seen, STATISTICS, _statistics(seen.use))
            inputs |= self._changed("statisticKeys", _keys(seen.use))
        yield _values_row(seen, COUNTERS, counters.values())
        inputs |= self._changed("counterKeys", list(counters))
        inputs |= self._changed("series", others)
        inputs |= self._changed("probesServed", seen.probes_served)
        inputs |= self._changed("config", seen.config)
        inputs |= self._changed("node", seen.node)
        inputs |= self._changed("nodeKnown", seen.node_known)
        inputs |= self._changed("machine", recorded.facts)
        inputs |= self._changed_pods(seen)
        if seen.images is not None:
            inputs["filesystem"] = seen.images.filesystem
            inputs |= self._changed("images", list(seen.images.images))
            inputs |= self._changed("used", sorted(seen.images.used))
        yield RecordRow(time=seen.at, stream=STREAM, name=STATE if state else CHANGED, inputs=inputs)

    def _changed(self, name: str, value: Any) -> dict[str, Any]:
        """Return a value under its name; an empty dictionary if it is the one of the last row."""
        if name in self._last and self._last[name] == value:
            return {}
        self._last[name] = value
        return {name: value}

    def _changed_pods(self, seen: Observation) -> dict[str, Any]:
        """Return the pods and runtime records that changed, by uid; None for those that are gone."""
        pods: dict[str, Pod | None] = {
            uid: pod for uid, pod in seen.pods.items() if self._pods.get(uid) is not pod
        }
        pods |= dict.fromkeys(self._pods.keys() - seen.pods.keys())
        records: dict[str, PodRecord | None] = {}
        for uid in seen.pods:
            record = seen.records.get(uid)
            if record is None or record == self._records.get(uid):
                continue
            records[uid] = self._records[uid] = record
        for uid in self._records.keys() - (seen.records.keys() & seen.pods.keys()):
            del self._records[uid]
            records[uid] = None
        self._pods = dict(seen.pods)
        found = {"pods": pods, "records": records, "order": self._order(seen)}
        return {name: value for name, value in found.items() if value}

    def _order(self, seen: Observation) -> list[str]:
        """Return the uids in the order of the kubelet's list; an empty list if that is the earlier pods in
        their order, followed by the new ones, as a decoder assumes.
        """
        before = self._last.get("order", [])
        uids = list(seen.pods)
        kept = [uid for uid in before if uid in seen.pods]
        known = set(kept)
        self._last["order"] = uids
        return [] if uids == [*kept, *(uid for uid in uids if uid not in known)] else uids


def skipped_row(at: float, number: int, why: str) -> RecordRow:
    """Return the row of an observation that was skipped because the node did not answer."""
    return RecordRow(time=at, stream=STREAM, name=SKIPPED, text=why, inputs={"number": number})


@dataclass(slots=True)
class ObservationDecoder:
    """Decode the rows of a record in order. It returns no observations between a lost row and the next row of
    state.
    """

    _number: int = _NO_OBSERVATION
    _pods: dict[str, Pod] = field(default_factory=dict)
    _records: dict[str, PodRecord] = field(default_factory=dict)
    _last: dict[str, Any] = field(default_factory=dict)
    _values: dict[str, Sequence[int]] = field(default_factory=dict)

    def restart(self) -> None:
        """Expect the first observation of a shadow, which has number 1, as the next row."""
        self._number = 0

    def is_next(self, row: RecordRow) -> bool:
        """Return whether a row completes the observation that follows the last one."""
        return row.inputs.get("number") == self._number + 1

    def decode(self, row: RecordRow) -> RecordedObservation | None:
        """Return the observation that a row completes. Raise `InvalidInput` for a row of another shape."""
        if row.name in (STATISTICS, COUNTERS):
            self._values[row.name] = row.values
            return None
        try:
            return self._complete(row)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise InvalidInput(f"not a recorded observation: {error!r}", subject="record") from None

    def _complete(self, row: RecordRow) -> RecordedObservation | None:
        """Return the observation whose last row this is; None if it was skipped or rows are missing."""
        inputs, values = row.inputs, self._values
        self._values = {}
        if row.name == STATE:
            self._pods, self._records = {}, {}
        elif not self.is_next(row):
            self._number = _NO_OBSERVATION
            return None
        self._number = inputs["number"]
        if row.name == SKIPPED:
            return None
        self._decode_values(inputs)
        self._decode_pods(inputs)
        series = dict(zip(self._last["counterKeys"], values.get(COUNTERS, ()), strict=True))
        use = None
        if inputs["measured"]:
            use = _measured(self._last["statisticKeys"], values.get(STATISTICS, ()))
        images = None
        if "filesystem" in inputs:
            filesystem = _decoded(inputs["filesystem"], FileSystem)
            images = SeenImages(self._last["images"], self._last["used"], filesystem)
        seen = Observation(
            at=inputs["at"],
            now=inputs["now"],
            config=self._last["config"],
            pods=dict(self._pods),
            records=dict(self._records),
            node=self._last["node"],
            node_known=self._last["nodeKnown"],
            use=use,
            series={**self._last["series"], **series},
            probes_served=self._last["probesServed"],
            images=images,
        )
        return RecordedObservation(seen, self._last["machine"])

    def _decode_values(self, inputs: Mapping[str, Any]) -> None:
        last = self._last
        for name in ("statisticKeys", "counterKeys", "series", "probesServed", "nodeKnown"):
            if name in inputs:
                last[name] = inputs[name]
        if "config" in inputs:
            config = _decoded(inputs["config"], KubeletConfiguration)
            keep_zeros(config, inputs["config"])
            # Comparisons detect a change of configuration by the identity of the object.
            last["config"] = last["config"] if last.get("config") == config else config
        if "node" in inputs:
            last["node"] = _decoded(inputs["node"], Node)
        if "machine" in inputs:
            last["machine"] = _decoded(inputs["machine"], MachineFacts)
        if "images" in inputs:
            last["images"] = _decoded(inputs["images"], list[SeenImage])
        if "used" in inputs:
            last["used"] = frozenset(inputs["used"])

    def _decode_pods(self, inputs: Mapping[str, Any]) -> None:
        _update(self._pods, inputs.get("pods", {}), Pod)
        _update(self._records, inputs.get("records", {}), PodRecord)
        if "order" in inputs:
            self._pods = {uid: self._pods[uid] for uid in inputs["order"]}


def _update(known: dict[str, T], changed: Mapping[str, Any], kind: type[T]) -> None:
    for uid, document in changed.items():
        if document is None:
            known.pop(uid, None)
        else:
            known[uid] = _decoded(document, kind)


def _decoded(document: Any, kind: type[T]) -> T:
    return msgspec.convert(document, kind, dec_hook=decode_hook)


def _values_row(seen: Observation, name: str, values: Any) -> RecordRow:
    return RecordRow(time=seen.at, stream=STREAM, name=name, values=tuple(values))


def _counters(series: Mapping[str, float]) -> tuple[dict[str, int], dict[str, float]]:
    """Return the series whose values are whole numbers, which a row stores compactly, and the others."""
    whole = {name: int(value) for name, value in series.items() if value.is_integer() and value < _MOST}
    return whole, {name: value for name, value in series.items() if name not in whole}


def _keys(use: MeasuredNode) -> list[str]:
    """Return `uid/containers/volumes` for each pod, with names separated by commas."""
    return [f"{uid}/{','.join(pod.containers)}/{','.join(pod.volumes)}" for uid, pod in use.pods.items()]


def _statistics(use: MeasuredNode) -> Iterator[int]:
    """Yield the values of the node, and of the pods in the order of `_keys`."""
    for name in _AMOUNTS:
        yield _known(getattr(use, name))
    for name in _FILE_SYSTEMS:
        filesystem = getattr(use, name)
        for part in _OF_FILE_SYSTEM:
            yield _known(getattr(filesystem, part))
    for pod in use.pods.values():
        yield from (_known(pod.memory), _known(pod.storage), _known(pod.processes))
        for container in pod.containers.values():
            yield _known(container.memory)
            for disk in (container.rootfs, container.logs):
                yield from map(_known, disk)
        for volume in pod.volumes.values():
            yield from map(_known, volume)


def _measured(keys: Sequence[str], values: Sequence[int]) -> MeasuredNode:
    """Return the statistics from the result of `_keys` and `_statistics`. Raise ValueError if the number of
    values does not match the keys.
    """
    amounts = [None if value == _UNKNOWN else value for value in values[:_NODE_VALUES]]
    node: dict[str, Any] = dict(zip(_AMOUNTS, amounts, strict=False))
    rest = amounts[len(_AMOUNTS) :]
    width = len(_OF_FILE_SYSTEM)
    for at, name in enumerate(_FILE_SYSTEMS):
        node[name] = FileSystem(*rest[at * width : at * width + width])
    at, pods = _NODE_VALUES, {}
    for key in keys:
        uid, containers, volumes = ([*part.split(",")] if part else [] for part in key.split("/"))
        memory, storage, processes = values[at : at + _POD_VALUES]
        at += _POD_VALUES
        of_containers = {}
        for name in containers:
            working_set, *disks = values[at : at + _CONTAINER_VALUES]
            of_containers[name] = ContainerUsage(_or_none(working_set), Disk(*disks[:2]), Disk(*disks[2:]))
            at += _CONTAINER_VALUES
        of_volumes = {}
        for name in volumes:
            of_volumes[name] = Disk(*values[at : at + _VOLUME_VALUES])
            at += _VOLUME_VALUES
        pods[uid[0]] = MeasuredPod(
            _or_none(memory), _or_none(storage), _or_none(processes), of_containers, of_volumes
        )
    if at != len(values):
        raise ValueError("statistics with another number of values than keys")
    return MeasuredNode(**node, pods=pods)


def _known(amount: int | None) -> int:
    return _UNKNOWN if amount is None else min(amount, _MOST)


def _or_none(value: int) -> int | None:
    return None if value == _UNKNOWN else value
