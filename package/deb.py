"""Builds the Debian package: `deb.py WHEEL DIRECTORY` writes DIRECTORY/kubengine_VERSION_ARCHITECTURE.deb.

Debian has none of the libraries in the versions that are needed, so the package brings those that it was
tried with: an environment in /usr/lib/kubengine for the distribution's Python, compiled beforehand.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import man
import manylinux

from engine.api.version import engine_version

HERE = Path(__file__).parent
HOME = Path("usr/lib/kubengine")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/kubengine",
    "zsh": "usr/share/zsh/vendor-completions/_kubengine",
    "fish": "usr/share/fish/vendor_completions.d/kubengine.fish",
}
COMMAND = f"""#!/{HOME}/bin/python3 -I
from engine.cli import main

main()
"""


def build(wheel: Path, directory: Path) -> Path:
    """The package of `wheel` and of what it requires."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "kubengine")
        environment(tree, wheel)
        put(tree / "usr/bin/kubengine", COMMAND, 0o755)
        put(tree / "lib/systemd/system/kubengine.service", (HERE / "kubengine.service").read_text())
        put(tree / "etc/kubengine/config.yaml", (HERE.parent / "examples/containerd-config.yaml").read_text())
        put(tree / "etc/default/kubengine", (HERE / "debian/default").read_text())
        put(tree / "usr/share/doc/kubengine/copyright", (HERE / "debian/copyright").read_text())
        for file in (HERE / "monitoring").iterdir():
            put(tree / "usr/share/kubengine/monitoring" / file.name, file.read_text())
        for page, text in man.pages():
            path = tree / f"usr/share/man/man1/{page}.1.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        for shell, target in COMPLETIONS.items():
            put(tree / target, run(sys.executable, "-m", "engine.cli", "completion", shell))
        control(tree, wheel)
        directory.mkdir(parents=True, exist_ok=True)
        architecture = run("dpkg", "--print-architecture").strip()
        package = directory / f"kubengine_{engine_version()}_{architecture}.deb"
        run("dpkg-deb", "--build", "--root-owner-group", "-Zzstd", "-z3", str(tree), str(package))
        return package


def environment(tree: Path, wheel: Path) -> None:
    """Like a virtual environment, but with files that no build directory is named in."""
    home = tree / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to(f"/usr/bin/{PYTHON}")
    put(home / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    packages = home / f"lib/{PYTHON}/site-packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--no-index"]
    run(*pip, "--target", str(packages), str(wheel))
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for distribution in requirements(wheel):
        for file in distribution.files or ():
            if not {"..", "__pycache__", "tests"} & set(file.parts):
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    compile_ahead = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    run(*compile_ahead, "-s", str(tree), "-p", "/", str(packages))


def requirements(wheel: Path) -> list[Distribution]:
    """Every distribution that `wheel` requires without its extras, directly or not, as installed here."""
    (metadata,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    found: dict[str, Distribution] = {}
    waiting: list[Distribution] = [PathDistribution(metadata)]
    while waiting:
        for line in waiting.pop().requires or ():
            requirement, _, marker = line.partition(";")
            named = re.match(r"[\w.-]+", requirement)
            if named is not None and not marker and named[0] not in found:
                found[named[0]] = Distribution.from_name(named[0])
                waiting.append(found[named[0]])
    return list(found.values())


def control(tree: Path, wheel: Path) -> None:
    """What dpkg is told: the relations to other packages, configuration files and scripts."""
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    (major, minor), _ = manylinux.needs(wheel)
    values = {
        "version": engine_version(),
        "architecture": run("dpkg", "--print-architecture").strip(),
        "size": size,
        "python": PYTHON,
        "libc": f"{major}.{minor}",
    }
    put(tree / "DEBIAN/control", (HERE / "debian/control").read_text().format(**values))
    kept = sorted(path.relative_to(tree) for path in (tree / "etc").rglob("*") if path.is_file())
    put(tree / "DEBIAN/conffiles", "".join(f"/{path}\n" for path in kept))
    for script in ("postinst", "prerm", "postrm"):
        put(tree / "DEBIAN" / script, (HERE / "debian" / script).read_text(), 0o755)


def put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]), Path(sys.argv[2]))}\n")
