"""Builds the native kernels; everything else about the package is in pyproject.toml.

KUBENGINE_DEBUG_BUILD=1 builds them with bounds checks and without optimisation, for the same tests.
"""

import os
import shlex
import subprocess
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

DEBUG = os.environ.get("KUBENGINE_DEBUG_BUILD") == "1"
KERNELS = Path("engine/_fast")
THREADS = "libgomp.so.1"
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": not DEBUG,
    "embedsignature": True,
    "freethreading_compatible": True,
}


class BuildKernels(build_ext):
    """Translates and compiles what has changed; a wheel brings the library that not every system has."""

    def run(self) -> None:
        super().run()
        if not self.inplace:
            command = [*shlex.split(os.environ.get("CC", "cc")), f"-print-file-name={THREADS}"]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            self.copy_file(found, str(Path(self.build_lib, KERNELS, THREADS)))

    def build_extensions(self) -> None:
        stale = {ext.name: ext for ext in self.extensions if self.is_stale(ext)}
        for translated in cythonize(list(stale.values()), compiler_directives=DIRECTIVES):
            stale[translated.name].sources = translated.sources
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        if self.is_stale(ext):
            super().build_extension(ext)

    def is_stale(self, ext: Extension) -> bool:
        return bool(self.force) or newer_group([*ext.sources, *ext.depends], self.get_ext_fullpath(ext.name))


def extension(source: Path) -> Extension:
    flags = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0", "-ffp-contract=off"]
    parallel = "cython.parallel" in source.read_text()
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=[*flags, *["-fopenmp"] * parallel, "-Wno-unused-function"],
        extra_link_args=["-fopenmp", "-Wl,-rpath,$ORIGIN"] if parallel else [],
        depends=[
            str(path)
            for room in (source.parent, KERNELS / "http2")
            for kind in ("*.h", "*.pxd")
            for path in sorted(room.glob(kind))
        ],
    )


setup(
    cmdclass={"build_ext": BuildKernels},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=[extension(source) for source in sorted(KERNELS.rglob("*.pyx"))],
)
