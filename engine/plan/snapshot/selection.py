"""Select nodes by name, pattern or label."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.api.errors import InvalidInput
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import node_object

Matches = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^()]*)\)\s*")
_EQUAL = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_WILD = re.compile(r"[*?[]")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")


def select_nodes(snapshot: Snapshot, patterns: list[str], selector: str = "") -> NDArray[np.int64]:
    """Return row numbers of nodes that match any pattern and the selector; all without either.

    Raise `InvalidInput` for a pattern that matches nothing or an invalid selector.
    """
    chosen = np.ones(snapshot.node_count, bool)
    if patterns:
        chosen[:] = False
        for pattern in patterns:
            matching = _named(snapshot.node_names, pattern)
            if not matching:
                raise InvalidInput("matches no node of the snapshot", subject=pattern or "an empty pattern")
            chosen[matching] = True
    if selector:
        selects = label_selector(selector)
        for node in np.flatnonzero(chosen).tolist():
            chosen[node] = selects(node_object(snapshot, node).labels)
        if not chosen.any():
            raise InvalidInput("matches no node of the snapshot", subject=selector)
    return np.flatnonzero(chosen)


def _named(names: Sequence[str], pattern: str) -> list[int]:
    """Return the positions of the names that match."""
    if not _WILD.search(pattern):
        # A plain name is found without a match for each of many nodes.
        return [names.index(pattern)] if pattern in names else []
    matches = re.compile(fnmatch.translate(pattern)).match
    return [position for position, name in enumerate(names) if matches(name)]


def label_selector(text: str) -> Matches:
    """Parse `a=b,c!=d,e in (f,g),h,!i`, as kubectl does. Raise `InvalidInput`."""
    tests: list[Matches] = []
    at = 0
    while at <= len(text):
        for pattern, make in ((_SET, _set_test), (_EQUAL, _equal_test), (_EXISTS, _exists_test)):
            match = pattern.match(text, at)
            if match and text[match.end() : match.end() + 1] in ("", ","):
                tests.append(make(match))
                at = match.end() + 1
                break
        else:
            raise InvalidInput(f"not a label selector at {text[at : at + 20]!r}", subject=text[:80])
    return lambda labels: all(test(labels) for test in tests)


def _set_test(match: re.Match[str]) -> Matches:
    key, operator, values = match.groups()
    wanted = {value.strip() for value in values.split(",")}
    if operator == "in":
        return lambda labels: labels.get(key) in wanted
    return lambda labels: labels.get(key) not in wanted


def _equal_test(match: re.Match[str]) -> Matches:
    key, operator, value = match.groups()
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _exists_test(match: re.Match[str]) -> Matches:
    absent, key = match.groups()
    return lambda labels: (key in labels) is (not absent)
