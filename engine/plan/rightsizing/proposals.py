"""Compute new requests from recorded use, or match the ones that another tool recommends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from engine.api.encoding.counts import counted
from engine.plan.history.codes import MISSING, decode
from engine.plan.history.history import History
from engine.plan.rightsizing.recommended import ContainerAmounts, RecommendedContainer
from engine.plan.rightsizing.units import ContainerUnit, Rows

MEBI: Final = 1 << 20
OOM_FACTOR, OOM_BYTES = 1.2, 100 * MEBI
"""What a container that was killed for lack of memory is given at least: the rule of the vertical pod
autoscaler."""

Limits = Literal["keep", "scale", "requests"]


@dataclass(frozen=True)
class SizingRule:
    """Define how requests follow from use: percentiles and margins in percent, floors in milli-CPU and
    bytes, and the number of values below which a container keeps its requests.
    """

    cpu_percentile: float
    memory_percentile: float
    cpu_margin: float
    memory_margin: float
    cpu_floor: int
    memory_floor: int
    min_values: int


@dataclass(frozen=True)
class SizedContainer:
    """Hold the new amounts of a container, and why: `reasons` by resource. `killed` is how often the record
    says that it ran out of memory.
    """

    unit: ContainerUnit
    after: ContainerAmounts
    reasons: dict[str, str]
    killed: int = 0


def from_use(
    units: Iterable[ContainerUnit], history: History, rule: SizingRule, limits: Limits
) -> list[SizedContainer]:
    """Return new requests of containers with enough recorded use; the others keep theirs, with the reason."""
    return [_from_use(unit, history, rule, limits) for unit in units]


def _from_use(unit: ContainerUnit, history: History, rule: SizingRule, limits: Limits) -> SizedContainer:
    if unit.pod_level:
        return SizedContainer(
            unit, unit.now, dict.fromkeys(("cpu", "memory"), "the pod has pod-level resources")
        )
    reasons: dict[str, str] = {}
    amounts = unit.now
    ooms = history.codes(unit.rows("ooms"))
    # An increase over the step before is extrapolated, so one kill may be counted as a little more.
    killed = int((decode(ooms) > 0.5).sum()) if len(ooms) else 0
    settings = (
        ("cpu", rule.cpu_percentile, rule.cpu_margin, rule.cpu_floor),
        ("memory", rule.memory_percentile, rule.memory_margin, rule.memory_floor),
    )
    for name, percentile, margin, floor in settings:
        codes = history.codes(unit.rows(name)).reshape(-1)
        codes = codes[codes != MISSING]
        if len(codes) < rule.min_values:
            reasons[name] = f"{len(codes):,} recorded values are too few (--min-values {rule.min_values})"
            continue
        place = min(max(math.ceil(len(codes) * percentile / 100) - 1, 0), len(codes) - 1)
        use = float(decode(np.partition(codes, place)[place : place + 1])[0])
        peak = "the maximum" if percentile == 100 else f"p{percentile:g}"
        pods = counted(len(unit.rows(name)), "pod")
        reasons[name] = f"{peak} of {len(codes):,} values of {pods}, plus {margin:g} %"
        needed = use * (1 + margin / 100)
        if name == "cpu":
            amounts = replace(amounts, cpu=max(math.ceil(needed / 1000), floor))
        else:
            if killed:
                needed = max(needed, use * OOM_FACTOR, use + OOM_BYTES)
                reasons[name] += f", raised after {killed} OOM kills"
            amounts = replace(amounts, memory=max(math.ceil(needed / MEBI) * MEBI, floor))
    return SizedContainer(unit, with_limits(unit.now, amounts, limits), reasons, killed)


def from_recommended(
    units: Iterable[ContainerUnit], recommended: Iterable[RecommendedContainer], source: str, limits: Limits
) -> tuple[list[SizedContainer], list[RecommendedContainer]]:
    """Return the new requests of all containers, and the recommendations that match none of them."""
    by_name = {_key(one): one for one in recommended}
    used: set[tuple[str, str, str, str]] = set()
    found = []
    for unit in units:
        workload = unit.workload
        keys = (
            (workload.kind.lower(), workload.namespace, workload.name, unit.container),
            ("", workload.namespace, workload.name, unit.container),
        )
        key = next((key for key in keys if key in by_name), None)
        if key is None or unit.pod_level:
            said = f"{source} says nothing about it" if key is None else "the pod has pod-level resources"
            found.append(SizedContainer(unit, unit.now, dict.fromkeys(("cpu", "memory"), said)))
            used |= {key} if key else set()
            continue
        used.add(key)
        given = by_name[key].amounts
        amounts = ContainerAmounts(
            unit.now.cpu if given.cpu is None else given.cpu,
            unit.now.memory if given.memory is None else given.memory,
            unit.now.cpu_limit,
            unit.now.memory_limit,
        )
        amounts = with_limits(unit.now, amounts, limits)
        amounts = replace(
            amounts,
            cpu_limit=amounts.cpu_limit if given.cpu_limit is None else given.cpu_limit,
            memory_limit=amounts.memory_limit if given.memory_limit is None else given.memory_limit,
        )
        found.append(
            SizedContainer(unit, amounts, dict.fromkeys(("cpu", "memory"), f"recommended by {source}"))
        )
    return found, [one for key, one in by_name.items() if key not in used]


def _key(one: RecommendedContainer) -> tuple[str, str, str, str]:
    return one.kind.lower(), one.namespace, one.workload, one.container


def with_limits(now: ContainerAmounts, after: ContainerAmounts, limits: Limits) -> ContainerAmounts:
    """Return the amounts with their limits: as they are, scaled with the request, or from the request (memory
    as much, CPU none). A limit below its request is raised to it, as the API server refuses such a pod.
    """
    cpu, memory = now.cpu_limit, now.memory_limit
    if limits == "requests":
        cpu, memory = None, after.memory
    elif limits == "scale":
        cpu, memory = _scaled(cpu, now.cpu, after.cpu), _scaled(memory, now.memory, after.memory)
    return replace(after, cpu_limit=_at_least(cpu, after.cpu), memory_limit=_at_least(memory, after.memory))


def _scaled(limit: int | None, now: int | None, after: int | None) -> int | None:
    if limit is None or not now or after is None:
        return limit
    return math.ceil(limit * after / now)


def _at_least(limit: int | None, request: int | None) -> int | None:
    return limit if limit is None or request is None else max(limit, request)


@dataclass(frozen=True)
class Excess:
    """Tell when one series was above a new limit: its row in the history, the first moment, how often, and
    the largest value.
    """

    row: int
    first: int
    times: int
    largest: int


def above(history: History, rows: Rows, limit: int) -> list[Excess]:
    """Return the series that were above a limit, in the measure's unit."""
    if not len(rows):
        return []
    values = history.values(rows)
    with np.errstate(invalid="ignore"):
        over = values > limit * (1 + CODE_ERROR)
    hit = np.flatnonzero(over.any(axis=1))
    return [
        Excess(int(rows[one]), int(over[one].argmax()), int(over[one].sum()), int(np.nanmax(values[one])))
        for one in hit.tolist()
    ]


CODE_ERROR: Final = 3e-4
"""Relative error of stored values: a container that used all of its limit is not above it."""
