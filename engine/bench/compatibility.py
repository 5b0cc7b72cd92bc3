"""Compare a run of the kubelet's suite with two agents, spec by spec, as Markdown: the tables of
docs/compatibility.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.bench.suite import Outcomes, SpecOutcome, SuiteResult
from engine.host.files import replace_file

BEGIN = "<!-- begin: kubengine bench suite -->"
END = "<!-- end: kubengine bench suite -->"
TITLE_WORDS = 4
_LABELS = re.compile(r" \[[^\[\]]*\]$")
_TAG = re.compile(r"\[[^\[\]]*\] ?")
_SENTENCE = frozenset(["can", "does", "has", "is", "must", "should", "when", "will", "with", "without"])
"""Words that begin a spec's sentence, where a group's title ends."""
_NOT_RUN = SpecOutcome(SuiteResult.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Spec:
    """Hold one spec and its result with each agent."""

    group: str
    text: str
    kubelet: SpecOutcome
    kubengine: SpecOutcome

    @property
    def results(self) -> tuple[SuiteResult, SuiteResult]:
        return self.kubelet.result, self.kubengine.result


def specs(kubelet: Outcomes, kubengine: Outcomes) -> list[Spec]:
    """Return every spec that a report names, by group and name."""
    found = []
    for name in {**kubelet, **kubengine}:
        group, text = split(name)
        found.append(Spec(group, text, kubelet.get(name, _NOT_RUN), kubengine.get(name, _NOT_RUN)))
    return sorted(found, key=lambda spec: (spec.group.lower(), spec.text))


def split(name: str) -> tuple[str, str]:
    """Return a spec's group and the rest of its name, both without tags and labels.

    Ginkgo joins titles with spaces. The first one ends at a tag behind it, at a closing parenthesis, at a
    word with which a sentence begins, or after four words.
    """
    name = _LABELS.sub("", name)
    while tag := _TAG.match(name):
        name = name[tag.end() :]
    title: list[str] = []
    for word in name.split():
        if len(title) == TITLE_WORDS or (title and (word.startswith("[") or word.lower() in _SENTENCE)):
            break
        title.append(word)
        if word.endswith((")", ":")):
            break
    text = _TAG.sub("", name.removeprefix(" ".join(title))).strip()
    return " ".join(title).rstrip(":"), text


def tables(kubelet: Outcomes, kubengine: Outcomes) -> str:
    """Return totals by group, specs that pass with one agent and fail with the other, and each spec that was
    run.
    """
    groups: Mapping[str, list[Spec]] = defaultdict(list)
    every = specs(kubelet, kubengine)
    for spec in every:
        groups[spec.group].append(spec)
    lines = [*_totals(every, groups), *_apart(every)]
    for group, members in groups.items():
        if ran := [spec for spec in members if spec.results != (SuiteResult.NOT_RUN, SuiteResult.NOT_RUN)]:
            lines += ["", f"### {cell(group)}", "", "| spec | kubelet | kubengine |", "|---|---|---|"]
            lines += [
                f"| {cell(s.text)} | {_result_text(s.kubelet)} | {_result_text(s.kubengine)} |" for s in ran
            ]
    return "\n".join(lines) + "\n"


def write_into(path: Path, text: str) -> None:
    """Write `text` between the two marks of the document.

    Raise InvalidInput with the file if it cannot be read or lacks the marks, Refused if it cannot be
    written.
    """
    try:
        before, begin, rest = path.read_text().partition(f"{BEGIN}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read: {error}", subject=str(path)) from None
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput(f"expected the lines {BEGIN} and {END}", subject=str(path))
    replace_file(path, f"{before}{begin}{text}{end}{after}", mode=0o644)


def _totals(every: list[Spec], groups: Mapping[str, list[Spec]]) -> Iterator[str]:
    yield "| group | specs | run with both | kubelet | kubengine | only kubelet | only kubengine |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    unselected = []
    for group, members in groups.items():
        if all(spec.results == (SuiteResult.NOT_RUN, SuiteResult.NOT_RUN) for spec in members):
            unselected.append(f"{cell(group)} ({len(members)})")
        else:
            yield _row(cell(group), members)
    yield _row("**all**", every)
    if unselected:
        yield ""
        yield f"In no report of either agent, with their number of specs: {', '.join(unselected)}."


def _row(title: str, members: list[Spec]) -> str:
    def count(condition: Callable[[Spec], bool]) -> int:
        return sum(map(condition, members))

    numbers = (
        len(members),
        count(lambda spec: SuiteResult.NOT_RUN not in spec.results),
        count(lambda spec: spec.kubelet.result is SuiteResult.PASSED),
        count(lambda spec: spec.kubengine.result is SuiteResult.PASSED),
        count(lambda spec: spec.results == (SuiteResult.PASSED, SuiteResult.FAILED)),
        count(lambda spec: spec.results == (SuiteResult.FAILED, SuiteResult.PASSED)),
    )
    return f"| {title} | {' | '.join(f'{number:,}' for number in numbers)} |"


def _apart(every: list[Spec]) -> Iterator[str]:
    for heading, results in (
        ("Pass with the kubelet, fail here", (SuiteResult.PASSED, SuiteResult.FAILED)),
        ("Fail with the kubelet, pass here", (SuiteResult.FAILED, SuiteResult.PASSED)),
    ):
        yield from ("", f"### {heading}", "")
        found = [spec for spec in every if spec.results == results]
        for spec in found:
            failed = spec.kubengine if spec.kubengine.result is SuiteResult.FAILED else spec.kubelet
            yield f"- {cell(spec.group)}: {cell(spec.text)} ({cell(failed.message) or 'no message'})"
        if not found:
            yield "None."


def _result_text(outcome: SpecOutcome) -> str:
    if outcome.result is SuiteResult.PASSED and outcome.failed_before:
        return f"passed, {outcome.failed_before} failed before"
    return f"**{outcome.result}**" if outcome.result is SuiteResult.FAILED else str(outcome.result)


def cell(text: str) -> str:
    """Escape foreign text for a Markdown cell."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
