"""Fail the n-th call to the runtime, for every n: a pod's whole life (`walked_life`) with one fault in it,
and the pods are right.

Without `KUBENGINE_EVERY_FAULT` (`make chaos`) that is each method's first call.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest

from engine.node.images import pull as image_pull
from tests.node.faults import KINDS, WHOLE
from tests.node.walked_life import LoneLife
from tests.node.walking import walk, with_call_fault


@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_call_to_the_runtime_may_fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pull, "PULL_DEADLINE_SECONDS", 20.0)
    with tempfile.TemporaryDirectory(prefix="ke-") as short:
        life = LoneLife(Path(short))
        await life.whole()
    calls = life.calls
    assert {"run_pod_sandbox", "create_container", "stop_container", "list_images"} <= calls.keys()
    await walk(
        with_call_fault(partial(LoneLife, method=method, at=at, kind=kind), f"call {at} of {method} {kind}")
        for method, count in sorted(calls.items())
        for at in range(1, (count if WHOLE else 1) + 1)
        for kind in KINDS
    )
