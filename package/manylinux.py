"""Rename wheels for the oldest system that they run on: `manylinux.py WHEEL...`.

By PEP 600, the name promises that the libraries in a wheel need only the C library of that version, and a few
libraries that come with it; by PEP 656, the same of musl. binutils' readelf reads their needs. auditwheel,
which also checks the processor that a library needs, has to give the same name. Of musl it knows only the
file name on Alpine, where others name it `libc.so`; musl's loader takes both.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SYSTEM = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1",
    "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}  # fmt: skip
MUSL = "libc.so"
MUSL_VERSION = (1, 2)
"""musl's symbols have no versions. All 1.2 releases have the types of today, such as a time of 64 bits."""


def needs(wheel: Path) -> tuple[tuple[int, int], set[str]]:
    """Return the version of glibc that a wheel needs, and the libraries that some systems with it lack."""
    version, libraries, own = (2, 17), set[str](), set[str]()
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as directory:
        for name in archive.namelist():
            if ".so" not in Path(name).suffixes:
                continue
            own.add(Path(name).name)
            text = _readelf(archive.extract(name, directory))
            libraries |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
            versions = re.findall(r"GLIBC_(\d+)\.(\d+)", text)
            version = max([version, *((int(major), int(minor)) for major, minor in versions)])
    return version, libraries - own - SYSTEM


def platform_tag(wheel: Path) -> str:
    """Return the wheel's platform. Raise SystemExit naming libraries that other systems lack."""
    version, foreign = needs(wheel)
    kind = "manylinux"
    if MUSL in foreign:
        kind, version, foreign = "musllinux", MUSL_VERSION, foreign - {MUSL}
    if foreign:
        raise SystemExit(f"{wheel}: needs {', '.join(sorted(foreign))}, which not every system has")
    machine = wheel.stem.rsplit("-", 1)[-1].partition("_")[2]
    return f"{kind}_{version[0]}_{version[1]}_{machine}"


def audited_tag(wheel: Path) -> str:
    """Return the platform that auditwheel gives."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    tag: str = json.loads(shown)["overall_tag"]
    return tag


def rename(wheel: Path) -> Path:
    """Rename a wheel and return its path. Raise SystemExit if auditwheel gives a different platform."""
    tag = platform_tag(wheel)
    if tag.startswith("manylinux") and (audited := audited_tag(wheel)) != tag:
        raise SystemExit(f"{wheel}: for {tag} by what it needs, but auditwheel gives {audited}")
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)]
    named = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return wheel.with_name(named)


def _readelf(library: str) -> str:
    command = ["readelf", "--wide", "--dynamic", "--version-info", library]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(rename(Path(argument)))
