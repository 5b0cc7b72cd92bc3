"""The kernels built with bounds checks pass the kernels' own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kernels_pass_with_bounds_checks(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "build")
    for name in ("engine", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    environment = {**os.environ, "KUBENGINE_DEBUG_BUILD": "1", "PYTHONPATH": str(tmp_path)}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j", "2"]
    subprocess.run(build, cwd=tmp_path, env=environment, check=True)
    where = [sys.executable, "-c", "from engine._fast.devices import _bitset_c as k; print(k.__file__)"]
    loaded = subprocess.run(where, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert loaded.stdout.startswith(str(tmp_path)), "the copy's kernels must be the ones under test"
    about = [
        str(path) for path in (tmp_path / "tests").rglob("test_*.py") if "engine._fast" in path.read_text()
    ]
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *about]
    run = subprocess.run(tests, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
