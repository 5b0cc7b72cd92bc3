"""Compute the cgroup files of pods, containers and QoS levels under another version, formula or
configuration.

`cgroup_columns` computes the values of the whole snapshot, `engine.cgroups.interface_files` turns each
distinct set of values into files, and `cgroup_lint` finds faults among the values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray

from engine._fast.cgroup_values import NONE
from engine._fast.cgroup_values import UNLIMITED as UNLIMITED_QUOTA
from engine.api.amounts.cpu_weight import MIN_SHARES, WeightFormula
from engine.api.qos import BEST_EFFORT, BURSTABLE, GUARANTEED
from engine.cgroups.formulas.bulk import weight_table
from engine.cgroups.formulas.file_names import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, MEMORY_OOM_GROUP
from engine.cgroups.formulas.levels import LEVELS
from engine.cgroups.formulas.values import GroupValues
from engine.cgroups.interface_files import FileRules
from engine.plan.answers.answer import Answer, Rows, coded
from engine.plan.answers.readable import NO_LIMIT
from engine.plan.questions.cgroup_columns import CgroupColumns, Profile, cgroup_columns, spread
from engine.plan.questions.cgroup_lint import NodeShares, lint_node
from engine.plan.questions.configuration import NodeConfigurations
from engine.plan.snapshot.columns import Snapshot
from engine.tables import QOS_NAMES

CONTROLLERS = frozenset(["cpu", "memory", "pids"])
UNLIMITED = -1
LEVEL_NAMES = {GUARANTEED: "kubepods", BURSTABLE: "kubepods/burstable", BEST_EFFORT: "kubepods/besteffort"}
_UNITS = {"cpu.shares": "shares", "cpu.weight": "weight", "pids.max": "processes", MEMORY_OOM_GROUP: ""}
_TYPE = pa.large_string()

Detail = Literal["qos", "pods", "containers", "lint"]


class CgroupsParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of cgroups."""

    version: Annotated[int, Meta(description="cgroup version, 1 or 2", ge=1, le=2)] = 2
    formula: Annotated[
        WeightFormula, Meta(description="cpu.weight of pods: linear (kubelet up to 1.34) or logarithmic")
    ] = "linear"
    container_formula: Annotated[
        WeightFormula | None,
        Meta(description="cpu.weight of containers, set by the runtime; None: the same as for pods"),
    ] = None
    detail: Annotated[list[Detail], Meta(description="which rows: qos, pods, containers, lint")] = (
        msgspec.field(default_factory=lambda: ["qos", "lint"])
    )
    config: Annotated[str, Meta(description="a KubeletConfiguration for every node")] = ""
    changes: Annotated[dict[str, Any], Meta(description="fields laid over the configuration")] = {}


def cgroups(snapshot: Snapshot, parameters: CgroupsParameters) -> Answer:
    """Return rows whose decision is a cgroup file (`cpu.weight`, `memory.max` …) and whose amount is its
    value, -1 with the unit `no limit` for a limit that is not set. The object is a level, `namespace/pod` or
    `namespace/pod:container`. Rows with the decision `lint` name a fault.
    """
    rows = Rows(snapshot.node_names)
    configurations = NodeConfigurations(snapshot, parameters.config, parameters.changes)
    configurations.add_notes(rows)
    files = FileRules(parameters.version, parameters.formula, controllers=CONTROLLERS)  # type: ignore[arg-type]
    columns = cgroup_columns(snapshot, configurations, parameters.version, parameters.formula, rows)
    labels = snapshot.pod_labels(np.arange(snapshot.placed)).cast(_TYPE)
    detail = set(parameters.detail)
    if "qos" in detail:
        _add_levels(rows, columns, files)
    if "pods" in detail:
        _add_pods(rows, snapshot, columns, labels, files)
    if "containers" in detail:
        _add_containers(rows, snapshot, columns, labels, parameters)
    if "lint" in detail:
        mixed = parameters.container_formula not in (None, parameters.formula) and parameters.version == 2
        _lint(rows, snapshot, columns, parameters, mixed=mixed)
    return rows.answer(sort=True)


def _add_levels(rows: Rows, columns: CgroupColumns, files: FileRules) -> None:
    """Add the files of the cgroups of all pods and of the QoS levels, on each node."""
    nodes = columns.values.levels.shape[1]
    distinct, code = np.unique(
        np.vstack([columns.values.levels[:6], columns.level_limited, columns.root]),
        axis=1,
        return_inverse=True,
    )
    written = []
    for values in distinct.T.tolist():
        levels = _level_values(values[:6], columns.roots[values[7]], limited=bool(values[6]))
        written += [files.files(levels[level]) for level in LEVELS]
    count = len(LEVELS)
    codes = np.repeat(code.reshape(-1), count) * count + np.tile(np.arange(count), nodes)
    dictionary_array = pa.DictionaryArray.from_arrays
    index = pa.array(np.tile(np.arange(count, dtype=np.int32), nodes))
    _add_files(
        rows,
        np.repeat(np.arange(nodes), count),
        dictionary_array(index, pa.array([LEVEL_NAMES[level] for level in LEVELS])).cast(_TYPE),
        dictionary_array(index, pa.array(LEVELS)),
        codes,
        written,
    )


def _level_values(values: list[int], root: GroupValues, *, limited: bool) -> dict[str, GroupValues]:
    """Return the values of each level's cgroup from a column of the kernel's level values.

    `root` is the cgroup of all pods. `limited` says whether the node reserves memory for the levels.
    """
    shares, _weight, burstable, best_effort, root_protected, protected = values
    return {
        GUARANTEED: msgspec.structs.replace(
            root, unified=_file(MEMORY_MIN, root_protected) | _file(MEMORY_LOW, root_protected)
        ),
        BURSTABLE: GroupValues(
            cpu_shares=shares, memory=burstable if limited else None, unified=_file(MEMORY_LOW, protected)
        ),
        BEST_EFFORT: GroupValues(cpu_shares=MIN_SHARES, memory=best_effort if limited else None),
    }


def _file(name: str, amount: int) -> dict[str, str]:
    """Return a file with an amount; no file for 0."""
    return {name: str(amount)} if amount > 0 else {}


def _add_pods(
    rows: Rows, snapshot: Snapshot, columns: CgroupColumns, labels: pa.Array, files: FileRules
) -> None:
    """Add the files of the cgroup of each pod."""
    node = snapshot.column("node")
    profile = columns.profile[node]
    # Pods with equal profile, template and QoS class have equal files, which are made once for all of them.
    templates = snapshot.templates.num_rows
    kind = (profile * templates + snapshot.column("template")) * len(QOS_NAMES) + snapshot.column("qos")
    guaranteed = snapshot.column("qos") == QOS_NAMES.index(GUARANTEED)
    _, first, code = np.unique(kind, return_index=True, return_inverse=True)
    written = [
        files.files(
            _pod_values(
                columns.values.pods[:, row].tolist(),
                columns.profiles[profile[row]],
                guaranteed=bool(guaranteed[row]),
            )
        )
        for row in first.tolist()
    ]
    _add_files(rows, node, labels, "", code.reshape(-1), written)


def _pod_values(values: list[int], profile: Profile, *, guaranteed: bool) -> GroupValues:
    """Return the values of a pod's cgroup from a column of the kernel's pod values."""
    shares, _weight, quota, memory, protected = values
    limited = quota != NONE
    return GroupValues(
        cpu_shares=shares,
        cpu_quota=(UNLIMITED if quota == UNLIMITED_QUOTA else quota) if limited else None,
        cpu_period=profile.pods.cpu_period_us if limited else None,
        memory=None if memory == NONE else memory,
        pids=profile.pods.pids_limit if profile.pods.pids_limit > 0 else None,
        unified=_file(MEMORY_MIN if guaranteed else MEMORY_LOW, protected),
    )


def _add_files(
    rows: Rows,
    node: NDArray[Any],
    objects: pa.Array,
    reasons: pa.Array | str,
    codes: NDArray[np.int64],
    written: list[dict[str, str]],
) -> None:
    """Add a row for each file of each object: object i has the files `written[codes[i]]`."""
    names: dict[str, int] = {}
    flat = [
        (names.setdefault(name, len(names)), _amount(text))
        for files in written
        for name, text in files.items()
    ]
    if not flat:
        return
    table = np.array(flat, np.int64)
    lengths = np.array([len(files) for files in written])
    starts = np.cumsum(lengths) - lengths
    counts = lengths[codes]
    source = spread(starts[codes], counts)
    repeated = pa.array(np.repeat(np.arange(len(codes)), counts))
    name = table[source, 0]
    rows.block(
        np.repeat(node, counts),
        coded(name, list(names)),
        pc.take(objects, repeated),
        reasons if isinstance(reasons, str) else pc.take(reasons, repeated),
        table[source, 1],
        _units(list(names), name, table[source, 1]),
    )


def _amount(text: str) -> int:
    """Return the first number of a file, -1 for no limit. (`cpu.max` has the period as second number.)"""
    first = text.split(maxsplit=1)[0] if text else "max"
    return UNLIMITED if first in ("max", "-1") else int(first)


def _units(names: list[str], file: NDArray[np.int64], values: NDArray[np.int64]) -> pa.Array:
    """Return the unit of each value; `file`, int64[n], is an index of `names`."""
    units = [file_unit(name) for name in names]
    limits = np.array([bool(unit) for unit in units], bool)
    unlimited = limits[file] & (values == UNLIMITED)
    return coded(np.where(unlimited, len(units), file), [*units, NO_LIMIT])


def file_unit(name: str) -> str:
    """Return the unit of the values of a cgroup file, "" for a plain number."""
    unit = "bytes" if name.startswith("memory.") else "µs" if name.startswith("cpu.") else ""
    return _UNITS.get(name, unit)


def _add_containers(
    rows: Rows,
    snapshot: Snapshot,
    columns: CgroupColumns,
    labels: pa.Array,
    parameters: CgroupsParameters,
) -> None:
    """Add the files of each container. Their values are columns already, so files need not be made from sets
    of values, as for pods.
    """
    shares, _weight, quota, limit, score, protected, high = columns.values.containers
    node = snapshot.column("node")[columns.owner]
    formula = parameters.container_formula or parameters.formula
    grouped = np.array(
        [p.containers.cgroup_v2 and not p.containers.single_process_oom_kill for p in columns.profiles]
    )[columns.profile[node]]
    share = shares if parameters.version == 1 else weight_table(formula)[shares].astype(np.int64)
    every = np.ones(len(node), np.bool_)
    guaranteed = (snapshot.column("qos") == QOS_NAMES.index(GUARANTEED))[columns.owner]
    fields = (
        ("cpu.shares" if parameters.version == 1 else "cpu.weight", share, every),
        ("cpu.quota", np.where(quota == 0, UNLIMITED, quota), every),
        ("memory.max", np.where(limit == 0, UNLIMITED, limit), every),
        ("oom_score_adj", score, every),
        (MEMORY_OOM_GROUP, np.ones(len(node), np.int64), grouped),
        (MEMORY_MIN, protected, (protected != 0) & guaranteed),
        (MEMORY_LOW, protected, (protected != 0) & ~guaranteed),
        (MEMORY_HIGH, high, high != 0),
    )
    written = np.stack([present for _, _, present in fields], axis=1)
    row, field = np.nonzero(written)
    values = np.stack([column for _, column, _ in fields], axis=1)[written]
    names = [name for name, _, _ in fields]
    # The reason of oom_score_adj is the QoS class, that of a weight the formula; other files need none.
    reasons = ["", *QOS_NAMES, formula if parameters.version == 2 else ""]
    reason = np.where(
        names.index("oom_score_adj") == field, snapshot.column("qos")[columns.owner][row] + 1, 0
    )
    reason = np.where(field == 0, len(reasons) - 1, reason)
    objects = pc.binary_join_element_wise(
        pc.take(labels, pa.array(columns.owner)), columns.names, pa.scalar(":", _TYPE)
    )
    rows.block(
        node[row],
        coded(field, names),
        pc.take(objects, pa.array(row)),
        coded(reason, reasons),
        values,
        _units(names, field, values),
    )


def _lint(
    rows: Rows, snapshot: Snapshot, columns: CgroupColumns, parameters: CgroupsParameters, *, mixed: bool
) -> None:
    """Add the faults of each node. Cgroup v1 divides CPU by shares (row 0 of the values), v2 by weight (row
    1).
    """
    share = 1 if parameters.version == 2 else 0
    best_effort = int(weight_table(parameters.formula)[MIN_SHARES]) if share else MIN_SHARES
    qos, request = snapshot.column("qos"), snapshot.per_pod("request/cpu")
    used, known = snapshot.usage("memory")
    used = np.where(known == 1, used, -1)
    for node in range(snapshot.node_count):
        pods = slice(int(snapshot.offsets[node]), int(snapshot.offsets[node + 1]))
        levels = columns.values.levels[:, node].tolist()
        limited = columns.level_limited[node]
        shares = NodeShares(
            cpu_milli=int(columns.capacity[node]),
            qos=qos[pods],
            weight=columns.values.pods[share, pods],
            request=request[pods],
            usage=used[pods],
            burstable_weight=levels[share],
            best_effort_weight=best_effort,
            burstable_limit=levels[2] if limited else None,
            best_effort_limit=levels[3] if limited else None,
        )
        lint_node(rows, node, shares, mixed=mixed)
