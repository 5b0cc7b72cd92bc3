"""Read the results of the kubelet's test suite from Ginkgo's JUnit reports.

A report lists every spec of the suite. Specs that were not selected are skipped with the message `skipped`;
specs for which the machine was unfit append a reason. Setup and teardown nodes are listed along with the
specs, under marks other than `[It]`. Reports are read piece by piece, so that captured output of any length
costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.parsers import expat

from engine.api.errors import InvalidInput

SPEC = "[It] "
NOT_SELECTED = "skipped"
CUT_OFF = "A suite timeout occurred"
"""The message of a spec begins with this if the time of the whole run ended during the spec."""
FILE_LIMIT = 256 << 20
SPEC_LIMIT = 50_000
NAME_LIMIT = 4096
DEPTH_LIMIT = 32
MESSAGE_LIMIT = 200
_PIECE = 1 << 16


class SuiteResult(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


_STATUSES = {
    "passed": SuiteResult.PASSED,
    "failed": SuiteResult.FAILED,
    "panicked": SuiteResult.FAILED,
    "timedout": SuiteResult.FAILED,
    "skipped": SuiteResult.SKIPPED,
    "pending": SuiteResult.NOT_RUN,
    "interrupted": SuiteResult.NOT_RUN,
    "aborted": SuiteResult.NOT_RUN,
}


@dataclass(frozen=True, slots=True)
class SpecOutcome:
    """Hold a spec's last result, the first line of its message, and the number of failures before it."""

    result: SuiteResult
    message: str = ""
    failed_before: int = 0


Outcomes = dict[str, SpecOutcome]
"""By the spec's full name, as Ginkgo writes it after `[It]`."""


def read_reports(paths: Iterable[Path]) -> Outcomes:
    """Return the outcomes of several runs: for each spec, the one in the last report in which it ran.

    Raise InvalidInput with the file for one that cannot be read, is not a JUnit report of Ginkgo, or exceeds
    the limits.
    """
    outcomes: Outcomes = {}
    for path in paths:
        for name, outcome in _Reader(path).read().items():
            outcomes[name] = _after(outcomes.get(name), outcome)
    return outcomes


def _after(before: SpecOutcome | None, now: SpecOutcome) -> SpecOutcome:
    if before is None or before.result is SuiteResult.NOT_RUN:
        return now
    if now.result is SuiteResult.NOT_RUN:
        return before
    failures = before.failed_before + (before.result is SuiteResult.FAILED)
    return SpecOutcome(now.result, now.message, failures)


class _Reader:
    """Read one report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: Outcomes = {}
        self._open: list[str] = []
        self._name: str | None = None
        self._result = SuiteResult.PASSED
        self._message = ""

    def read(self) -> Outcomes:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._declares
        parser.StartElementHandler = self._begins
        parser.EndElementHandler = self._ends
        try:
            with self.path.open("rb") as file:
                length = 0
                while piece := file.read(_PIECE):
                    length += len(piece)
                    if length > FILE_LIMIT:
                        raise self._wrong(f"longer than {FILE_LIMIT >> 20} MiB")
                    parser.Parse(piece, False)
                parser.Parse(b"", True)
        except OSError as error:
            raise self._wrong(f"cannot read: {error.strerror or error}") from None
        except expat.ExpatError as error:
            raise self._wrong(
                f"invalid XML at line {error.lineno}: {expat.ErrorString(error.code)}"
            ) from None
        if not self.outcomes:
            raise self._wrong("contains no spec; expected a JUnit report of Ginkgo (--junit-report)")
        return self.outcomes

    def _wrong(self, message: str) -> InvalidInput:
        return InvalidInput(message, subject=str(self.path))

    def _declares(self, *_: object) -> None:
        raise self._wrong("a document type is declared; a JUnit report has none")

    def _begins(self, tag: str, attributes: dict[str, str]) -> None:
        self._open.append(tag)
        if len(self._open) > DEPTH_LIMIT:
            raise self._wrong(f"elements nested deeper than {DEPTH_LIMIT}")
        if tag == "testcase":
            self._case(attributes)
        elif self._name is not None and self._open[-2] == "testcase":
            self._verdict(tag, attributes.get("message", ""))

    def _case(self, attributes: dict[str, str]) -> None:
        name, status = attributes.get("name", ""), attributes.get("status", "passed")
        self._name = None
        if not name.startswith(SPEC):
            return
        if len(name) > NAME_LIMIT:
            raise self._wrong(f"a spec's name is longer than {NAME_LIMIT} characters: {name[:60]}…")
        if status not in _STATUSES:
            raise self._wrong(f"unknown status {status[:40]!r} of {name[:200]!r}")
        if len(self.outcomes) >= SPEC_LIMIT:
            raise self._wrong(f"more than {SPEC_LIMIT:,} specs")
        self._name, self._result, self._message = name.removeprefix(SPEC), _STATUSES[status], ""

    def _verdict(self, tag: str, message: str) -> None:
        if tag in ("failure", "error"):
            if message.startswith(CUT_OFF):
                self._result = SuiteResult.NOT_RUN
            elif self._result is not SuiteResult.NOT_RUN:
                self._result = SuiteResult.FAILED
            self._message = _first_line(message)
        elif tag == "skipped":
            chosen = message != NOT_SELECTED
            self._result = SuiteResult.SKIPPED if chosen else SuiteResult.NOT_RUN
            self._message = _first_line(message.removeprefix(f"{NOT_SELECTED} - ")) if chosen else ""

    def _ends(self, tag: str) -> None:
        self._open.pop()
        if tag == "testcase" and self._name is not None:
            outcome = SpecOutcome(self._result, self._message)
            self.outcomes[self._name] = _after(self.outcomes.get(self._name), outcome)
            self._name = None


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MESSAGE_LIMIT else f"{line[:MESSAGE_LIMIT]}…"
