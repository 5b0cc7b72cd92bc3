"""Measure what statistics cost an agent: a scrape of each page, and the time between two scrapes.

The pages are those that Prometheus and a metrics-server read, requested from the read-only port.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from engine.api.errors import Unavailable
from engine.bench.parts import http_get
from engine.bench.phases import BenchSession, Figures
from engine.bench.procfs import usage

PAGES: Final = {
    "cadvisor": "/metrics/cadvisor",
    "summary": "/stats/summary",
    "resource": "/metrics/resource",
}
PAUSE_SECONDS: Final = 2.0
"""Longer than an agent shares one reading between clients."""
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Scrape:
    cpu: float
    wall: float
    size: int


def scraping(session: BenchSession) -> Figures:
    """Scrape one page after another, with a pause before each. The cost of a scrape includes the agent's
    other work while the page was generated.
    """
    for path in PAGES.values():
        _scrape(session, path)  # the first scrape's one-time work does not count
    session.watch(PAUSE_SECONDS)
    pid = session.running.part.pid
    scrapes: dict[str, list[_Scrape]] = {name: [] for name in PAGES}
    began, cpu = time.monotonic(), usage(pid).cpu
    while time.monotonic() - began < session.seconds or not all(scrapes.values()):
        for name, path in PAGES.items():
            session.watch(PAUSE_SECONDS)
            scrapes[name].append(_scrape(session, path))
    session.watch(PAUSE_SECONDS)
    wall, cpu = time.monotonic() - began, usage(pid).cpu - cpu
    every = [each for of_page in scrapes.values() for each in of_page]
    between = cpu - sum(each.cpu for each in every)
    figures: Figures = {"between_cpu_ms_per_s": between / (wall - sum(each.wall for each in every)) * 1e3}
    for name, of_page in scrapes.items():
        figures[f"{name}_cpu_ms"] = median(each.cpu for each in of_page) * 1e3
        figures[f"{name}_wall_ms"] = median(each.wall for each in of_page) * 1e3
        figures[f"{name}_kb"] = median(each.size for each in of_page) / 1e3
    return figures


def _scrape(session: BenchSession, path: str) -> _Scrape:
    agent = session.running
    cpu, began = usage(agent.part.pid).cpu, time.monotonic()
    try:
        status, body = http_get(agent.workspace.ports["read_only"], path, timeout=_PATIENCE_SECONDS)
    except OSError as error:
        agent.part.check()
        raise Unavailable(f"{path} is not answered: {error}", subject=agent.kind.label) from None
    if status != 200:
        raise Unavailable(f"{path} answers {status}: {body[:200]!r}", subject=agent.kind.label)
    wall = time.monotonic() - began
    return _Scrape(usage(agent.part.pid).cpu - cpu, wall, len(body))
