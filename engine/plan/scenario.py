"""Run scenario files: named questions with parameter sweeps and assertions, so that a plan runs in CI.

The format is described in `docs/plan.md`; `scenario_schema` gives its JSON schema. Errors name line and
field.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from engine.api.documents.nearest import nearest
from engine.api.errors import InvalidInput
from engine.plan.answers.answer import Answer, joined
from engine.plan.answers.diff import difference
from engine.plan.cluster import Cluster, NodeSelection, ask
from engine.plan.questions import QUESTIONS
from engine.plan.reading.progress import Step, silent
from engine.plan.reading.yaml_document import YAMLDocument, split_error

MAX_POINTS = 10_000


class Range(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Enumerate numbers from one to another, both included if the step meets them."""

    from_: Annotated[float, Meta(description="first value")]
    to: Annotated[float, Meta(description="last value")]
    step: Annotated[float, Meta(description="distance between values", gt=0)]

    def values(self) -> list[int | float]:
        count = math.floor((self.to - self.from_) / self.step + 1e-9) + 1
        numbers = [self.from_ + index * self.step for index in range(max(count, 0))]
        return [int(number) if number == int(number) else number for number in numbers]


class Where(msgspec.Struct, forbid_unknown_fields=True):
    """Select the rows that an assertion covers; texts are patterns with * and ?."""

    decision: str = "*"
    node: str = "*"
    object: str = "*"
    reason: str = "*"
    unit: str = "*"


class FailIf(msgspec.Struct, forbid_unknown_fields=True):
    """Fail the run if the measure is above `more_than` or below `less_than`."""

    message: Annotated[str, Meta(description="what it means")] = ""
    where: Where = msgspec.field(default_factory=Where)
    of: Annotated[
        Literal["rows", "amount", "nodes"],
        Meta(description="what is measured: rows, the sum of amounts, nodes"),
    ] = "rows"
    more_than: float | None = None
    less_than: float | None = None


class Sides(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of both sides of a comparison, merged over `with`."""

    a: dict[str, Any] = {}
    b: dict[str, Any] = {}


class Scenario(msgspec.Struct, forbid_unknown_fields=True, rename={"with_": "with"}):
    """Describe one named question."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    ask: Annotated[str, Meta(description=f"one of {', '.join(QUESTIONS)}")]
    with_: Annotated[dict[str, Any], Meta(description="the question's parameters")] = {}
    nodes: Annotated[list[str], Meta(description="only these nodes: names or patterns")] = []
    selector: Annotated[str, Meta(description="only nodes with these labels")] = ""
    sample: Annotated[int, Meta(description="only this many of them, chosen with the seed", ge=0)] = 0
    sweep: Annotated[
        dict[str, list[Any] | Range],
        Meta(description="parameter (dots for nested fields: requests.cpu) to its values"),
    ] = {}
    diff: Sides | None = None
    fail_if: list[FailIf] = []


class Synthetic(msgspec.Struct, forbid_unknown_fields=True):
    """Describe a generated cluster that replaces a snapshot."""

    nodes: Annotated[int, Meta(ge=1)]
    pods_per_node: Annotated[int, Meta(ge=0)] = 100


class ScenarioFile(msgspec.Struct, forbid_unknown_fields=True):
    scenarios: Annotated[list[Scenario], Meta(min_length=1)]
    api_version: Annotated[str, Meta(description="kubengine.dev/v1alpha1")] = msgspec.field(
        default="kubengine.dev/v1alpha1", name="apiVersion"
    )
    kind: str = "Plan"
    snapshot: Annotated[
        list[str], Meta(description="paths, relative to this file; the command line takes precedence")
    ] = []
    synthetic: Synthetic | None = None
    seed: int = 1


@dataclass(frozen=True)
class Failure:
    """Report an assertion that did not hold."""

    scenario: str
    message: str


@dataclass(frozen=True)
class ScenarioOutcome:
    """Hold the result of a run: all answers, the points that were asked, and the failures."""

    answer: Answer
    points: tuple[tuple[str, str, dict[str, Any]], ...]
    failures: tuple[Failure, ...]


class Plan:
    """Hold a validated scenario file: every point of every sweep is typed before the first is asked."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raise `InvalidInput` with file, line and field."""
        self._document = YAMLDocument(path)
        self.file = self._document.convert(ScenarioFile)
        if self.file.kind != "Plan":
            raise self._document.error(("kind",), f"expected Plan, got {self.file.kind!r}")
        if self.file.api_version != "kubengine.dev/v1alpha1":
            raise self._document.error(
                ("apiVersion",), f"expected kubengine.dev/v1alpha1, got {self.file.api_version!r}"
            )
        self.path = path
        names = [scenario.name for scenario in self.file.scenarios]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self._document.error(("scenarios", index, "name"), f"{name!r} is defined already")
        self.points = [list(self._points(index)) for index in range(len(names))]

    def _points(self, index: int) -> Iterator[tuple[str, list[msgspec.Struct], dict[str, Any]]]:
        """Yield (name, parameters of one question or of both sides, as written) of each point of a sweep."""
        scenario = self.file.scenarios[index]
        at: tuple[str | int, ...] = ("scenarios", index)
        if scenario.ask not in QUESTIONS:
            near = nearest(scenario.ask, QUESTIONS)
            raise self._document.error(
                (*at, "ask"), f"expected one of {', '.join(QUESTIONS)}, got {scenario.ask!r}{near}"
            )
        axes = {
            field: values.values() if isinstance(values, Range) else values
            for field, values in scenario.sweep.items()
        }
        for field, values in axes.items():
            if not values:
                raise self._document.error((*at, "sweep", field), "has no values")
        count = int(np.prod([len(values) for values in axes.values()], dtype=np.float64)) if axes else 1
        if count > MAX_POINTS:
            raise self._document.error((*at, "sweep"), f"{count} points; at most {MAX_POINTS}")
        for point in itertools.product(*axes.values()):
            chosen = dict(zip(axes, point, strict=True))
            label = ",".join(f"{field}={value}" for field, value in chosen.items())
            name = f"{scenario.name}[{label}]" if label else scenario.name
            sides = [{}] if scenario.diff is None else [scenario.diff.a, scenario.diff.b]
            keys: list[tuple[str | int, ...]] = [(*at, "with")]
            if scenario.diff is not None:
                keys = [(*at, "diff", "a"), (*at, "diff", "b")]
            typed = [
                self._typed(scenario, laid_over(scenario.with_, chosen, side), key, at)
                for side, key in zip(sides, keys, strict=True)
            ]
            yield name, typed, chosen

    def _typed(
        self, scenario: Scenario, plain: dict[str, Any], key: tuple[str | int, ...], at: tuple[str | int, ...]
    ) -> msgspec.Struct:
        for name in ("file", "config", "history", "recommendations"):
            if plain.get(name):
                plain[name] = str(self.path.parent / str(plain[name]))
        kind = QUESTIONS[scenario.ask].parameters
        try:
            return msgspec.convert(plain, kind)
        except (msgspec.ValidationError, InvalidInput) as error:
            text, path = _located(error)
            if text == "unknown field" and len(path) == 1:
                text += expected_fields(str(path[0]), kind)
            swept = ".".join(str(part) for part in path)
            where = (*at, "sweep", swept) if swept in scenario.sweep else (*key, *path)
            raise self._document.error(where, text) from None

    @property
    def questions(self) -> int:
        """Return the total number of questions; both sides of a difference count."""
        return sum(len(typed) for mine in self.points for _, typed, _ in mine)

    def run(
        self, cluster: Cluster, *, shard_pods: int = 0, dask: str = "", step: Step = silent
    ) -> ScenarioOutcome:
        """Ask everything, in order, then check the assertions; `step` is called for each question."""
        answers: list[Answer] = []
        points: list[tuple[str, str, dict[str, Any]]] = []
        failures: list[Failure] = []
        for scenario, mine in zip(self.file.scenarios, self.points, strict=True):
            selection = NodeSelection(
                tuple(scenario.nodes), scenario.selector, scenario.sample, self.file.seed
            )
            for name, typed, chosen in mine:
                found = [
                    ask(
                        cluster,
                        scenario.ask,
                        one,
                        selection=selection,
                        shard_pods=shard_pods,
                        dask=dask,
                        step=step,
                    )
                    for one in typed
                ]
                answer = difference(*found) if scenario.diff is not None else found[0]
                answers.append(answer.named(name))
                points.append((scenario.name, name, chosen))
                failures += failed(name, scenario.fail_if, answer)
        return ScenarioOutcome(joined(answers), tuple(points), tuple(failures))


def _located(error: msgspec.ValidationError | InvalidInput) -> tuple[str, tuple[str | int, ...]]:
    """Return a parameter's error, and its path."""
    return (error.message, (error.subject,)) if isinstance(error, InvalidInput) else split_error(error)


def expected_fields(name: str, kind: type[msgspec.Struct]) -> str:
    """Complete an "unknown field" error with the nearest parameter, or all existing ones."""
    fields = kind.__struct_fields__
    return nearest(name, fields) or f"; expected one of {', '.join(fields)}"


def laid_over(base: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with changes; a key with a dot addresses a nested field (`requests.cpu`)."""
    result = deepcopy(base)
    for change in changes:
        for key, value in change.items():
            target, path = result, key.split(".", 1)
            if len(path) == 2:
                inner = target.setdefault(path[0], {})
                if isinstance(inner, dict):
                    inner[path[1]] = deepcopy(value)
                    continue
            target[key] = deepcopy(value)
    return result


def failed(name: str, assertions: list[FailIf], answer: Answer) -> Iterator[Failure]:
    """Return which assertions do not hold for an answer."""
    for assertion in assertions:
        table = matching(answer.table, assertion.where)
        if assertion.of == "rows":
            measured = table.num_rows
        elif assertion.of == "nodes":
            measured = len(table["node"].unique())
        else:
            measured = sum(table["amount"].to_pylist())
        above = assertion.more_than
        if above is None and assertion.less_than is None:
            above = 0
        said = f"{assertion.message}: " if assertion.message else ""
        if above is not None and measured > above:
            yield Failure(name, f"{said}{measured:,} {assertion.of}, more than {above:g}")
        if assertion.less_than is not None and measured < assertion.less_than:
            yield Failure(name, f"{said}{measured:,} {assertion.of}, less than {assertion.less_than:g}")


def matching(table: pa.Table, where: Where) -> pa.Table:
    """Return rows whose texts all match."""
    keep = np.ones(table.num_rows, bool)
    for name in Where.__struct_fields__:
        pattern = getattr(where, name)
        if pattern == "*":
            continue
        column = table[name].combine_chunks()
        if pa.types.is_dictionary(table[name].type):
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            match = np.array([fnmatch.fnmatchcase(t, pattern) for t in array.dictionary.to_pylist()], bool)
            keep &= match[array.indices.to_numpy()] if len(match) else keep
        else:
            keep &= np.array([fnmatch.fnmatchcase(t, pattern) for t in table[name].to_pylist()], bool)
    return table.filter(pa.array(keep))


def scenario_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, with each question's parameters under `$defs`."""
    schema = msgspec.json.schema(ScenarioFile)
    schemas, components = msgspec.json.schema_components(
        [question.parameters for question in QUESTIONS.values()], ref_template="#/$defs/{name}"
    )
    schema["$defs"] |= components
    conditions = [
        {"if": {"properties": {"ask": {"const": name}}}, "then": {"properties": {"with": parameters}}}
        for name, parameters in zip(QUESTIONS, schemas, strict=True)
    ]
    schema["$defs"]["Scenario"]["allOf"] = conditions
    schema["$defs"]["Scenario"]["properties"]["ask"]["enum"] = list(QUESTIONS)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
