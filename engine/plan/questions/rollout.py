"""Compute what a new KubeletConfiguration changes on every node: fields, pods that end, and cgroup values.

A kubelet that starts admits all its pods again, in the order of their creation, and its eviction thresholds
apply from the first synchronization on. For evictions, image garbage collection and cgroup values, the
questions of these names are answered under both configurations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from engine.api import cpu_set
from engine.api.amounts.sizes import binary_size
from engine.api.config import KubeletConfiguration
from engine.api.configuration_changes import ConfigurationChange, configuration_changes
from engine.api.documents.reader import parse_documents, read_text
from engine.api.errors import InvalidInput
from engine.api.quantity import BINARY_SI, Quantity
from engine.api.resources import CPU
from engine.plan.answers.answer import Answer, Rows
from engine.plan.answers.readable import readable
from engine.plan.placement.fit import node_use
from engine.plan.questions.cgroups import UNLIMITED, CgroupsParameters, Detail, cgroups, file_unit
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.questions.evict import EvictParameters, evict
from engine.plan.questions.image_gc import ImageGCParameters, image_gc
from engine.plan.questions.node_stores import KINDS
from engine.plan.rollout.amounts import Amounts, allocatable, changed, settings_of
from engine.plan.rollout.readmission import all_fit, refusals
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.node_cpus import PINNING, pinned_state

ENDS: Final = {"refuse": "refused", "victim": "preempted", "evict": "evicted", "restart": "restarted"}
"""Decisions that end a pod or its containers, in the order in which they are decided."""
_EVICTION_DECISIONS: Final = ("relieved", "stuck", "evict", "reclaim", "waits")
_LIMIT: Final = "memory limit of all pods"
_VALUES: Final[tuple[Detail, ...]] = ("qos", "pods", "containers")
_SET_ELSEWHERE: Final = ("containerRuntimeEndpoint", "cgroupDriver")
"""Fields that a flag or the runtime sets on nodes whose file does not name them."""
_SHOWN_DEFAULTS: Final[Mapping[str, Any]] = {
    "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
    "memorySwap": {},
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
}
"""Defaults that the endpoint `configz` of a kubelet v1.36 shows as if its file set them."""
_UNSET: Final = -2
"""The value of a cgroup file that is not written; -1 is `max`."""


class RolloutParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of rollout: a configuration that replaces the nodes' own, or changes of it, or both."""

    config: Annotated[str, Meta(description="the next KubeletConfiguration, for every node")] = ""
    changes: Annotated[
        dict[str, Any], Meta(description="fields laid over the configuration, as a drop-in file does")
    ] = {}
    version: Annotated[int, Meta(description="cgroup version of the nodes, 1 or 2", ge=1, le=2)] = 2

    def __post_init__(self) -> None:
        if not self.config and not self.changes:
            raise InvalidInput("name the next configuration, or fields that change", subject="config")


class _Row(NamedTuple):
    decision: str
    object: str
    reason: str
    amount: int
    unit: str


@dataclass(slots=True)
class _NodeRows:
    """Collect the rows of one node. A pod ends only once: by the first decision that ends it."""

    rows: list[_Row] = field(default_factory=list)
    _ended: dict[str, str] = field(default_factory=dict)

    def add(self, row: _Row) -> None:
        if row.decision in ENDS and self._ended.setdefault(row.object, row.decision) != row.decision:
            return
        self.rows.append(row)

    def summary(self) -> _Row:
        """Return the row that says whether the change ends pods of the node, and how many in which way."""
        counts = Counter(self._ended.values())
        parts = [f"{counts[decision]} {done}" for decision, done in ENDS.items() if counts[decision]]
        others = Counter(row.decision for row in self.rows)
        if others["refuses-to-start"]:
            parts.insert(0, "the kubelet does not start")
        if parts:
            return _Row("affected", "", ", ".join(parts), len(self._ended), "pods")
        fields = others["changes"] + others["falls-back"]
        reason = f"{readable(fields, 'fields')} changed" if fields else "no field changes"
        return _Row("unaffected", "", reason, 0, "pods")


def rollout(snapshot: Snapshot, parameters: RolloutParameters) -> Answer:
    """Return per node `affected` (amount: pods that end) or `unaffected`.

    Per field follow `changes`, `falls-back` (the new file does not set a field for which the node has another
    value than the default, perhaps from a flag) and `refuses-to-start` (the kubelet does not start with the
    value). Per pod follow `refuse`, `victim`, `evict` or `restart`. Rows `relieved`, `stuck`, `reclaim` and
    `waits` follow where evictions differ, and `collect`, `short` or `idle` where image garbage collection
    does. `limit` is the memory limit of all pods together, and `resize` a cgroup file (amount: the number of
    pods and containers with another value).
    """
    rows = Rows(snapshot.node_names)
    nodes = [_NodeRows() for _ in range(snapshot.node_count)]
    # In the order in which a kubelet decides: admission first, so that a refused pod is not evicted as well.
    _Restart(snapshot, parameters, rows).add_to(nodes)
    for node, row in _other_answers(snapshot, parameters, rows):
        nodes[node].add(row)
    for node, of_node in enumerate(nodes):
        for row in (of_node.summary(), *of_node.rows):
            rows.add(node, *row)
    return rows.answer()


class _Restart:
    """Compute what each kubelet does when it starts with the new configuration: fields, admission, restarts
    and memory limits. `_now` and `_next` are the configurations of the nodes before and after.
    """

    def __init__(self, snapshot: Snapshot, parameters: RolloutParameters, rows: Rows) -> None:
        self._snapshot, self._version, self._rows = snapshot, parameters.version, rows
        self._now = NodeConfigurations(snapshot)
        self._now.add_notes(rows)
        self._next = NodeConfigurations(snapshot, parameters.config, parameters.changes)
        self._named = {**_document(parameters.config), **parameters.changes} if parameters.config else None
        self._use = node_use(snapshot)
        self._labels = snapshot.pod_labels(np.arange(snapshot.placed)).to_pylist()
        self._milli = snapshot.per_pod("request/cpu").tolist()
        self._pinning = snapshot.texts(PINNING)
        self._used = snapshot.reading("pods_memory_working_set").tolist()
        self._capacity, self._allocatable = _amounts(snapshot, "capacity"), _amounts(snapshot, "allocatable")
        self._changes: dict[str, list[ConfigurationChange]] = {}
        self._computed: dict[tuple[object, ...], tuple[_Computed, _Computed]] = {}

    def add_to(self, nodes: list[_NodeRows]) -> None:
        """Add the rows of each node."""
        for node, of_node in enumerate(nodes):
            for change in self._changes_of(node):
                self._add_field(node, change, of_node)
            if CPU in self._capacity[node]:
                self._add_admission(node, *self._compute_both(node), of_node)
            else:
                self._rows.note("nodes without a capacity: admission is not judged", 1)

    def _changes_of(self, node: int) -> list[ConfigurationChange]:
        """Return the fields that change on a node, cached by its configuration."""
        key = self._now.key(node)
        if key not in self._changes:
            self._changes[key] = configuration_changes(self._now.of(node), self._next.of(node))
        return self._changes[key]

    def _add_field(self, node: int, change: ConfigurationChange, of_node: _NodeRows) -> None:
        """Add the rows of one field that changes: the change itself, and the restarts that it causes."""
        text = f"{change.field}: {_text(change.before)} → {_text(change.after)}"
        named = self._named is None or _is_set(self._named, change.field)
        # Neither file sets the field: before and after are both defaults, as different versions print them.
        if not named and (not self._now.key(node) or _SHOWN_DEFAULTS.get(change.field) == change.before):
            return
        of_node.add(_Row("changes" if named else "falls-back", change.field, text, 1, "fields"))
        if not named and change.field in _SET_ELSEWHERE:
            return
        if change.effect == "restarts":
            for row in range(int(self._snapshot.offsets[node]), int(self._snapshot.offsets[node + 1])):
                of_node.add(_Row("restart", self._labels[row], f"{change.field}: {change.why}", 1, "pods"))
        elif change.effect == "refuses to start" and self._refuses_to_start(node, change):
            of_node.add(_Row("refuses-to-start", change.field, change.why, 1, "fields"))

    def _refuses_to_start(self, node: int, change: ConfigurationChange) -> bool:
        """Return whether the kubelet would not start. Newly reserved CPUs prevent it only if a container has
        them exclusively.
        """
        if change.field != "reservedSystemCPUs" or not self._pinning[node]:
            return True
        exclusive = pinned_state(self._pinning[node]).exclusive
        if exclusive is None:
            return True
        return bool(cpu_set.parse(exclusive, PINNING) & cpu_set.parse(str(change.after), change.field))

    def _compute_both(self, node: int) -> tuple[_Computed, _Computed]:
        """Return what both configurations give a node, cached by configuration and capacity."""
        capacity = self._capacity[node]
        key = self._now.key(node), *((name, amount.nano) for name, amount in capacity.items())
        if key not in self._computed:
            before, after = (
                _compute(one.of(node), capacity, self._version) for one in (self._now, self._next)
            )
            self._computed[key] = before, after
        return self._computed[key]

    def _add_admission(self, node: int, now: _Computed, after: _Computed, of_node: _NodeRows) -> None:
        """Add rows for the pods that the kubelet rejects or preempts when it starts, and for the memory limit
        of all pods.
        """
        reported = self._allocatable[node]
        amounts = changed(reported, now.allocatable if self._now.key(node) else None, after.allocatable)
        requested = dict(zip(self._snapshot.resources.names, self._use.used[:, node].tolist(), strict=True))
        pods = int(self._use.count[node])
        if not all_fit(amounts, pods, requested):
            before = None if all_fit(reported, pods, requested) else reported
            found = refusals(self._snapshot, node, before, amounts)
            for row, why in found.refused.items():
                of_node.add(_Row("refuse", self._labels[row], why, 1, "pods"))
            for row, why in found.victims.items():
                of_node.add(_Row("victim", self._labels[row], why, self._milli[row], "milli-CPU"))
        if now.limit != after.limit:
            used = self._used[node]
            uses = f", of which they use {binary_size(used)}" if used >= 0 else ""
            reason = f"{_LIMIT}: {binary_size(now.limit)} → {binary_size(after.limit)}{uses}"
            of_node.add(_Row("limit", "kubepods", reason, after.limit, "bytes"))


class _Computed(NamedTuple):
    """Hold the allocatable of a node under a configuration, and the memory limit of all its pods in bytes."""

    allocatable: Amounts
    limit: int


def _compute(config: KubeletConfiguration, capacity: Amounts, version: int) -> _Computed:
    settings = settings_of(config, capacity, version)
    return _Computed(allocatable(config, capacity, settings), settings.root_values().memory or 0)


def _document(path: str) -> dict[str, Any]:
    """Return the fields that the KubeletConfigurations of a file set."""
    found: dict[str, Any] = {}
    for document in parse_documents(read_text(Path(path)), path):
        if document.get("kind") == "KubeletConfiguration":
            found |= document
    return found


def _is_set(document: Mapping[str, Any], field: str) -> bool:
    """Return whether a document sets a field, a path with dots."""
    value: Any = document
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _amounts(snapshot: Snapshot, of: str) -> list[Amounts]:
    """Return the known amounts of each node; `of` is "capacity" or "allocatable"."""
    names = [name.removeprefix(f"{of}/") for name in snapshot.nodes.column_names if name.startswith(f"{of}/")]
    columns = [snapshot.allocatable(name, of).tolist() for name in names]
    return [
        {
            name: Quantity.from_milli(amount) if name == CPU else Quantity.from_value(amount, BINARY_SI)
            for name, amount in zip(names, amounts, strict=True)
            if amount >= 0
        }
        for amounts in zip(*columns, strict=True)
    ]


def _text(value: Any) -> str:
    """Return the value of a field as text; a mapping as `name=value, …`."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "nothing"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "not set" if value in (None, "") else str(value)


def _other_answers(
    snapshot: Snapshot, parameters: RolloutParameters, rows: Rows
) -> Iterator[tuple[int, _Row]]:
    """Yield the rows of other questions that only the new configuration gives, with the node of each."""
    numbers = {name: number for number, name in enumerate(snapshot.node_names)}
    new: dict[str, Any] = {"config": parameters.config, "changes": parameters.changes}
    for resource, kind in KINDS.items():
        before = evict(snapshot, EvictParameters(resource=resource))
        after = evict(snapshot, EvictParameters(resource=resource, **new))
        for node, row in _only_second(before, after, numbers):
            if row.decision in _EVICTION_DECISIONS:
                yield node, row
        unknown = sum(row.decision == "unknown" for _, row in _rows_of(after, numbers))
        if unknown:
            rows.note(
                f"nodes without a reading of {kind.signals[0]}: evictions for it are not judged", unknown
            )
    before = image_gc(snapshot, ImageGCParameters(images=False))
    after = image_gc(snapshot, ImageGCParameters(images=False, **new))
    idle = {node for node, row in _rows_of(before, numbers) if row.decision == "idle"}
    for node, row in _only_second(before, after, numbers):
        # A node that stays idle for another reason does nothing new.
        if row.decision in ("collect", "short") or (row.decision == "idle" and node not in idle):
            yield node, row
    values: dict[str, Any] = {"version": parameters.version, "detail": list(_VALUES)}
    before = cgroups(snapshot, CgroupsParameters(**values))
    after = cgroups(snapshot, CgroupsParameters(**values, **new))
    yield from _resized(before, after, numbers)


def _rows_of(answer: Answer, numbers: Mapping[str, int]) -> Iterator[tuple[int, _Row]]:
    """Yield the node and the row, for each row of an answer; `numbers` maps a node's name to its row."""
    columns = (answer.table[name].to_pylist() for name in ("node", *_Row._fields))
    for node, *row in zip(*columns, strict=True):
        yield numbers[node], _Row(*row)


def _only_second(first: Answer, second: Answer, numbers: Mapping[str, int]) -> Iterator[tuple[int, _Row]]:
    """Yield the rows that only the second answer has. Evictions of a pod are the same whatever the reason."""

    def key(node: int, row: _Row) -> tuple[object, ...]:
        return (node, row.decision, row.object) if row.decision == "evict" else (node, *row)

    known = {key(node, row) for node, row in _rows_of(first, numbers)}
    return ((node, row) for node, row in _rows_of(second, numbers) if key(node, row) not in known)


def _resized(first: Answer, second: Answer, numbers: Mapping[str, int]) -> Iterator[tuple[int, _Row]]:
    """Yield for each node and cgroup file a row that counts the cgroups with another value."""
    both = pa.concat_tables([first.table, second.table]).unify_dictionaries().combine_chunks()
    nodes, files = (both[name].chunk(0) for name in ("node", "decision"))
    objects = both["object"].chunk(0).dictionary_encode().indices.to_numpy().astype(np.int64)
    # One number for each object on a node: a million of them are matched without a loop in Python.
    groups = objects * len(nodes.dictionary) + nodes.indices.to_numpy()
    keys, which = np.unique(groups * len(files.dictionary) + files.indices.to_numpy(), return_inverse=True)
    amounts = both["amount"].to_numpy()
    before, after = np.full(len(keys), _UNSET), np.full(len(keys), _UNSET)
    before[which[: len(first)]], after[which[len(first) :]] = amounts[: len(first)], amounts[len(first) :]
    differ = before != after
    groups, of_files = np.divmod(keys[differ], len(files.dictionary))
    found: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
    for place, values in zip(
        zip((groups % len(nodes.dictionary)).tolist(), of_files.tolist(), strict=True),
        zip(before[differ].tolist(), after[differ].tolist(), strict=True),
        strict=True,
    ):
        found.setdefault(place, Counter())[values] += 1
    for (node, of_file), counts in sorted(found.items()):
        file = files.dictionary[of_file].as_py()
        (old, new), _ = counts.most_common(1)[0]
        reason = f"{file}: {_value(file, old)} → {_value(file, new)}"
        if len(counts) > 1:
            reason += f" most often, {len(counts)} different changes"
        yield numbers[nodes.dictionary[node].as_py()], _Row("resize", file, reason, counts.total(), "groups")


def _value(file: str, amount: int) -> str:
    """Return the value of a cgroup file as text."""
    if amount in (_UNSET, UNLIMITED):
        return "not set" if amount == _UNSET else "max"
    return readable(amount, file_unit(file))
