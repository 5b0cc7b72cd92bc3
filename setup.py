"""Build the native kernels; pyproject.toml has everything else about the package.

KUBENGINE_DEBUG_BUILD=1 builds them with bounds checks and without optimization, for the same tests.
Archives of the same files have the same bytes, at any time and in any place: the times in them are
SOURCE_DATE_EPOCH, or 1980 without it, and their members are in order.
"""

import gzip
import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.modified import newer_group

EPOCH = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800"))
DEBUG = os.environ.get("KUBENGINE_DEBUG_BUILD") == "1"
KERNELS = Path("engine/_fast")
SHARED = "engine._fast._cyutility"
"""Code that Cython would otherwise compile into each kernel that takes arrays: two thirds of the kernel."""
THREADS = "libgomp.so.1"
MUSL = str(sysconfig.get_config_var("SOABI")).endswith("-musl")
"""Whether the kernels are for musl. They use one thread then: compilers for musl that are well kept on other
systems have no OpenMP library."""
FLAGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0", "-ffp-contract=off"]
INCLUDED = re.compile(r'^\s*(?:#include|cdef extern from) "([^"]+)"', re.MULTILINE)
CIMPORTED = re.compile(r"^from (engine[\w.]*) cimport", re.MULTILINE)
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
    """Translate and compile the kernels that changed.

    A wheel with kernels that use threads also gets GCC's OpenMP library, which not every system has.
    """

    def run(self) -> None:
        super().run()
        if not self.inplace and not MUSL:
            command = [*shlex.split(os.environ.get("CC", "cc")), f"-print-file-name={THREADS}"]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            self.copy_file(found, str(Path(self.build_lib, KERNELS, THREADS)))

    def build_extensions(self) -> None:
        stale = {ext.name: ext for ext in self.extensions if self.is_stale(ext)}
        if stale:
            sys.stderr.write(f"compiling {len(stale)} kernels\n")
        if stale.pop(SHARED, None):
            write_shared_code()
        for translated in cythonize(
            list(stale.values()),
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=SHARED,
            nthreads=os.cpu_count() or 1,
            quiet=True,
        ):
            stale[translated.name].sources = translated.sources
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        if self.is_stale(ext):
            super().build_extension(ext)

    def is_stale(self, ext: Extension) -> bool:
        # An editable installation builds in a temporary directory; what it uses is in the source tree.
        target = self.get_ext_filename(ext.name) if self.editable_mode else self.get_ext_fullpath(ext.name)
        # A kernel that has been translated has its C as a source, which does not exist before.
        sources = [source for source in ext.sources if Path(source).exists()]
        return bool(self.force) or newer_group([*sources, *ext.depends], target)

    def copy_extensions_to_source(self) -> None:
        every = self.extensions
        built = Path(self.build_lib)
        self.extensions = [ext for ext in every if (built / self.get_ext_filename(ext.name)).exists()]
        super().copy_extensions_to_source()
        self.extensions = every


class SourceArchive(sdist):
    """Write the members, which are in order, without the builder's name, modes and times."""

    def make_archive(self, *arguments: object, **options: object) -> str:
        path = super().make_archive(*arguments, **options)
        content = io.BytesIO()
        with tarfile.open(path) as read, tarfile.open(fileobj=content, mode="w") as written:
            for member in read.getmembers():
                member.mtime, member.uid, member.gid, member.uname, member.gname = EPOCH, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                written.addfile(member, read.extractfile(member) if member.isfile() else None)
        with Path(path).open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=EPOCH) as packed:
            packed.write(content.getvalue())
        return path


def headers(source: Path) -> set[Path]:
    """Return the headers and .pxd files of this project that a source includes, directly or through others.

    A change of one header then rebuilds only the kernels that use it.
    """
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        path = waiting.pop()
        text = path.read_text()
        included = [path.parent / name for name in INCLUDED.findall(text)]
        included += [Path(*name.split(".")).with_suffix(".pxd") for name in CIMPORTED.findall(text)]
        for other in included:
            other = Path(os.path.normpath(other))
            if other not in found and other.is_file():
                found.add(other)
                waiting.append(other)
    return found


def write_shared_code() -> None:
    directives = [f"-X{name}={DIRECTIVES[name]}" for name in ("language_level", "freethreading_compatible")]
    command = [
        sys.executable,
        "-m",
        "cython",
        *directives,
        "--generate-shared",
        str(KERNELS / "_cyutility.c"),
    ]
    subprocess.run(command, check=True)


def shared_code() -> Extension:
    source = KERNELS / "_cyutility.c"
    return Extension(SHARED, [str(source)], extra_compile_args=FLAGS, depends=["setup.py"])


def extension(source: Path) -> Extension:
    parallel = "cython.parallel" in source.read_text() and not MUSL
    # The OpenMP library of the wheel, relative to the kernel's directory.
    library = "/".join(["$ORIGIN", *[".."] * (len(source.parent.parts) - len(KERNELS.parts))])
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=[
            *FLAGS,
            *["-fopenmp"] * parallel,
            "-Wno-unused-function",
            "-Wno-discarded-qualifiers",
        ],
        extra_link_args=["-fopenmp", f"-Wl,-rpath,{library}"] if parallel else [],
        depends=sorted(map(str, headers(source))),
    )


setup(
    cmdclass={"build_ext": BuildKernels, "sdist": SourceArchive},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=[shared_code(), *(extension(source) for source in sorted(KERNELS.rglob("*.pyx")))],
)
