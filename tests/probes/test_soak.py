"""600 containers with a one-second liveness probe: no restart, and no resource runs out. On a saturated node
neither: `KUBENGINE_SATURATED_PROBES=2500` containers answer within the second, for a minute, while the agent
has to share the processors with burners."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WHOLE = "KUBENGINE_SATURATED_PROBES" in os.environ
SATURATED = int(os.environ.get("KUBENGINE_SATURATED_PROBES", "100"))
EACH = 60 if WHOLE else 3
BURNERS_PER_PROCESSOR = 2

log = logging.getLogger(__name__)


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "containers", "probes"),
    [
        *(pytest.param(kind, 600, 20, marks=pytest.mark.slow) for kind in ("http", "tcp", "grpc")),
        ("http", 50, 3),
        ("exec", 50, 3),
    ],
)
def test_no_restarts(kind, containers, probes):
    found = soak(kind, containers, probes)
    success, failure, warning, unknown, error = found["outcomes"]
    assert found["restarts"] == 0, found
    assert (failure, warning, unknown, error) == (0, 0, 0, 0), found
    assert success >= containers * probes
    assert found["entries"] == 0


@pytest.mark.root
@pytest.mark.parametrize("kind", ["http", "tcp", "grpc"] if WHOLE else ["http"])
def test_no_false_kills_while_the_processors_are_saturated(kind):
    """A late answer of the node is not a failure of the probe; the time-out is the default."""
    found = soak(kind, SATURATED, EACH, BURNERS_PER_PROCESSOR * len(os.sched_getaffinity(0)))
    log.info("%d %s probes a second at saturated processors: %s", SATURATED, kind, found)
    assert found["restarts"] == 0, found
    assert sum(found["outcomes"]) >= SATURATED * EACH


def soak(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(HERE / "soaking.py"), *map(str, arguments)],
        cwd=HERE.parents[1], env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True, check=False, timeout=3600 if WHOLE else 600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
