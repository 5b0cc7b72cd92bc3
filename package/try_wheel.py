"""Test wheels: `try_wheel.py SDIST WHEEL...`, each in an environment with nothing else installed.

A wheel for this machine gets a new virtual environment of its Python, which must be on the PATH, or for musl
in the variable MUSL_PYTHON; a wheel for arm64 gets the Python that `arm64.py` unpacked, under qemu-user.
There, a plan is answered, a node runs a pod on the hollow runtime, every kernel is loaded, and the tests in
the source archive compare the kernels with their twins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import arm64
from arm64 import unpack

ENVIRONMENTS = Path("build/tried").absolute()
TEST_REQUIREMENTS = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "h2", "psutil"]
NODE_DEADLINE = 600.0
"""Seconds until the pod runs; under qemu, beside other work, it takes minutes."""

LOAD = """
import importlib, pathlib, engine._fast
top = pathlib.Path(engine._fast.__file__).parent
found = sorted(path.relative_to(top.parents[1]) for path in top.rglob("*.so"))
for path in found:
    importlib.import_module(".".join([*path.parent.parts, path.name.partition(".")[0]]))
print(len(found), "kernels are loaded")
"""
CONFIG = {
    "kind": "KubeletConfiguration",
    "enableServer": False,
    "healthzPort": 0,
    "resolvConf": "",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "evictionHard": {"memory.available": "0%"},
    "imageGCHighThresholdPercent": 100,
}
"""Eviction is off: the test must also pass on a machine whose disk is nearly full."""


@dataclass(frozen=True)
class Installed:
    """Describe a Python with a wheel: its command, its environment variables, and a working directory."""

    python: tuple[str, ...]
    place: Path
    variables: dict[str, str]
    site: Path | None = None
    """The directory for wheels of another architecture; None for this machine."""

    def add(self, requirements: Sequence[str]) -> None:
        """Install requirements without pip's cache, as on a machine that never had them."""
        if self.site is not None:
            arm64.install(requirements, self.site)
        else:
            self.run("-m", "pip", "install", "-q", "--no-cache-dir", *requirements)

    def run(self, *arguments: str) -> None:
        subprocess.run([*self.python, *arguments], check=True, cwd=self.place, env=self.environment)

    def kubengine(self, *arguments: str) -> None:
        print(f"  kubengine {' '.join(arguments)}", flush=True)
        self.run("-m", "engine.cli", *arguments)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}


def try_wheel(sdist: Path, wheel: Path) -> None:
    """Test one wheel. Raise CalledProcessError or SystemExit if something does not work."""
    place = ENVIRONMENTS / wheel.stem
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    print(f"{wheel.name}: installing", flush=True)
    began = time.monotonic()
    installed = install(wheel, place)
    installed.kubengine("--version")
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes at most
        run_a_node(replace(installed, place=Path(short)))
    print(f"  {time.monotonic() - began:.0f} s from an empty directory to a ready pod", flush=True)
    installed.add([f"{wheel}[plan]"])
    installed.kubengine("plan", "synth", "--nodes", "5", "-o", "cluster.kes")
    installed.kubengine("plan", "preempt", "--requests", "cpu=64", "--critical", "cluster.kes")
    print(f"  {time.monotonic() - began:.0f} s to an answered plan", flush=True)
    installed.run("-c", LOAD)
    installed.add(TEST_REQUIREMENTS)
    source = unpack(sdist, place / "source")
    shutil.rmtree(source / "engine")
    print("  the kernels' tests", flush=True)
    left_out = ["test_selection.py"]  # it reads the kernels' sources
    if installed.site is not None:
        left_out.append("test_protobuf_in_python.py")  # it starts another Python, without qemu
    ignored = [f"--ignore=tests/fast/{name}" for name in left_out]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *ignored, "tests/fast"]
    replace(installed, place=source).run(*pytest)
    print(f"{wheel.name}: works", flush=True)


def install(wheel: Path, place: Path) -> Installed:
    """Install the wheel with its requirements."""
    if "-musllinux_" not in wheel.name and wheel.stem.endswith("_aarch64"):
        site = place / "site"
        installed = Installed(tuple(arm64.python()), place, {"PYTHONPATH": str(site)}, site)
    else:
        subprocess.run([python_of(wheel), "-m", "venv", str(place / "venv")], check=True)
        installed = Installed((str(place / "venv/bin/python"),), place, {})
    installed.add([str(wheel)])
    return installed


def python_of(wheel: Path) -> str:
    """Return the Python that the wheel's name requires. Raise SystemExit if there is none."""
    if "-musllinux_" in wheel.name:
        if not os.environ.get("MUSL_PYTHON"):
            raise SystemExit(f"{wheel.name}: set MUSL_PYTHON to a Python that is linked with musl")
        return os.environ["MUSL_PYTHON"]
    interpreter = wheel.stem.split("-")[2]
    major, minor = interpreter[2], interpreter[3:]
    if (int(major), int(minor)) == sys.version_info[:2]:
        return sys.executable
    found = shutil.which(f"python{major}.{minor}")
    if found is None:
        raise SystemExit(f"{wheel.name}: needs python{major}.{minor} on the PATH")
    return found


def run_a_node(installed: Installed) -> None:
    """Run a node until its pod runs, and stop it."""
    place = installed.place
    (place / "pods").mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG | {"podLogsDir": str(place / "logs")}))
    spec = {"containers": [{"name": "main", "image": "example.com/web:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    (place / "pods/web.json").write_text(json.dumps(pod))
    files = ["--config", "config.json", "--manifests", "pods", "--root-dir", "node"]
    command = ["-m", "engine.cli", "run", *files, "--runtime", "hollow", "--node-name", "first"]
    print("  kubengine run", flush=True)
    with subprocess.Popen([*installed.python, *command], cwd=place, env=installed.environment) as agent:
        try:
            deadline = time.monotonic() + NODE_DEADLINE
            while not is_running(installed):
                if agent.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the node's pod does not run")
        finally:
            agent.send_signal(signal.SIGTERM)
    if agent.returncode != 0:
        raise SystemExit(f"the node ended with {agent.returncode}")


def is_running(installed: Installed) -> bool:
    command = [*installed.python, "-m", "engine.cli", "status", "--agent", "node"]
    shown = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=installed.place, env=installed.environment
    )
    return re.search(r" Running +1/1 ", shown.stdout) is not None


def main(sdist: str, wheels: Sequence[str]) -> None:
    for wheel in wheels:
        try_wheel(Path(sdist).absolute(), Path(wheel).absolute())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
