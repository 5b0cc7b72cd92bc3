"""Count a run of the cluster conformance suite by special interest group (SIG), as Markdown: the tables of
docs/conformance.md.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from engine.bench.compatibility import cell
from engine.bench.suite import Outcomes, SpecOutcome, SuiteResult

CONFORMANCE = "[Conformance]"
"""The mark of a spec that belongs to the conformance profile."""
_SIG = re.compile(r"\[(sig-[a-z-]+)\]")
_LABELS = re.compile(r" \[[^\[\]]*\]$")
_MARKS = re.compile(r"\[[A-Za-z:. -]*\] ?")
_NOT_RUN = SpecOutcome(SuiteResult.NOT_RUN)
_COUNTED = (SuiteResult.PASSED, SuiteResult.FAILED, SuiteResult.SKIPPED, SuiteResult.NOT_RUN)


def conformance_tables(kubengine: Outcomes, kubelet: Outcomes) -> str:
    """Return totals by SIG of the specs marked [Conformance], of other specs that ran with either agent, and
    each spec that fails with Kubengine.

    `kubelet` may hold a part of the specs, or none: a spec without a report there counts as not run.
    """
    marked: dict[str, list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    for name in sorted({**kubelet, **kubengine}):
        if CONFORMANCE in name:
            marked[sig(name)].append(name)
        elif any(_result(outcomes, name) is not SuiteResult.NOT_RUN for outcomes in (kubengine, kubelet)):
            others[sig(name)].append(name)
    lines = [*_totals(marked, kubengine, kubelet)]
    if others:
        lines += ["", "### Beyond `[Conformance]`", "", *_totals(others, kubengine, kubelet)]
    lines += _failures([*marked.items(), *others.items()], kubengine, kubelet)
    return "\n".join(lines) + "\n"


def _result(outcomes: Outcomes, name: str) -> SuiteResult:
    return outcomes.get(name, _NOT_RUN).result


def sig(name: str) -> str:
    """Return the SIG that owns a spec, or `no SIG`."""
    found = _SIG.search(name)
    return found.group(1) if found else "no SIG"


def _totals(by_sig: Mapping[str, list[str]], kubengine: Outcomes, kubelet: Outcomes) -> Iterator[str]:
    yield "| SIG | specs | passed | failed | skipped | not run | kubelet: passed | kubelet: failed |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    every: list[str] = []
    for title, names in sorted(by_sig.items()):
        yield _row(title, names, kubengine, kubelet)
        every += names
    yield _row("**all**", every, kubengine, kubelet)


def _row(title: str, names: list[str], kubengine: Outcomes, kubelet: Outcomes) -> str:
    ours = Counter(_result(kubengine, name) for name in names)
    theirs = Counter(_result(kubelet, name) for name in names)
    numbers = [
        len(names),
        *(ours[result] for result in _COUNTED),
        theirs[SuiteResult.PASSED],
        theirs[SuiteResult.FAILED],
    ]
    return f"| {title} | {' | '.join(str(number) for number in numbers)} |"


def _failures(
    by_sig: Iterable[tuple[str, list[str]]], kubengine: Outcomes, kubelet: Outcomes
) -> Iterator[str]:
    yield from ("", "### Fail with Kubengine", "")
    found = False
    for title, names in sorted(by_sig):
        for name in names:
            outcome = kubengine.get(name, _NOT_RUN)
            if outcome.result is SuiteResult.FAILED:
                found = True
                text = _MARKS.sub("", _LABELS.sub("", name)).strip()
                message = cell(outcome.message) or "no message"
                yield f"- {title}: {cell(text)} ({message}); kubelet: {_result(kubelet, name)}"
    if not found:
        yield "None."
