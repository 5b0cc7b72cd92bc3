"""Build wheels for musl, the C library of Alpine Linux: `musl.py SDIST DIRECTORY`, for the running Python.

Zig's C compiler, which PyPI distributes, has the headers and libraries of musl for each processor. The wheels
are for x86-64 and arm64. They use one thread, as GCC's thread library needs the C library of its system.
The headers of the running Python serve: their types and sizes are those of every 64-bit Linux.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import manylinux
from arm64 import unpack

MACHINES = ("x86_64", "aarch64")
BACKEND = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"


def build(sdist: Path, directory: Path, machine: str) -> Path:
    """Build the wheel for one machine and return its path. Raise SystemExit if it needs other libraries."""
    print(f"compiling for musl on {machine}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        tree = unpack(sdist, Path(place, "tree"))
        compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-musl"
        environment = {
            "_PYTHON_SYSCONFIGDATA_NAME": write_sysconfig_data(Path(place), machine),
            "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
            "PYTHONPATH": place,
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared -s",
        }
        command = [sys.executable, "-c", BACKEND, place]
        subprocess.run(command, check=True, cwd=tree, env=os.environ | environment)
        (built,) = Path(place).glob("*.whl")
        wheel = built.replace(directory / built.name)
    return manylinux.rename(wheel)


def write_sysconfig_data(directory: Path, machine: str) -> str:
    """Write the module that `sysconfig` reads about a Python with musl, and return its name."""
    running: str = sysconfig._get_sysconfigdata_name()  # type: ignore[attr-defined]
    values = dict(importlib.import_module(running).build_time_vars)
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}-{machine}-linux-musl"
    values |= {"SOABI": tag, "EXT_SUFFIX": f".{tag}.so", "MULTIARCH": f"{machine}-linux-musl"}
    name = f"_sysconfigdata__{machine}-linux-musl"
    (directory / f"{name}.py").write_text(f"build_time_vars = {values!r}\n")
    return name


if __name__ == "__main__":
    for each in MACHINES:
        print(build(Path(sys.argv[1]), Path(sys.argv[2]), each))
