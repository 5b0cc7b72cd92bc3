"""Build the Debian packages: `deb.py WHEEL DIRECTORY` writes DIRECTORY/kubengine_VERSION_ARCHITECTURE.deb
and kubengine-plan, which has Apache Arrow: only the planner needs it, and it is as large as the rest.

Debian does not have the required versions of the libraries. So the packages contain the libraries that they
were tested with, as an environment in /usr/lib/kubengine for the distribution's Python, compiled beforehand.
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
from pathlib import Path, PurePath

import man
import manylinux

from engine.api.version import engine_version

HERE = Path(__file__).parent
HOME = Path("usr/lib/kubengine")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = HOME / f"lib/{PYTHON}/site-packages"
PLAN = "plan"
PLANNERS = "pyarrow"
FOR_COMPILERS = {".a", ".c", ".cc", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx"}
FOR_LINKERS = ("pyarrow/lib[!.]*.so", "pyarrow/lib*.so.*.*")
NOT_USED = ("pyarrow/*flight*", "pyarrow/*s3*")
"""Parts of pyarrow that no plan needs; pyarrow works without them."""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/kubengine",
    "zsh": "usr/share/zsh/vendor-completions/_kubengine",
    "fish": "usr/share/fish/vendor_completions.d/kubengine.fish",
}
COMMAND = f"""#!/{HOME}/bin/python3 -I
from engine.cli import main

main()
"""

KUBELET = f"""#!/{HOME}/bin/python3 -I
import sys

from engine.cli import main

sys.argv[1:1] = ["kubelet"]
main()
"""
"""An alternative for /usr/bin/kubelet: kubeadm and its unit start the agent by that name."""


def build(wheel: Path, directory: Path) -> list[Path]:
    """Build the packages of the node and of the planner."""
    with tempfile.TemporaryDirectory() as name:
        node, planner = Path(name, "kubengine"), Path(name, "kubengine-plan")
        environment(node, wheel)
        libraries(node, planner, wheel)
        put(node / "usr/bin/kubengine", COMMAND, 0o755)
        put(node / HOME / "bin/kubelet", KUBELET, 0o755)
        put(node / "lib/systemd/system/kubengine.service", (HERE / "kubengine.service").read_text())
        put(node / "etc/kubengine/config.yaml", (HERE.parent / "examples/containerd-config.yaml").read_text())
        put(node / "etc/default/kubengine", (HERE / "debian/default").read_text())
        for file in (HERE / "monitoring").iterdir():
            put(node / "usr/share/kubengine/monitoring" / file.name, file.read_text())
        for page, text in man.pages():
            path = node / f"usr/share/man/man1/{page}.1.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        for shell, target in COMPLETIONS.items():
            put(node / target, run(sys.executable, "-m", "engine.cli", "completion", shell))
        for script in ("postinst", "prerm", "postrm"):
            put(node / "DEBIAN" / script, (HERE / "debian" / script).read_text(), 0o755)
        kept = sorted(path.relative_to(node) for path in (node / "etc").rglob("*") if path.is_file())
        put(node / "DEBIAN/conffiles", "".join(f"/{path}\n" for path in kept))
        directory.mkdir(parents=True, exist_ok=True)
        return [package(tree, wheel, directory) for tree in (node, planner)]


def environment(tree: Path, wheel: Path) -> None:
    """Write an environment like a virtual one, without the name of a build directory in any file."""
    home = tree / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to(f"/usr/bin/{PYTHON}")
    put(home / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "--no-index"]
    run(*pip, "--target", str(tree / SITE), str(wheel))
    shutil.rmtree(tree / SITE / "bin", ignore_errors=True)


def libraries(node: Path, planner: Path, wheel: Path) -> None:
    """Copy each required distribution into the tree of its package, and compile all modules."""
    for distribution in requirements(wheel, PLAN):
        tree = planner if distribution.name == PLANNERS else node
        for file in filter(is_run, distribution.files or ()):
            target = tree / SITE / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), target)
    compile_ahead = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    for tree in (node, planner):
        run(*compile_ahead, "-s", str(tree), "-p", "/", str(tree / SITE))


def is_run(file: PurePath) -> bool:
    """Tell whether a file of a library is needed to run it, not only to test it or to compile with it."""
    return (
        not {"..", "__pycache__", "tests"} & set(file.parts)
        and file.suffix not in FOR_COMPILERS
        and not any(file.match(pattern) for pattern in (*FOR_LINKERS, *NOT_USED))
    )


def requirements(wheel: Path, extra: str = "") -> list[Distribution]:
    """Return the installed distributions that `wheel` requires, directly or not, with those of one extra."""
    (metadata,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    found: dict[str, Distribution] = {}
    waiting: list[Distribution] = [PathDistribution(metadata)]
    while waiting:
        for line in waiting.pop().requires or ():
            requirement, _, marker = line.partition(";")
            named = re.match(r"[\w.-]+", requirement)
            wanted = not marker or (extra and f'extra == "{extra}"' in marker.replace("'", '"'))
            if named is not None and wanted and named[0] not in found:
                found[named[0]] = Distribution.from_name(named[0])
                waiting.append(found[named[0]])
    return list(found.values())


def package(tree: Path, wheel: Path, directory: Path) -> Path:
    """Write the control files of `tree` and pack it."""
    architecture = run("dpkg", "--print-architecture").strip()
    (major, minor), _ = manylinux.needs(wheel)
    values = {
        "version": engine_version(),
        "architecture": architecture,
        "size": sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024,
        "python": PYTHON,
        "libc": f"{major}.{minor}",
    }
    put(tree / "usr/share/doc" / tree.name / "copyright", (HERE / "debian/copyright").read_text())
    put(tree / "DEBIAN/control", (HERE / f"debian/control.{tree.name}").read_text().format(**values))
    target = directory / f"{tree.name}_{engine_version()}_{architecture}.deb"
    run("dpkg-deb", "--build", "--root-owner-group", "-Zzstd", "-z3", str(tree), str(target))
    return target


def put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.stdout.writelines(f"{built}\n" for built in build(Path(sys.argv[1]), Path(sys.argv[2])))
