"""A real Prometheus with made-up use, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plan.use.made_up_use import made_up_use
from tests.plan.use.recorded import Recording, prometheus


@pytest.fixture(scope="session")
def recording() -> Recording:
    """Return what the server serves."""
    return made_up_use()


@pytest.fixture(scope="session")
def server(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the server."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), recording) as address:
        yield address
