"""Build a wheel for arm64 on another machine: `arm64.py SDIST DIRECTORY`, for the running Python version.

GCC for arm64 compiles the kernels with the headers of Debian's Python for arm64. The files of Debian and PyPI
for arm64 are unpacked in build/arm64; no package of the machine itself changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

PLACE = Path("build/arm64").absolute()
ROOT = PLACE / "root"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SUITE, SUITE_PYTHON = "bookworm", "python3.11"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
COMPILER = "aarch64-linux-gnu-gcc"


def debian_root() -> None:
    """Unpack Debian's Python for arm64, its headers and libraries, with a private state of apt."""
    if (ROOT / "usr/bin" / PYTHON).exists():
        return
    if PYTHON != SUITE_PYTHON:
        raise SystemExit(f"Debian {SUITE} has {SUITE_PYTHON} for arm64, no {PYTHON}")
    print(f"fetching {PYTHON} for arm64 from Debian", flush=True)
    apt = PLACE / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc/sources.list.d", "etc/preferences.d"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "state/status").touch()
    sources = f"deb [signed-by={KEYS}] http://deb.debian.org/debian {SUITE} main\n"
    (apt / "etc/sources.list").write_text(sources)
    options = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state/status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc": apt / "etc",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run([*command, "update"])
    run(
        [
            *command,
            "install",
            "-y",
            "--download-only",
            PYTHON,
            f"lib{PYTHON}-dev",
            "libc6-dev",
            "libgomp1",
            "libstdc++6",
        ]
    )
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "--extract", str(package), str(ROOT)])


def build(sdist: Path, directory: Path) -> None:
    """Build the wheel. The build backend reads the target from the `sysconfig` of the target's Python."""
    debian_root()
    tree = unpack(sdist, PLACE / "tree")
    facts = "_sysconfigdata__aarch64-linux-gnu"
    named = PLACE / "facts" / f"{facts}.py"
    named.parent.mkdir(exist_ok=True)
    shutil.copyfile(ROOT / "usr/lib" / PYTHON / named.name, named)
    compiler = f"{COMPILER} --sysroot={ROOT}"
    print("compiling for arm64", flush=True)
    environment = {
        "_PYTHON_SYSCONFIGDATA_NAME": facts,
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "PYTHONPATH": str(named.parent),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "CFLAGS": f"-I{ROOT}/usr/include/{PYTHON}",
    }
    backend = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", backend, str(directory.absolute())]
    run(command, cwd=tree, env=os.environ | environment)


def install(requirements: Sequence[str], site: Path) -> None:
    """Install arm64 wheels of `requirements` and their dependencies into a directory."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    version = f"--python-version={sys.version_info.major}.{sys.version_info.minor}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), "--only-binary=:all:"]
    run([*pip, "--platform=manylinux2014_aarch64", *platforms, version, *requirements])


def python() -> list[str]:
    """Return the command that runs Debian's Python for arm64 under qemu."""
    debian_root()
    return ["qemu-aarch64-static", "-L", str(ROOT), str(ROOT / "usr/bin" / PYTHON)]


def unpack(sdist: Path, directory: Path) -> Path:
    """Unpack a source archive and return the path of its tree."""
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


def run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, env=env)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
