"""Clusters that plan tests share; nothing here changes them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli import main
from engine.plan import Snapshot, synthesize, write_snapshot


@pytest.fixture(scope="session")
def cluster() -> Snapshot:
    return synthesize(24, 40, seed=7)


@pytest.fixture(scope="session")
def cluster_file(cluster: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "cluster.kes"
    write_snapshot(cluster, path)
    return path


@dataclass
class Done:
    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def run_plan(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Done]:
    """Return a function that runs `kubengine plan` in this process, as the console script does."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["kubengine", "plan", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfdbinary.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run
