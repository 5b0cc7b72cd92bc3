"""A manager of probes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.api.kubengine_config import ProbesSection
from tests.leaks import nothing_leaks
from tests.probes.probed_pods import Bench

__all__ = ["bench", "nothing_leaks"]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(ProbesSection())
    await bench.manager.start()
    yield bench
    await bench.manager.stop()
