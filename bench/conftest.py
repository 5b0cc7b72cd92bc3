"""Group benchmarks by package, and report the machine and the kubelet's figures with them."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

BANDWIDTH_BYTES = 256 << 20


def memory_bandwidth() -> float:
    """Return the GB/s that one core reads and writes.

    It is the best of five copies of an array that is larger than any cache.
    """
    source = np.ones(BANDWIDTH_BYTES // 8)
    target = np.empty_like(source)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return 2 * BANDWIDTH_BYTES / best / 1e9


@pytest.fixture(scope="session")
def bandwidth() -> float:
    """Return `memory_bandwidth()` of this run, for kernels that report how many bytes they touch."""
    return memory_bandwidth()


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["memory_bandwidth_gb_per_s"] = round(memory_bandwidth(), 1)
    machine_info["load_average"] = os.getloadavg()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("benchmark") is None:
            room = item.path.stem.removeprefix("bench_")
            item.add_marker(pytest.mark.benchmark(group=room))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    if session is None or not session.benchmarks:
        return
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    terminalreporter.write_line(
        f"memory: {memory_bandwidth():.1f} GB/s copied by one core; "
        f"load average {load} on {os.cpu_count()} cores; "
        "the kubelet's figures for the same work are in bench/README.md"
    )
