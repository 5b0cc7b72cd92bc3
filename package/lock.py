"""Writes the lock files: `lock.py` resolves pyproject.toml again, `make lock` runs it.

Each file in `requirements/` pins every distribution that some targets of the Makefile install, with the
SHA-256 of each file that the index has of that version, so that `pip --require-hashes` takes nothing else:

    build.txt   what compiles the kernels, and builds archives
    node.txt    what a node agent needs (`make run`, `make deb`)
    plan.txt    the same and what the planner needs (`make deb`)
    dev.txt     everything: tests, linters, documents (`make test`, `make dist`)
    musl.txt    the compiler of wheels for musl (`make dist-musl`)
    jupyterhub.txt   what the test of examples/jupyterhub_spawner.py needs besides (`make try-jupyterhub`)

They are resolved for the oldest Python that is supported. The first four come from pyproject.toml alone, and
three of them are subsets of dev.txt; the last one takes the versions of dev.txt for distributions that both
have. Names, versions and hashes are all that is in them, so any index will do. JupyterHub's proxy is a
program for Node.js: npm resolves requirements/proxy/package.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "requirements"
FLAGS = (
    "--quiet", "--rebuild", "--generate-hashes", "--allow-unsafe", "--strip-extras",
    "--no-annotate", "--no-header", "--no-emit-options",
)  # fmt: skip
OLDEST = (3, 11)
MUSL = ("ziglang>=0.17,<0.18",)
JUPYTERHUB = ("jupyter-server>=2.14,<3", "jupyterhub>=5,<7")
HEADER = "# Made by `make lock` from pyproject.toml; see package/lock.py.\n"


def main() -> None:
    """Resolve everything, then write each part's file."""
    if sys.version_info[:2] != OLDEST:
        raise SystemExit(f"run it with Python {OLDEST[0]}.{OLDEST[1]}, the oldest that is supported")
    LOCKS.mkdir(exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    build = [*project["build-system"]["requires"], "build", "wheel"]
    node = project["project"]["dependencies"]
    lock("dev", [*node, *build, *(line for extra in extras.values() for line in extra)])
    lock("build", build, within="dev")
    lock("node", [*node, *build], within="dev")
    lock("plan", [*node, *build, *extras["plan"]], within="dev")
    lock("musl", MUSL)
    lock("jupyterhub", JUPYTERHUB, within="dev")


def lock(name: str, requirements: Iterable[str], within: str = "") -> None:
    """Write `requirements/NAME.txt`; with `within`, of the versions that another file has."""
    target = LOCKS / f"{name}.txt"
    command = [sys.executable, "-m", "piptools", "compile", *FLAGS, "--output-file", str(target), "-"]
    lines = list(requirements)
    if within:
        pinned = re.findall(r"^([\w.-]+==\S+)", (LOCKS / f"{within}.txt").read_text(), re.MULTILINE)
        limits = LOCKS / ".limits"
        limits.write_text("\n".join(pinned))
        command += ["--constraint", str(limits)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    try:
        subprocess.run(
            command,
            input="\n".join(lines),
            text=True,
            check=True,
            env=plain | {"PIP_CONFIG_FILE": os.devnull},
        )
    finally:
        (LOCKS / ".limits").unlink(missing_ok=True)
    target.write_text(HEADER + target.read_text())
    print(f"{target.relative_to(ROOT)}: {len(re.findall('==', target.read_text()))} distributions")


if __name__ == "__main__":
    print(f"pip-tools {version('pip-tools')}")
    main()
