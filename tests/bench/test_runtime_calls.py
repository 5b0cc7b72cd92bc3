"""The bench's own calls to a runtime that is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.api.errors import Unavailable
from engine.bench import workload
from engine.bench.decisions import _unused
from engine.bench.phases import BenchSession


def test_a_runtime_that_is_gone_is_named(tmp_path: Path) -> None:
    """A full disk ends the runtime while the bench waits for pods or images."""
    endpoint = f"unix://{tmp_path}/gone"
    session = SimpleNamespace(endpoint=endpoint)
    for call in (
        lambda: workload.expect_image(endpoint),
        lambda: workload.sandboxes(endpoint),
        lambda: BenchSession.containers(session),
        lambda: BenchSession._running(session),
        lambda: _unused(session),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert raised.value.subject == endpoint
