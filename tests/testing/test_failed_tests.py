"""A test that fails with a gRPC server running ends alone: its worker goes on with the next test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILING = """
import gc

import pytest

from engine.testing.csi_driver import SampleCsiDriver
from tests.leaks import nothing_leaks

__all__ = ["nothing_leaks"]


async def test_fails(tmp_path):
    driver = SampleCsiDriver(tmp_path / "d", tmp_path / "r")
    await driver.start()
    raise AssertionError("as wanted")


@pytest.mark.filterwarnings("ignore")
def test_goes_on():
    gc.collect()


async def test_serves_again(tmp_path):
    driver = SampleCsiDriver(tmp_path / "d", tmp_path / "r")
    await driver.start()
    await driver.stop()
"""


def test_a_failed_test_with_a_server_does_not_hang_its_worker(tmp_path: Path) -> None:
    """gRPC waits for its servers when its last object is collected, and the check for leaks waits for
    descriptors to be closed: neither may happen for a server whose test did not reach its end.
    """
    path = tmp_path / "test_failing.py"
    path.write_text(FAILING)
    options = [
        "-c",
        "pyproject.toml",
        "--rootdir",
        str(tmp_path),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout
