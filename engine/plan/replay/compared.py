"""Find the differences between two replays of a node, and between a replay and its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from engine.admission.failures import is_of_predicates
from engine.admission.readmission import ADMITTED
from engine.eviction.message import REASON
from engine.plan.replay.decided import COLLECTED, EVICTED, IMAGES, PREEMPTED, REFUSED, RESTART, Replayed
from engine.record.reader import moment

ENDS: Final = {PREEMPTED: "victim", EVICTED: "evict", REFUSED: "refuse", COLLECTED: "remove"}
INSTEAD: Final = {REFUSED: "admit", COLLECTED: "kept"}
"""What else than that it is spared becomes of one that only the first replay ends."""
_TIMED: Final = ("eviction", IMAGES)


class Different(NamedTuple):
    """Hold a decision that only one replay took, or that both took at other times or for other reasons.

    `decision` is evict, victim, refuse, admit or remove for one that only the second took, spared or kept for
    an end that only the first had, earlier or later, and restarts for a container that restarts otherwise.
    `amount` are the seconds since the beginning or between both, the bytes of an image, or the restarts of
    the second.
    """

    decision: str
    pod: str
    why: str
    amount: int
    unit: str = "s"


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
            part = f" ({known.part})" if known.part else ""
            found.append(f"{known.kind} of {known.pod}{part}: recorded {said[0]}, replayed {said[1]}")
    return sorted(found)


def differences(now: Iterable[Replayed], following: Iterable[Replayed], began: float) -> Iterator[Different]:
    """Yield what the second replay decides otherwise, in the order of time."""
    before, after = (_outcomes(one for one in replay if one.kind != RESTART) for replay in (now, following))
    found = list(_other_restarts(now, following))
    for key in before.keys() | after.keys():
        first, second = before.get(key), after.get(key)
        if second is None or (first is not None and first.outcome != second.outcome == ADMITTED):
            known = first if first is not None else second
            assert known is not None
            if known.outcome != ADMITTED:
                decision = INSTEAD.get(known.outcome, "spared")
                found.append((known.at, _different(decision, known, began)))
        elif first is None or first.outcome != second.outcome:
            if second.outcome != ADMITTED:
                found.append((second.at, _different(ENDS[second.outcome], second, began)))
        elif abs(second.at - first.at) >= 1 and second.kind in _TIMED:
            earlier = second.at < first.at
            why = f"{moment(second.at)} instead of {moment(first.at)}: {second.why}"
            seconds = round(abs(second.at - first.at))
            found.append((second.at, Different("earlier" if earlier else "later", second.pod, why, seconds)))
    return (different for _, different in sorted(found))


def _other_restarts(
    now: Iterable[Replayed], following: Iterable[Replayed]
) -> Iterator[tuple[float, Different]]:
    """Yield the containers that restart at other times, each with the time of the first one that differs."""
    before, after = _restarts(now), _restarts(following)
    for key in before.keys() | after.keys():
        first, second = before.get(key, []), after.get(key, [])
        changed = next((pair for pair in zip_longest(first, second) if _differ(*pair)), None)
        if changed is not None:
            known = changed[0] or changed[1]
            assert known is not None
            why = f"{len(second)} restarts instead of {len(first)}, from {moment(known.at)} on"
            name = f"{known.pod}/{key[1]}"
            yield known.at, Different("restarts", name, why, len(second), "restarts")


def _differ(first: Replayed | None, second: Replayed | None) -> bool:
    if first is None or second is None:
        return True
    return first.outcome != second.outcome or abs(second.at - first.at) >= 1


def _restarts(decisions: Iterable[Replayed]) -> dict[tuple[str, str], list[Replayed]]:
    """Return the restarts of each container by uid and name, in order."""
    found: dict[tuple[str, str], list[Replayed]] = {}
    for one in decisions:
        if one.kind == RESTART:
            found.setdefault((one.uid, one.part.partition(" ")[0]), []).append(one)
    return found


def _different(decision: str, one: Replayed, began: float) -> Different:
    said = f"{moment(one.at)}: {one.why}" if one.why else moment(one.at)
    if one.kind == IMAGES:
        return Different(decision, one.pod, said, one.size, "bytes")
    return Different(decision, one.pod, said, round(one.at - began))


def _outcomes(decisions: Iterable[Replayed]) -> dict[tuple[str, str, str], Replayed]:
    """Return the last outcome by kind, uid and part: a pod may be judged more than once."""
    return {(one.kind, one.uid, one.part): one for one in decisions}


def _is_repeated(why: str) -> bool:
    reason, _, message = why.partition(": ")
    return reason == REASON or is_of_predicates(reason, message)
