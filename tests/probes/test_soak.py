"""600 containers with a one-second liveness probe: nobody is restarted, nothing runs out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


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
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(HERE / "soaking.py"), kind, str(containers), str(probes)],
        cwd=HERE.parents[1], env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout.splitlines()[-1])
    success, failure, warning, unknown, error = found["outcomes"]
    assert found["restarts"] == 0, found
    assert (failure, warning, unknown, error) == (0, 0, 0, 0), found
    assert success >= containers * probes
    assert found["entries"] == 0
