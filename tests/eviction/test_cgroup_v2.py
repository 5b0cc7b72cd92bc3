"""Eviction on a real cgroup v2 kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.testing.uml import run_in_uml

pytestmark = [pytest.mark.uml, pytest.mark.slow]


def test_memory_pressure_on_v2_evicts_and_memory_events_wake_the_manager():
    seen = run_in_uml(
        f"""
        import asyncio, pathlib
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.eviction.scene_v2 import pressure_on_v2
        report(asyncio.run(pressure_on_v2(pathlib.Path(str(CGROUPS)), pathlib.Path(SCRATCH))))
        """
    )
    assert 80 <= seen["used_mib"] < 110
    assert seen["tasks"] == 2
    assert seen["ended"] == ["large", "burst"]
