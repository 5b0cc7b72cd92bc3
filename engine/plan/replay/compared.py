"""Say what went differently: two replays of a node, and a replay and the record itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from engine.admission.failures import is_of_predicates
from engine.admission.readmission import ADMITTED
from engine.eviction.message import REASON
from engine.plan.replay.replay import REFUSED, Replayed
from engine.record.reader import moment

ENDS: Final = {"preempted": "victim", "evicted": "evict", REFUSED: "refuse"}


class Different(NamedTuple):
    """Hold a decision that only one replay took, or that both took at other times or for other reasons.

    `decision` is evict, victim, refuse or admit for one that only the second took, spared for an end that
    only the first had, and earlier or later; `seconds` are those since the beginning, or between both.
    """

    decision: str
    pod: str
    why: str
    seconds: int


def not_repeated(recorded: Iterable[Replayed], replayed: Iterable[Replayed]) -> list[str]:
    """Return in words each decision of the agent that the replay did not take, or only the replay took.

    What other parts of the agent refused is left out: devices, volumes, and what the machine supports.
    """
    ours, theirs = _outcomes(replayed), _outcomes(recorded)
    found = []
    for key in ours.keys() | theirs.keys():
        mine, its = ours.get(key), theirs.get(key)
        if its is not None and its.outcome == REFUSED and not _is_repeated(its.why):
            continue
        if mine is None or its is None or mine.outcome != its.outcome:
            known = mine or its
            assert known is not None
            said = [one.outcome if one is not None else "nothing" for one in (its, mine)]
            found.append(f"{known.kind} of {known.pod}: recorded {said[0]}, replayed {said[1]}")
    return sorted(found)


def differences(now: Iterable[Replayed], following: Iterable[Replayed], began: float) -> Iterator[Different]:
    """Yield what the second replay decides otherwise, in the order of time."""
    before, after = _outcomes(now), _outcomes(following)
    found: list[tuple[float, Different]] = []
    for key in before.keys() | after.keys():
        first, second = before.get(key), after.get(key)
        if second is None or (first is not None and first.outcome != second.outcome == ADMITTED):
            known = first if first is not None else second
            assert known is not None
            if known.outcome != ADMITTED:
                decision = "admit" if known.outcome == REFUSED else "spared"
                found.append((known.at, _different(decision, known, began)))
        elif first is None or first.outcome != second.outcome:
            if second.outcome != ADMITTED:
                found.append((second.at, _different(ENDS[second.outcome], second, began)))
        elif abs(second.at - first.at) >= 1 and second.kind == "eviction":
            earlier = second.at < first.at
            why = f"{moment(second.at)} instead of {moment(first.at)}: {second.why}"
            seconds = round(abs(second.at - first.at))
            found.append((second.at, Different("earlier" if earlier else "later", second.pod, why, seconds)))
    return (different for _, different in sorted(found))


def _different(decision: str, one: Replayed, began: float) -> Different:
    said = f"{moment(one.at)}: {one.why}" if one.why else moment(one.at)
    return Different(decision, one.pod, said, round(one.at - began))


def _outcomes(decisions: Iterable[Replayed]) -> dict[tuple[str, str], Replayed]:
    """Return the last outcome of each pod by kind and uid: a pod may be judged more than once."""
    return {(one.kind, one.uid): one for one in decisions}


def _is_repeated(why: str) -> bool:
    reason, _, message = why.partition(": ")
    return reason == REASON or is_of_predicates(reason, message)
