"""Serves `/metrics/resource`, which metrics-server scrapes, from the columns of the cgroups.

Each number carries the time of its reading, from which rates are computed. The text is written while it is
sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from engine._fast.writing.exposition import ABSENT, ColumnRows, Series, Texts, Values, exposition, joined
from engine.node.nodeinfo import machine
from engine.node.stats.runtime_use import RuntimeUse
from engine.node.stats.used import NodeUsage, UsedPod
from engine.server.metrics_text import MICRO, NANO, family, head, labelled

_CPU: Final = ("cpu_usage_seconds_total", "Cumulative CPU time of the {} in core-seconds", "counter")
_MEMORY: Final = ("memory_working_set_bytes", "Working set of the {} in bytes", "gauge")
_SWAP: Final = ("swap_usage_bytes", "Swap in use by the {} in bytes", "gauge")
_SWAP_LIMIT: Final = ("swap_limit_bytes", "Swap that the {} may use in bytes", "gauge")
_START: Final = ("start_time_seconds", "Start of the {} in Unix seconds", "gauge")

Part = tuple[Texts, Values, int | None]
"""Labels, a value of each, and the Unix milliseconds of the reading."""


class _Shown(msgspec.Struct, frozen=True, eq=False):
    """Hold labels and rows of pods and containers; `started` are microseconds since the epoch."""

    pods: Texts
    pod_rows: array[int]
    containers: Texts
    rows: array[int]
    started: array[int]


def resource_metrics(usage: NodeUsage, runtime_use: Sequence[RuntimeUse] = ()) -> Iterator[bytes]:
    """Yield the page. `runtime_use` are the runtime's numbers where cgroups have none. Unknown values
    are omitted.
    """
    yield "".join(_of_node(usage)).encode()
    yield from _of_pods(usage, _shown(tuple(usage.pods)), runtime_use)
    yield scrape_error(0)


def scrape_error(value: int) -> bytes:
    """Return the last sample of the page, which is the only one if nothing could be read."""
    help = "1 if the metrics could not be collected"
    return family("resource_scrape_error", help, "gauge", (), [((), value)]).encode()


def _of_node(usage: NodeUsage) -> Iterator[str]:
    total, free = machine.swap()
    cpu = usage.sample(usage.root).cpu
    amounts = (
        (_CPU, None if cpu is None else cpu / 10**9),
        (_MEMORY, usage.memory[1]),
        (_SWAP, total - free),
    )
    for (name, help, kind), value in amounts:
        if value is not None:
            samples = [((), value, int(usage.time * 1000))]
            yield family(f"node_{name}", help.format("node"), kind, (), samples)


def _of_pods(usage: NodeUsage, shown: _Shown, runtime_use: Sequence[RuntimeUse]) -> Iterator[bytes]:
    table, now = usage.table, int(usage.time * 1000)
    for of, labels, rows, others in (
        ("pod", shown.pods, shown.pod_rows, [each for each in runtime_use if not each.container]),
        ("container", shown.containers, shown.rows, [each for each in runtime_use if each.container]),
    ):
        cpu = [(each, *each.cpu) for each in others if each.cpu is not None]
        memory = [(each, *each.memory) for each in others if each.memory is not None]
        yield from _written(
            of, _CPU, [(labels, ColumnRows(table.column("cpu"), rows), now), *_samples(cpu)], NANO
        )
        yield from _written(
            of, _MEMORY, [(labels, ColumnRows(table.working_set, rows), now), *_samples(memory)]
        )
        yield from _written(of, _SWAP, [(labels, ColumnRows(table.column("swap"), rows), now)])
    cpu_time, memory_use, swap, most = (
        table.column(name) for name in ("cpu", "memory", "swap", "swap_limit")
    )
    limit = array(
        "q",
        [ABSENT if ABSENT in (swap[row], most[row]) else max(swap[row], most[row]) for row in shown.rows],
    )
    yield from _written("container", _SWAP_LIMIT, [(shown.containers, limit, now)])
    times = array(
        "q",
        [
            ABSENT if cpu_time[row] == memory_use[row] == ABSENT else time
            for row, time in zip(shown.rows, shown.started, strict=True)
        ],
    )
    started: list[Part] = [(shown.containers, times, None)]
    started += [
        (_labels([each]), array("q", [int(each.started * 10**MICRO)]), None)
        for each in runtime_use
        if each.started
    ]
    yield from _written("container", _START, started, MICRO)


def _samples(amounts: Iterable[tuple[RuntimeUse, int, int]]) -> Iterator[Part]:
    """Group the runtime's numbers by the second of their reading."""
    by_second: dict[int, list[tuple[RuntimeUse, int]]] = {}
    for of, value, second in amounts:
        by_second.setdefault(second, []).append((of, value))
    for second, found in by_second.items():
        yield _labels([of for of, _ in found]), array("q", [value for _, value in found]), second * 1000


def _labels(of: Iterable[RuntimeUse]) -> Texts:
    return joined([_label(each.namespace, each.pod, each.container) for each in of])


def _label(namespace: str, pod: str, container: str = "") -> bytes:
    if container:
        return labelled(("container", "namespace", "pod"), (container, namespace, pod)).encode()
    return labelled(("namespace", "pod"), (namespace, pod)).encode()


def _written(
    of: str, described: tuple[str, str, str], parts: Iterable[Part], point: int = 0
) -> Iterator[bytes]:
    name, help, kind = described
    yield head(f"{of}_{name}", help.format(of), kind).encode()
    opening = f"{of}_{name}{{".encode()
    yield from exposition(
        [
            Series(b"", opening, labels, values, point, b"" if at is None else b" %d" % at)
            for labels, values, at in parts
        ]
    )


@lru_cache(1)
def _shown(pods: tuple[UsedPod, ...]) -> _Shown:
    """Return labels and rows; kept while the pods are the same objects."""
    places = [
        (group.row, _label(pod.record.namespace, pod.record.name, name), container.started_at)
        for pod in pods
        for name, (group, container) in pod.by_name.items()
    ]
    started = [int(start * 10**MICRO) for _, _, start in places]
    return _Shown(
        joined([_label(pod.record.namespace, pod.record.name) for pod in pods]),
        array("q", [pod.group.row for pod in pods]),
        joined([label for _, label, _ in places]),
        array("q", [row for row, _, _ in places]),
        array("q", [time if time > 0 else ABSENT for time in started]),
    )
