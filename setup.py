"""Builds the native kernels; everything else about the package is in pyproject.toml.

KUBENGINE_DEBUG_BUILD=1 builds them with bounds checks and without optimisation, for the same tests.
"""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("KUBENGINE_DEBUG_BUILD") == "1"
KERNELS = Path("engine/_fast")


def extension(source: Path) -> Extension:
    flags = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0", "-ffp-contract=off"]
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=[*flags, "-fopenmp", "-Wno-unused-function"],
        extra_link_args=["-fopenmp"],
        depends=[str(header) for room in (source.parent, KERNELS / "http2") for header in room.glob("*.h")],
    )


setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        [extension(source) for source in sorted(KERNELS.rglob("*.pyx"))],
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "cdivision": not DEBUG,
            "embedsignature": True,
            "freethreading_compatible": True,
        },
    ),
)
