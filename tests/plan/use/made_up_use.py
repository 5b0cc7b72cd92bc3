"""Use that is made up for readers of history: what it is, and how it is read from a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.plan import FaultLog
from engine.plan.history.collect import Collector, aligned
from engine.plan.history.history import History
from engine.plan.history.prometheus import Prometheus, ServerAccess
from tests.plan.use import recorded
from tests.plan.use.recorded import MEMORY, SCRAPE, Recording

END = 1_767_225_600
HOURS = 6
STEP = 300
TIMES = aligned(END, HOURS / 24, STEP)
SCRAPED = range(TIMES.start - STEP, END + 1, SCRAPE)
MI = 1 << 20

needs_prometheus = pytest.mark.skipif(bool(recorded.MISSING), reason=f"needs {', '.join(recorded.MISSING)}")


def read(history: History, pod: str, measure: str, container: str = "app") -> np.ndarray:
    """Return the values of one series."""
    namespace, _, name = pod.rpartition("/")
    index = history.index.to_pylist()
    wanted = {"measure": measure, "node": "", "namespace": namespace, "pod": name, "container": container}
    return history.values(np.array([index.index(wanted)]))[0]


def made_up_use() -> Recording:
    """Return containers: a plain one that is killed once, one with a gap of two hours, one of two jobs."""
    made = Recording()
    count = len(SCRAPED)
    ramp = [100 * MI + number * 1024 for number in range(count)]
    made.container("shop/plain-0", "app", SCRAPED, ramp, [0.25] * count, node="n1", image="a")
    kept = [at for at in SCRAPED if not END - 4 * 3600 < at <= END - 2 * 3600]
    made.container("shop/gap-0", "app", kept, [50 * MI] * len(kept), [0.1] * len(kept), node="n1")
    made.container("shop/twice-0", "app", SCRAPED, [10 * MI] * count, [0.5] * count, node="n1", job="a")
    made.container("shop/twice-0", "app", SCRAPED, [20 * MI] * count, [0.5] * count, node="n1", job="b")
    made.container("shop/plain-0", "POD", SCRAPED, [MI] * count, [0.0] * count, node="n1")
    made.add("container_oom_events_total", {"namespace": "shop", "pod": "plain-0", "container": "app"},
             [(at, float(at > END - 3600)) for at in SCRAPED])  # fmt: skip
    made.node("n1", SCRAPED, [4 * 1024 * MI] * count)
    for path, amount in (("/system.slice", MI), ("/kubepods.slice", 2 * MI), ("/system.slice/ssh", 1.0)):
        made.add(MEMORY, {"id": path, "node": "n1"}, [(at, amount) for at in SCRAPED])
    return made


def collected(
    address: str, faults: FaultLog, *, headers: dict[str, str] | None = None, **options: Any
) -> History:
    """Return the history of a server, without waiting between attempts."""
    access = ServerAccess(address, headers=headers or {})
    server = Prometheus(access, timeout=60, sleep=lambda seconds: None)
    return Collector(server, TIMES, faults, **options).collect()


def by_series(history: History) -> dict[tuple[str, str], np.ndarray]:
    """Return the values of each series by measure and pod."""
    rows = history.index.to_pylist()
    values = history.values(np.arange(len(history)))
    return {(row["measure"], row["pod"]): one for row, one in zip(rows, values, strict=True)}


def assert_same_values(
    first: dict[tuple[str, str], np.ndarray], other: dict[tuple[str, str], np.ndarray]
) -> None:
    """Check that two servers gave the same values (`by_series`) of the same use."""
    assert first.keys() == other.keys()
    for key, values in first.items():
        both = ~np.isnan(values) & ~np.isnan(other[key])
        assert np.array_equal(values[both], other[key][both])
        # Whether a sample exactly at the beginning of a window belongs to it is not the same for both.
        assert len(values) - int(both.sum()) <= int(np.isnan(values).sum()) + 1


def said(faults: FaultLog, text: str) -> set[str]:
    """Return the objects about which there is a fault with this text."""
    return {line.split(": ")[1] for line in map(str, faults.kept) if text in line}
