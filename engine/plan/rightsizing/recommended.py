"""Read requests that other tools recommend: VerticalPodAutoscalers, the JSON of krr, or a table of one's
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.documents import parse_documents, read_text
from engine.api.errors import InvalidInput
from engine.api.quantity import Quantity
from engine.plan.reading.table_file import read_table
from engine.plan.snapshot.faults import FaultLog

TABLES: Final = (".csv", ".csv.gz", ".parquet", ".pq")
MOST: Final = 2**50


@dataclass(frozen=True)
class ContainerAmounts:
    """Hold what one container requests and may use: milli-CPU and bytes, None where it names none."""

    cpu: int | None = None
    memory: int | None = None
    cpu_limit: int | None = None
    memory_limit: int | None = None


@dataclass(frozen=True)
class RecommendedContainer:
    """Hold one recommendation; an empty `kind` means any workload of this name."""

    kind: str
    namespace: str
    workload: str
    container: str
    amounts: ContainerAmounts


class _Named(msgspec.Struct):
    name: str = ""
    namespace: str = "default"


class _Target(msgspec.Struct):
    kind: str
    name: str


class _ContainerRecommendation(msgspec.Struct, rename="camel"):
    container_name: str
    target: dict[str, str | int | float]


class _Recommendation(msgspec.Struct, rename="camel"):
    container_recommendations: list[_ContainerRecommendation] = []


class _Spec(msgspec.Struct, rename="camel"):
    target_ref: _Target


class _Status(msgspec.Struct):
    recommendation: _Recommendation | None = None


class _Autoscaler(msgspec.Struct):
    metadata: _Named
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


class _Scanned(msgspec.Struct):
    name: str
    container: str
    namespace: str
    kind: str = ""


class _Value(msgspec.Struct):
    value: float | str | None = None


class _Amounts(msgspec.Struct):
    requests: dict[str, _Value] = {}
    limits: dict[str, _Value] = {}


class _Scan(msgspec.Struct):
    object: _Scanned
    recommended: _Amounts


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    workload: str
    container: str
    namespace: str = "default"
    kind: str = ""
    cpu: str | int | float | None = None
    memory: str | int | float | None = None
    cpu_limit: str | int | float | None = None
    memory_limit: str | int | float | None = None


def read_recommended(path: str, faults: FaultLog) -> list[RecommendedContainer]:
    """Read a file: VerticalPodAutoscalers as kubectl prints them, krr's JSON, or rows (CSV, Parquet, YAML
    or JSON) with `namespace`, `kind`, `workload`, `container` and any of `cpu`, `memory`, `cpu_limit`,
    `memory_limit`.

    What cannot be used is reported in `faults` and left out. Raise `InvalidInput` if nothing can be used.
    """
    found: list[RecommendedContainer] = []
    for number, (subject, document) in enumerate(_documents(path)):
        try:
            found += _recommended(document)
        except (msgspec.ValidationError, InvalidInput) as error:
            text, _, field = str(error).partition(" - at `$.")
            faults.add(path, subject or f"entry {number + 1}", field.rstrip("`"), text)
    if not found:
        first = f": {faults.kept[0]}" if faults.kept else ""
        raise InvalidInput(f"recommends nothing{first}", subject=path)
    return found


def _documents(path: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of each entry, if it has one, and the entry."""
    if path.endswith(TABLES):
        yield from (("", row) for row in read_table(path).to_pylist())
        return
    for document in parse_documents(read_text(Path(path)), path):
        entries = document.get("scans") or document.get("items") or [document]
        yield from ((_subject(entry), entry) for entry in entries)


def _subject(entry: Any) -> str:
    named = entry.get("metadata") or entry.get("object") if isinstance(entry, dict) else None
    if not isinstance(named, Mapping):
        return ""
    kind = "VerticalPodAutoscaler" if "metadata" in entry else str(named.get("kind", ""))
    return f"{kind} {named.get('namespace', 'default')}/{named.get('name', '')}".strip()


def _recommended(entry: Any) -> Iterator[RecommendedContainer]:
    if isinstance(entry, dict) and "targetRef" in (entry.get("spec") or {}):
        yield from _of_autoscaler(msgspec.convert(entry, _Autoscaler))
    elif isinstance(entry, dict) and "recommended" in entry:
        yield _of_scan(msgspec.convert(entry, _Scan))
    else:
        row = msgspec.convert({k: v for k, v in entry.items() if v is not None}, _Row)
        amounts = {name: getattr(row, name) for name in ContainerAmounts.__dataclass_fields__}
        yield RecommendedContainer(
            row.kind, row.namespace, row.workload, row.container, _amounts(amounts, row.container)
        )


def _of_autoscaler(scaler: _Autoscaler) -> Iterator[RecommendedContainer]:
    found = scaler.status.recommendation
    if found is None or not found.container_recommendations:
        raise InvalidInput("has no recommendation yet", subject="status.recommendation")
    target = scaler.spec.target_ref
    for one in found.container_recommendations:
        amounts = _amounts(one.target, one.container_name)
        yield RecommendedContainer(
            target.kind, scaler.metadata.namespace, target.name, one.container_name, amounts
        )


def _of_scan(scan: _Scan) -> RecommendedContainer:
    named = {
        f"{resource}{suffix}": value.value
        for suffix, group in (("", scan.recommended.requests), ("_limit", scan.recommended.limits))
        for resource, value in group.items()
        if value.value not in (None, "?")
    }
    found = scan.object
    amounts = _amounts(named, found.container)
    return RecommendedContainer(found.kind, found.namespace, found.name, found.container, amounts)


def _amounts(given: Mapping[str, Any], container: str) -> ContainerAmounts:
    """Return amounts. Raise `InvalidInput` with the container and the amount."""
    found: dict[str, int] = {}
    for name in ContainerAmounts.__dataclass_fields__:
        value = given.get(name)
        if value is None:
            continue
        try:
            quantity = Quantity.parse(f"{value:.9f}" if isinstance(value, float) else str(value))
        except InvalidInput as error:
            raise InvalidInput(f"{container}: {name}: {error.message}") from None
        amount = quantity.milli if name.startswith("cpu") else quantity.value
        if not 0 <= amount <= MOST:
            raise InvalidInput(f"{container}: {name}: {value} is out of range")
        found[name] = amount
    return ContainerAmounts(**found)
