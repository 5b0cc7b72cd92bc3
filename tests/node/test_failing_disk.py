"""Each step of replacing a file fails once, wherever in a pod's life: the pod is right all the same."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from engine.host import files
from tests.node_bench import Bench, container
from tests.waiting import eventually

FAULTS = {"open": errno.EMFILE, "fsync": errno.EIO, "rename": errno.ENOSPC}


class FailingOs:
    """`os` for the file writer: `call` fails the `at`-th time, and only then."""

    def __init__(self, call: str, at: int) -> None:
        self._call, self._left = call, at
        self.failed = False

    def __getattr__(self, name: str) -> object:
        return self._sometimes if name == self._call else getattr(os, name)

    def _sometimes(self, *arguments: Any, **named: Any) -> object:
        self._left -= 1
        if self._left == 0:
            self.failed = True
            raise OSError(FAULTS[self._call], os.strerror(FAULTS[self._call]))
        call: Callable[..., object] = getattr(os, self._call)
        return call(*arguments, **named)


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize("call", FAULTS)
async def test_a_pod_lives_through_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str, at: int
) -> None:
    monkeypatch.setattr(files, "os", FailingOs(call, at))
    bench.write("a", {"containers": [container()]})
    await bench.start()

    def runs() -> bool:
        return bench.phase("a") == "Running"

    await eventually(runs)
    await bench.restart()
    await eventually(runs)
    node = bench.node
    assert node is not None
    assert not [error for _, error in node.healthz() if error]
    (bench.manifests / "a.yaml").unlink()

    def gone() -> bool:
        return not node.pods()

    await eventually(gone)
    assert not list(bench.root.rglob(".*.new"))
