"""`pytest tests/conformance --vectors DIR --vectors-1.36 DIR` checks any directories of recorded answers."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

Vectors = Callable[[str], Iterator[dict[str, Any]]]


def reader(directory: Path) -> Vectors:
    def read(name: str) -> Iterator[dict[str, Any]]:
        with gzip.open(directory / f"{name}.jsonl.gz") as lines:
            for line in lines:
                yield msgspec.json.decode(line)

    return read


@pytest.fixture(scope="session")
def vectors(request: pytest.FixtureRequest) -> Vectors:
    """Return a function that yields the v1.32 cases of a file: `for case in vectors("qos")`.

    A missing file fails the test.
    """
    return reader(Path(request.config.getoption("--vectors")))


@pytest.fixture(scope="session")
def answers(request: pytest.FixtureRequest) -> Vectors:
    """Return the same function for v1.36; a case has `in` and `out`."""
    return reader(Path(request.config.getoption("--vectors-1.36")))
