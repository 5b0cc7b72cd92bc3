"""The tree keeps the rules that docs/architecture.md and CONTRIBUTING.md state."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine"
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix().replace("/", ".")
    for path in ENGINE.rglob("__init__.py")
    if "wire" not in path.parts
)
DECISION_ROOMS = {
    "admission", "cgroups", "cpumanager", "devices", "images", "containers", "eviction", "memorymanager",
    "probes", "topologymanager",
}  # fmt: skip
BASE = {"api", "metrics", "tables", "_fast"}
MAY_IMPORT: dict[str, set[str]] = {
    "api": set(),
    "metrics": set(),
    "_fast": {"wire"},
    "wire": set(),
    "host": {"api", "metrics"},
    "hostsetup": {"api", "metrics", "host", "cgroups"},
    "transport": {"api", "_fast"},
    "cluster": {"api", "metrics", "host", "transport"},
    "tables": {"api", "_fast"},
    "admission": BASE,
    "cgroups": BASE | {"host"},
    "cri": {"api", "metrics", "host", "transport", "wire"},
    "plugins": {"api", "host", "transport", "wire"},
    "dra": {"api", "metrics", "host", "transport", "wire", "plugins"},
    "topologymanager": {"api", "_fast"},
    "cpumanager": {"api", "metrics", "_fast", "host", "topologymanager"},
    "memorymanager": {"api", "metrics", "_fast", "host", "topologymanager"},
    "devices": BASE | {"host", "transport", "wire", "plugins", "topologymanager"},
    "csi": {"api", "metrics", "host", "transport", "wire", "plugins"},
    "images": BASE | {"host", "wire", "cri"},
    "containers": BASE | {"host", "wire", "cri"},
    "eviction": BASE | {"host", "wire", "cri", "images", "containers"},
    "probes": BASE | {"host", "wire", "cri"},
    "runtime": {"api", "metrics", "host", "wire", "cri"},
    "node": BASE | DECISION_ROOMS | {"host", "hostsetup", "wire", "cri", "cluster", "plugins", "csi", "dra"},
    "bench": {"api", "host", "wire", "cri", "cluster"},
    "server": {"api", "metrics", "host", "node", "_fast"},
    "plan": BASE | DECISION_ROOMS | {"host"},
}


def modules() -> Iterator[Path]:
    for path in ENGINE.rglob("*.py"):
        if "wire" not in path.parts:
            yield path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_rooms_import_only_what_they_may() -> None:
    wrong = []
    for path in modules():
        relative = path.relative_to(ENGINE)
        room = relative.parts[0]
        if room not in MAY_IMPORT:
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "engine" and len(parts) > 1 and parts[1] not in MAY_IMPORT[room] | {room}:
                wrong.append(f"{relative} imports {name}")
    assert not wrong, wrong


PLAN_STATIONS: dict[str, set[str]] = {
    "progress": set(),
    "snapshot": set(),
    "reading": {"snapshot", "progress"},
    "synth": {"reading", "snapshot"},
    "placement": {"snapshot"},
    "answers": set(),
    "questions": {"snapshot", "reading", "placement", "answers"},
    "report": {"answers"},
    "on_dask": {"questions", "answers", "snapshot"},
    "cluster": {"on_dask", "questions", "answers", "reading", "snapshot", "progress"},
    "scenario": {"cluster", "questions", "answers", "reading", "progress"},
}
"""What each station of the planner imports; one stands below all that import it."""


def test_the_planner_is_built_by_stations() -> None:
    arrows: dict[str, set[str]] = {}
    for path in (ENGINE / "plan").rglob("*.py"):
        relative = path.relative_to(ENGINE / "plan")
        if relative.name == "__init__.py" and len(relative.parts) == 1:
            continue
        station = relative.parts[0].removesuffix(".py")
        named = {name.split(".")[2] for name in imports(path) if name.startswith("engine.plan.")}
        arrows.setdefault(station, set()).update(named - {station})
    assert arrows == PLAN_STATIONS
    stations = list(PLAN_STATIONS)
    upward = [
        (station, below)
        for station, named in PLAN_STATIONS.items()
        for below in named
        if stations.index(below) > stations.index(station)
    ]
    assert not upward


def test_the_table_of_rooms_is_the_tree() -> None:
    lines = (ROOT / "docs/architecture.md").read_text().splitlines()
    first_cells = "".join(line.split("|")[1] for line in lines if line.startswith("| `"))
    table = set(re.findall(r"`(\w+)`", first_cells))
    rooms = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    assert rooms == table


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_lives_there_and_exports_what_it_names(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__ is not None, f"{package} opens without a paragraph"
    assert len(module.__doc__.split()) >= 8, package
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name), f"{package}.{name}"


def test_files_fit_on_a_few_screens() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert not {name: lines for name, lines in long.items() if lines > 600}


def test_third_party_imports_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[\[<>=~! ]", item)[0].lower() for items in lists for item in items}
    provides = {"grpcio": "grpc", "protobuf": "google", "pyyaml": "yaml"}
    known = {provides.get(name, name.replace("-", "_")) for name in declared}
    used = {name.split(".")[0] for path in modules() for name in imports(path)}
    known.add("distributed")  # an extra of dask
    undeclared = used - known - set(sys.stdlib_module_names) - {"engine", ""}
    assert not undeclared


HOST_FILES = {
    "beneath": "opening and replacing below a directory, through no link",
    "child": "a program that is run for what it prints",
    "crowd": "who may be inside where places are few",
    "files": "replacing one file",
    "inotify": "being told of changes in directories",
    "kept": "small files of our own that outlive an agent",
    "loop_devices": "files that are shown as devices",
    "mountinfo": "what is mounted where",
    "mounts": "mounting and unmounting",
    "network_namespace": "sockets of other networks",
    "notify": "the service manager",
    "project_quota": "what the kernel counts of a directory's files",
    "published": "directories of files that change all at once",
    "shared_trees": "giving trees of files to a group",
    "sockets": "claiming a unix socket",
    "state_file": "state files that a kubelet reads, too",
    "stopping": "ending many parts, whatever one of them raises",
    "tasks": "background tasks",
    "trees": "measuring and removing trees of files",
}
"""Each touches the machine in one way, for whoever it may be; what else a room needs is its own."""


def test_the_hosts_room_is_no_drawer() -> None:
    files = {path.stem for path in (ENGINE / "host").glob("*.py")} - {"__init__"}
    assert files == set(HOST_FILES)
    used = {
        name.split(".")[2] for path in modules() for name in imports(path) if name.startswith("engine.host.")
    }
    assert used == set(HOST_FILES)


def test_what_is_mounted_is_read_in_one_file() -> None:
    reading = [path for path in modules() if 'self/mountinfo"' in path.read_text()]
    assert reading == [ENGINE / "host/mountinfo.py"]


def test_no_socket_is_left_to_asyncio_to_remove() -> None:
    """From Python 3.13 on its servers of unix sockets look them up by the name that they were bound with, and
    remove them: that name is below a descriptor that is closed, and our claims remove the sockets."""
    assert [path for path in modules() if "_unix_server" in path.read_text()] == []


def test_the_walk_of_one_pod_is_short_and_along_files_that_exist() -> None:
    way = (ROOT / "docs/architecture.md").read_text().partition("## One pod's way")[2]
    steps = re.findall(r"^\d+\. `(engine/\S+\.py)`", way, re.MULTILINE)
    assert len(set(steps)) <= 15
    assert max(map(steps.count, steps)) <= 2
    assert [step for step in steps if not (ROOT / step).is_file()] == []


def test_no_dependency_is_idle() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    provides = {"grpcio": "grpc", "protobuf": "google", "pyyaml": "yaml"}
    names = {re.split(r"[\[<>=~! ]", item)[0].lower() for item in project["dependencies"]}
    used = {name.split(".")[0] for path in modules() for name in imports(path)}
    assert {provides.get(name, name) for name in names} - used == set()


def test_http2_is_spoken_by_the_core_and_by_the_library_in_tools_for_tests_alone() -> None:
    users = [
        path
        for path in modules()
        for name in imports(path)
        if name.split(".")[0] in ("h2", "hpack", "hyperframe")
    ]
    assert [path for path in users if "testing" not in path.parts] == []
    assert users


def test_each_kernel_has_its_twin_selector_and_types() -> None:
    kernels = sorted((ENGINE / "_fast").glob("_*_c.pyx"))
    assert kernels
    for kernel in kernels:
        name = kernel.stem.removeprefix("_").removesuffix("_c")
        used = any(f"_fast.{name} import" in path.read_text() for path in modules())
        for other in (f"_{name}_py.py", f"_{name}_c.pyi", *([f"{name}.py"] if used else [])):
            assert (kernel.parent / other).exists(), f"{kernel.name} has no {other}"


def test_kernels_do_no_io() -> None:
    headers = r"^\s*#include <(?:sys/|unistd|fcntl|netinet|pthread|poll)"
    outside = re.compile(rf"{headers}|^(?:import|from) (?:os|socket|io|asyncio|pathlib)\b", re.MULTILINE)
    fast = ENGINE / "_fast"
    touching = [
        path.name
        for pattern in ("*.pyx", "*.pxd", "*.h", "*.py")
        for path in fast.glob(pattern)
        if path.name != "_select.py" and outside.search(path.read_text())
    ]
    assert not touching


def test_nothing_generated_is_tracked() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.so", "engine/_fast/**/*.c", "*.egg-info", "*.pyc"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git work tree (or not ours to read)")
    assert listed.stdout.split() == []
