"""`pytest tests/conformance --vectors DIR` checks any directory of recorded answers."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

Vectors = Callable[[str], Iterator[dict[str, Any]]]


@pytest.fixture(scope="session")
def vectors(request: pytest.FixtureRequest) -> Vectors:
    """Reads the cases of one file: `for case in vectors("qos")`. A missing file fails the test."""
    directory = Path(request.config.getoption("--vectors"))

    def read(name: str) -> Iterator[dict[str, Any]]:
        with gzip.open(directory / f"{name}.jsonl.gz") as lines:
            for line in lines:
                yield msgspec.json.decode(line)

    return read
