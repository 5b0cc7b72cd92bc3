"""Chooses which pods must go for a pod, under a named policy. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from engine._fast.preemption import preemption as kernels
from engine.admission import fewest
from engine.admission.decision import (
    NO_LIMIT,
    NotEnoughToPreempt,
    Preemption,
    Requirements,
    why_not_preemptable,
)
from engine.api.errors import InvalidInput
from engine.api.pod import Pod
from engine.api.qos import is_critical
from engine.api.resources import PODS, is_qualified_name
from engine.tables import PODS_ID, PodTable

if TYPE_CHECKING:
    from engine.admission.fewest import Candidate

KUBELET: Final = "kubelet"
PRIORITY: Final = "priority"
MINIMAL: Final = "minimal"
POLICIES: Final = (KUBELET, PRIORITY, MINIMAL)

_LARGEST: Final = 2**63 - 1
_MOST_REQUIREMENTS: Final = 32


def preempt(
    pods: PodTable | Iterable[Pod],
    preemptor: Pod,
    requirements: Mapping[str, int] | Iterable[tuple[str, int]],
    *,
    policy: str = KUBELET,
    time_limit: float = 0.1,
    steps: int = NO_LIMIT,
) -> Preemption:
    """Choose which of a node's pods are evicted so that `preemptor` fits.

    `requirements` is how much of each resource must be freed, in the order in which the checks failed:
    milli-CPU for cpu, bytes for memory and storage, pieces for the rest, `pods` for pod slots. `pods` are in
    their order on the node, or a PodTable, whose row order counts.

    Policies: `kubelet` is that of v1.36: within BestEffort, Burstable and Guaranteed, the pod that comes
    closest to the remaining shortfall, until nothing is short. `priority` spares high priorities: as few
    victims as possible of the highest priority involved, then of the next. `minimal` takes the fewest
    victims, then the least total priority, then the least freed beyond need. The last two leave pods with
    the annotation `kubengine.dev/do-not-preempt: "true"` alone, and are exact unless `time_limit` (seconds)
    or `steps` (the same on every machine) run out; then the best set so far is used and `proven` is False.

    Raises `NotEnoughToPreempt` if all preemptable pods together are not enough, and `InvalidInput` for a
    negative or repeated requirement, an unknown resource name or policy, a preemptor that is among the pods,
    repeated uids, and amounts that are negative or beyond 64 bits.
    """
    if policy not in POLICIES:
        raise InvalidInput(
            f"expected one of {', '.join(POLICIES)}, got {policy!r}", subject="preemption.policy"
        )
    table = pods if isinstance(pods, PodTable) else PodTable.from_pods(pods)
    if preemptor.uid in table:
        raise InvalidInput("the preemptor is among the node's pods", subject=preemptor.full_name)
    needs = _checked(requirements)
    critical, priority = is_critical(preemptor), preemptor.spec.priority
    # A name that the table does not know is a resource that no pod holds, so that nothing can free it.
    ids = [table.resources.find(name) for name, _ in needs]
    absent = tuple(need for need, id in zip(needs, ids, strict=True) if id is None and need[1] > 0)
    known = [(need, id) for need, id in zip(needs, ids, strict=True) if id is not None]
    proven, note = True, ""
    if policy == KUBELET:
        found, short = kernels.victims(
            table.cells.ranking,
            table.cells.qos,
            table.cells.flags,
            table.cells.priority,
            None if len(table) == table.end == table.cells.capacity else array("i", table.live_rows()),
            critical,
            priority,
            array("i", [id for _, id in known]),
            array("q", [need[1] for need, _ in known]),
        )
        missing = {need[0]: left for (need, _), left in zip(known, short.tolist(), strict=True) if left}
        rows = found.tolist()
    else:
        candidates = _candidates(table, critical, priority, [id for _, id in known])
        wanted = [need[1] for need, _ in known]
        missing = _missing([need for need, _ in known], candidates)
        rows = []
        if not missing and not absent:
            search = fewest.fewest_victims if policy == MINIMAL else fewest.fewest_by_priority
            answer = search(candidates, wanted, fewest.Budget(time_limit, steps))
            rows, proven = [candidate.row for candidate in answer.chosen], answer.proven
            note = "" if proven else "the search was cut off; the best set found so far is used"
    missing.update(absent)
    if missing:
        raise NotEnoughToPreempt(tuple((name, missing[name]) for name, _ in needs if name in missing))
    return Preemption(
        policy=policy,
        preemptor=preemptor.full_name,
        requirements=needs,
        victims=tuple(table.uid(row) for row in rows),
        rows=tuple(rows),
        table=table,
        critical=critical,
        priority=priority,
        proven=proven,
        note=note,
    )


def _checked(requirements: Mapping[str, int] | Iterable[tuple[str, int]]) -> Requirements:
    needs = tuple(requirements.items() if isinstance(requirements, Mapping) else requirements)
    seen: set[str] = set()
    for name, quantity in needs:
        where = f"requirement {name[:64] or repr(name)}"
        if name != PODS and not is_qualified_name(name):
            raise InvalidInput("not a resource name", subject=where)
        if name in seen:
            raise InvalidInput("given twice", subject=where)
        if not 0 <= quantity <= _LARGEST:
            raise InvalidInput(f"{quantity} is negative or beyond 64 bits", subject=where)
        seen.add(name)
    if len(needs) > _MOST_REQUIREMENTS:
        raise InvalidInput(f"{len(needs)} resources; at most {_MOST_REQUIREMENTS}", subject="requirements")
    return needs


def _candidates(table: PodTable, critical: bool, priority: int | None, ids: Sequence[int]) -> list[Candidate]:
    cells = table.cells
    return [
        fewest.Candidate(
            row=row,
            amounts=tuple(1 if id == PODS_ID else int(cells.ranking[id, row]) for id in ids),
            priority=int(cells.priority[row]),
        )
        for row in table.live_rows()
        if why_not_preemptable(table, row, critical, priority, respect_protection=True) is None
    ]


def _missing(needs: Sequence[tuple[str, int]], candidates: Sequence[Candidate]) -> dict[str, int]:
    left = {
        name: need - sum(candidate.amounts[index] for candidate in candidates)
        for index, (name, need) in enumerate(needs)
    }
    return {name: amount for name, amount in left.items() if amount > 0}
