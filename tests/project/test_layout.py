"""The tree keeps the rules that docs/architecture.md and CONTRIBUTING.md state."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine"
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix().replace("/", ".")
    for path in ENGINE.rglob("__init__.py")
    if "wire" not in path.parts
)
DECISION_PACKAGES = {
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
    "shutdown": {"api", "metrics", "host"},
    "transport": {"api", "_fast"},
    "cluster": {"api", "metrics", "host", "transport"},
    "tables": {"api", "_fast"},
    "admission": BASE,
    "cgroups": BASE | {"host"},
    "cri": {"api", "metrics", "host", "transport", "wire"},
    "plugins": {"api", "host", "transport", "wire"},
    "dra": {"api", "metrics", "host", "transport", "wire", "plugins", "topologymanager"},
    "topologymanager": {"api", "metrics", "_fast"},
    "cpumanager": {"api", "metrics", "_fast", "host", "topologymanager"},
    "memorymanager": {"api", "metrics", "_fast", "host", "topologymanager"},
    "devices": BASE | {"host", "transport", "wire", "plugins", "topologymanager"},
    "csi": {"api", "metrics", "host", "transport", "wire", "plugins"},
    "intree": {"api", "host"},
    "images": BASE | {"host", "wire", "cri"},
    "containers": BASE | {"host", "wire", "cri"},
    "eviction": BASE | {"host", "wire", "cri", "images", "containers"},
    "probes": BASE | {"host", "wire", "cri"},
    "runtime": {"api", "metrics", "host", "wire", "cri", "transport"},
    "node": BASE
    | DECISION_PACKAGES
    | {"host", "hostsetup", "shutdown", "wire", "cri", "cluster", "plugins", "csi", "dra", "intree"}
    | {"record"},
    "record": {"api"},
    "shadow": BASE
    | DECISION_PACKAGES
    | {"host", "transport", "wire", "cri", "cluster", "csi", "dra", "plugins", "node", "record"},
    "bench": {"api", "host", "wire", "cri", "cluster"},
    "server": {"api", "metrics", "host", "node", "transport", "_fast"},
    "plan": BASE | DECISION_PACKAGES | {"host", "cluster", "record", "csi"},
}


def modules() -> Iterator[Path]:
    for path in ENGINE.rglob("*.py"):
        if "wire" not in path.parts:
            yield path


@dataclass(frozen=True)
class Outline:
    """Hold what the tests ask of a module's source.

    `imports` are the modules of all import statements, `imported` those of `from` statements with the names,
    `classes` the public classes at the top, `constructors` each class with the parameters and lines of its
    `__init__`.
    """

    imports: tuple[str, ...]
    imported: tuple[tuple[str, tuple[str, ...]], ...]
    classes: tuple[str, ...]
    constructors: tuple[tuple[str, int, int], ...]


@cache
def outline(path: Path) -> Outline:
    """Parse a module once for all tests; its tree would slow down each later collection of garbage."""
    tree = ast.parse(path.read_text(), str(path))
    imports: list[str] = []
    imported: list[tuple[str, tuple[str, ...]]] = []
    constructors: list[tuple[str, int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.append(node.module or "")
            if node.module:
                imported.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.ClassDef):
            for made in node.body:
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    given = (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs)
                    lines = (made.end_lineno or 0) - made.lineno + 1
                    constructors.append((node.name, len(given) - 1, lines))
    classes = tuple(
        node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return Outline(tuple(imports), tuple(imported), classes, tuple(constructors))


def test_packages_import_only_what_they_may() -> None:
    wrong = []
    for path in modules():
        relative = path.relative_to(ENGINE)
        package = relative.parts[0]
        if package not in MAY_IMPORT:
            continue
        for name in outline(path).imports:
            parts = name.split(".")
            if parts[0] == "engine" and len(parts) > 1 and parts[1] not in MAY_IMPORT[package] | {package}:
                wrong.append(f"{relative} imports {name}")
    assert not wrong, wrong


def folder_arrows() -> dict[str, set[str]]:
    """Return, for each folder of the package, the other folders whose modules its own modules import."""
    tree = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules()}
    tree = {name.removesuffix(".__init__"): path for name, path in tree.items()}
    found: dict[str, set[str]] = {}
    for path in tree.values():
        folder = path.parent.relative_to(ROOT).as_posix()
        named = found.setdefault(folder, set())
        for module, names in outline(path).imported:
            for name in names:
                target = tree.get(f"{module}.{name}") or tree.get(module)
                if target is not None:
                    named.add(target.parent.relative_to(ROOT).as_posix())
        named.discard(folder)
    return found


def test_folders_do_not_import_each_other_in_a_cycle() -> None:
    graphlib.TopologicalSorter(folder_arrows()).prepare()  # raises CycleError and names the folders


def test_a_cycle_of_folders_would_be_noticed() -> None:
    with pytest.raises(graphlib.CycleError, match="engine/host"):
        graphlib.TopologicalSorter(folder_arrows() | {"engine/api": {"engine/host"}}).prepare()


def test_no_folder_holds_more_than_25_modules() -> None:
    suffixes = {".py", ".pyx", ".h"}
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for top in (ENGINE, ROOT / "tests")
        for path in top.rglob("*")
        if path.suffix in suffixes and "wire" not in path.parts and path.name != "__init__.py"
    )
    assert {folder: count for folder, count in folders.items() if count > 25} == {}


PLAN_LAYERS: dict[str, set[str]] = {
    "snapshot": set(),
    "claims": {"snapshot"},
    "anonymize": {"claims", "snapshot"},
    "reading": {"claims", "snapshot"},
    "live": {"reading", "snapshot"},
    "history": {"reading", "snapshot"},
    "synth": {"reading", "snapshot"},
    "placement": {"claims", "snapshot"},
    "eviction": {"snapshot"},
    "rightsizing": {"eviction", "history", "reading", "snapshot"},
    "rollout": {"snapshot"},
    "answers": set(),
    "replay": {"answers", "eviction", "rollout"},
    "questions": {
        "claims",
        "snapshot",
        "reading",
        "history",
        "placement",
        "eviction",
        "rightsizing",
        "rollout",
        "answers",
    },
    "report": {"answers"},
    "on_dask": {"questions", "answers", "snapshot"},
    "cluster": {"on_dask", "questions", "answers", "reading", "snapshot"},
    "scenario": {"cluster", "questions", "answers", "reading"},
}
"""The layers of the planner and what each imports, lowest first."""


def test_only_live_snapshots_reach_an_api_server() -> None:
    using = {
        path.relative_to(ENGINE / "plan").parts[0]
        for path in (ENGINE / "plan").rglob("*.py")
        if any(name.startswith("engine.cluster") for name in outline(path).imports)
    }
    assert using == {"live"}


def test_layers_of_the_planner_import_only_lower_layers() -> None:
    arrows: dict[str, set[str]] = {}
    for path in (ENGINE / "plan").rglob("*.py"):
        relative = path.relative_to(ENGINE / "plan")
        if relative.name == "__init__.py" and len(relative.parts) == 1:
            continue
        station = relative.parts[0].removesuffix(".py")
        named = {name.split(".")[2] for name in outline(path).imports if name.startswith("engine.plan.")}
        arrows.setdefault(station, set()).update(named - {station})
    assert arrows == PLAN_LAYERS
    stations = list(PLAN_LAYERS)
    upward = [
        (station, below)
        for station, named in PLAN_LAYERS.items()
        for below in named
        if stations.index(below) > stations.index(station)
    ]
    assert not upward


def test_the_table_of_packages_matches_the_tree() -> None:
    lines = (ROOT / "docs/architecture.md").read_text().splitlines()
    first_cells = "".join(line.split("|")[1] for line in lines if line.startswith("| `"))
    table = set(re.findall(r"`(\w+)`", first_cells))
    packages = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    assert packages == table


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_docstring_and_exports_what_it_names(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__ is not None, f"{package} has no docstring"
    assert len(module.__doc__.split()) >= 8, package
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name), f"{package}.{name}"


def test_no_file_is_longer_than_600_lines() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert not {name: lines for name, lines in long.items() if lines > 600}


SMALL_LINES, LONG_LINES = 70, 420
SMALL_PURE = {"memorymanager.reservation", "server.volume_metrics"}
"""Small modules that decide, while their only importer acts."""


def importers() -> dict[str, set[str]]:
    """Return, for each module without `engine.`, the modules that import it."""
    tree = {".".join(path.relative_to(ENGINE).with_suffix("").parts): path for path in modules()}
    found: dict[str, set[str]] = {name: set() for name in tree}
    for module, path in tree.items():
        for source, names in outline(path).imported:
            for name in (source, *(f"{source}.{each}" for each in names)):
                short = name.removeprefix("engine.")
                if short in found and short != module:
                    found[short].add(module)
    return found


def test_a_small_module_has_more_than_one_importer_or_a_reason() -> None:
    """A small module with one importer in its own package goes into it, unless a wall is between them.

    Exceptions: kernels' selectors, API objects, the planner's layers, and modules whose importer is long.
    """
    lines = {
        ".".join(path.relative_to(ENGINE).with_suffix("").parts): len(path.read_text().splitlines())
        for path in modules()
    }
    alone = {
        module
        for module, using in importers().items()
        if len(using) == 1
        and lines[module] <= SMALL_LINES
        and lines[next(iter(using))] + lines[module] <= LONG_LINES
        and module.split(".")[:-1] == next(iter(using)).split(".")[:-1]
        and not module.startswith(("_fast", "api.objects", "plan"))
    }
    assert alone - SMALL_PURE == set()


CONSTRUCTOR_PARAMETERS, CONSTRUCTOR_LINES = 8, 40


def test_constructors_are_small() -> None:
    large = {
        name
        for path in modules()
        for name, parameters, lines in outline(path).constructors
        if parameters > CONSTRUCTOR_PARAMETERS or lines > CONSTRUCTOR_LINES
    }
    assert large == set()


def test_third_party_imports_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[\[<>=~! ]", item)[0].lower() for items in lists for item in items}
    provides = {
        "grpcio": "grpc",
        "protobuf": "google",
        "pyyaml": "yaml",
        "opentelemetry-sdk": "opentelemetry",
        "common-expression-language": "cel",
    }
    known = {provides.get(name, name.replace("-", "_")) for name in declared}
    used = {name.split(".")[0] for path in modules() for name in outline(path).imports}
    known.add("distributed")  # an extra of dask
    undeclared = used - known - set(sys.stdlib_module_names) - {"engine", ""}
    assert not undeclared


HOST_FILES = {
    "atomic_writer": "replaces a directory of files in one step",
    "cgroupfs": "finds and reads cgroups",
    "checksummed_file": "keeps small files of the agent that survive a crash",
    "child": "runs a program and returns its output",
    "connection_limiter": "limits the number of open connections",
    "disks": "makes, checks, mounts, grows and measures file systems on disks",
    "files": "replaces one file",
    "http": "reads answers of HTTP servers, in threads and commands",
    "inotify": "reports changes in directories",
    "loop_share": "shares the event loop among peers",
    "mountinfo": "reads the mount table",
    "mounts": "mounts and unmounts",
    "network_namespace": "opens sockets in other network namespaces",
    "node_context": "holds what every part of a node works with",
    "notify": "talks to the service manager",
    "otlp": "sends spans to a collector",
    "records": "keeps small records in one file, and syncs them in groups",
    "safe_open": "opens and replaces files below a directory without following links",
    "selinux": "reads the state of SELinux",
    "shared_trees": "gives a tree of files to a group",
    "sockets": "claims a unix socket",
    "state_file": "reads and writes state files in the formats of the kubelet",
    "stopping": "stops many parts, even if one of them raises",
    "tasks": "runs background tasks",
    "threads": "runs blocking work in threads",
    "tracing": "records spans, or nothing",
    "trees": "measures and removes trees of files",
}
"""Each file of `engine.host` does one thing to the machine; what only one subsystem needs lives there."""


def test_each_file_of_host_has_one_purpose_and_a_user() -> None:
    top = ENGINE / "host"
    files = {path.stem for path in top.glob("*.py")} - {"__init__"}
    files |= {path.parent.name for path in top.glob("*/__init__.py")}
    assert files == set(HOST_FILES)
    used = {
        name.split(".")[2]
        for path in modules()
        for name in outline(path).imports
        if name.startswith("engine.host.")
    }
    assert used == set(HOST_FILES)


def test_no_two_public_classes_have_the_same_name() -> None:
    names = Counter(name for path in modules() for name in outline(path).classes)
    assert {name for name, count in names.items() if count > 1} == set()


def test_one_file_reads_the_mount_table() -> None:
    reading = [path for path in modules() if 'self/mountinfo"' in path.read_text()]
    assert reading == [ENGINE / "host/mountinfo.py"]


def test_asyncio_never_removes_unix_sockets() -> None:
    """asyncio's unix servers remove their socket by path since Python 3.13.

    Our servers bind below a directory descriptor that is closed by then, and remove their sockets themselves.
    """
    assert [path for path in modules() if "_unix_server" in path.read_text()] == []


def test_the_milestones_of_a_pod_are_in_files_that_exist() -> None:
    milestones = (ROOT / "docs/architecture.md").read_text().partition("## Milestones of a pod")[2]
    files = re.findall(r"^\d+\. `(engine/\S+\.py)`", milestones, re.MULTILINE)
    assert len(files) >= 20
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_no_dependency_is_idle() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    provides = {"grpcio": "grpc", "protobuf": "google", "pyyaml": "yaml"}
    names = {re.split(r"[\[<>=~! ]", item)[0].lower() for item in project["dependencies"]}
    used = {name.split(".")[0] for path in modules() for name in outline(path).imports}
    assert {provides.get(name, name) for name in names} - used == set()


def test_http2_is_spoken_by_the_core_and_by_the_library_in_tools_for_tests_alone() -> None:
    users = [
        path
        for path in modules()
        for name in outline(path).imports
        if name.split(".")[0] in ("h2", "hpack", "hyperframe")
    ]
    assert [path for path in users if "testing" not in path.parts] == []
    assert users


DECISION_KERNELS = ("preemption", "devices", "ranking", "messages", "pinning")


def test_each_kernel_has_its_twin_selector_and_types() -> None:
    kernels = [
        path
        for folder in (ENGINE / "_fast", *(ENGINE / "_fast" / name for name in DECISION_KERNELS))
        for path in sorted(folder.glob("_*_c.pyx"))
    ]
    assert len(kernels) >= 13
    for kernel in kernels:
        name = kernel.stem.removeprefix("_").removesuffix("_c")
        dotted = ".".join(kernel.parent.relative_to(ROOT).parts)
        used = any(f"{dotted}.{name} import" in path.read_text() for path in modules())
        for other in (f"_{name}_py.py", f"_{name}_c.pyi", *([f"{name}.py"] if used else [])):
            assert (kernel.parent / other).exists(), f"{kernel.name} has no {other}"


def test_only_its_own_folder_imports_a_kernel_or_a_twin() -> None:
    """Everybody else imports the module in front of them, which chooses between the two."""
    wrong = []
    for path in modules():
        own = ".".join(path.parent.relative_to(ROOT).parts)
        for source, names in outline(path).imported:
            if source != own:
                for name in (source, *(f"{source}.{each}" for each in names)):
                    folder, _, module = name.rpartition(".")
                    if re.fullmatch(r"_\w+_(py|c)", module) and folder != own:
                        wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_kernels_do_no_io() -> None:
    headers = r"^\s*#include <(?:sys/|unistd|fcntl|netinet|pthread|poll)"
    outside = re.compile(rf"{headers}|^(?:import|from) (?:os|socket|io|asyncio|pathlib)\b", re.MULTILINE)
    fast = ENGINE / "_fast"
    touching = [
        path.name
        for folder in (fast, *(fast / name for name in DECISION_KERNELS))
        for pattern in ("*.pyx", "*.pxd", "*.h", "*.py")
        for path in folder.glob(pattern)
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
