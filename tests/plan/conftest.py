"""Clusters that plan tests share; nothing here changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.plan import Snapshot, synthesize, write_snapshot


@pytest.fixture(scope="session")
def cluster() -> Snapshot:
    return synthesize(24, 40, seed=7)


@pytest.fixture(scope="session")
def cluster_file(cluster: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "cluster.kes"
    write_snapshot(cluster, path)
    return path
