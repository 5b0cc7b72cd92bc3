"""A manager of probes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.api.kubengine_config import ProbesSection
from tests.leaks import nothing_leaks
from tests.probes.probed_pods import Rig

__all__ = ["nothing_leaks", "rig"]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(ProbesSection())
    await rig.manager.start()
    yield rig
    await rig.manager.stop()
