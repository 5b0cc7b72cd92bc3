"""Kernels are rebuilt when a file that they use changes, and pass their tests with bounds checks."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy
import pytest
import setuptools

ROOT = Path(__file__).parents[2]
IMPORTED = re.compile(r"^ *(?:from|import) engine\._fast", re.MULTILINE)


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
        str(path) for path in (tmp_path / "tests").rglob("test_*.py") if IMPORTED.search(path.read_text())
    ]
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *about]
    run = subprocess.run(tests, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]


def test_a_header_rebuilds_the_kernels_that_include_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers that `setup.py` finds by reading sources are those that the compiler opens."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    include = [f"-I{sysconfig.get_path('include')}", f"-I{numpy.get_include()}"]
    compared = 0
    for kernel in given["ext_modules"]:
        source = Path(kernel.sources[0]).with_suffix(".c")
        if source.exists() and "_cyutility" not in kernel.name:
            command = [*shlex.split(os.environ.get("CC", "cc")), "-MM", *include, str(source)]
            rule = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            opened = {os.path.normpath(path) for path in rule.replace("\\\n", " ").split()[1:]}
            ours = {path for path in opened if path.startswith("engine/") and path.endswith(".h")}
            assert ours == {path for path in kernel.depends if path.endswith(".h")}, kernel.name
            compared += 1
    if not compared:
        pytest.skip("the kernels' C is not in the source tree")
