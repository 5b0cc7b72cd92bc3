"""Give each file of parts a fresh machine, write lines of progress, and a table of the parts at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.system.vm import image, node_in_machine, pods_in_machine
from tests.system.vm.machine import Cable, Machine, Size, interpreter
from tests.system.vm.node_in_machine import ROOT

PLACE = Path(os.environ["KUBENGINE_VM"]) if "KUBENGINE_VM" in os.environ else None
"""Where the image and the machines are kept."""

began = time.monotonic()
rows: dict[str, list[pytest.TestReport]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    marks = [
        pytest.mark.root,
        pytest.mark.slow,
        pytest.mark.skipif(PLACE is None, reason="starts a virtual machine: `make try-vm`"),
        pytest.mark.skipif(bool(image.missing()), reason=f"a virtual machine needs {image.missing()}"),
    ]
    for item in items:
        if item.path.is_relative_to(here):
            for mark in marks:
                item.add_marker(mark)


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine of the module's `SIZE` in which a node is installed, and only containerd runs."""
    size = getattr(request.module, "SIZE", Size(cpus=2, memory=3072))
    with fresh(request.module, "", size, 1) as made:
        yield made


@pytest.fixture(scope="module")
def second_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield another such machine of the module's `SECOND_SIZE`; a cable connects both."""
    with fresh(request.module, "-2", request.module.SECOND_SIZE, 2) as made:
        yield made


@contextmanager
def fresh(module: ModuleType, suffix: str, size: Size, end: int) -> Iterator[Machine]:
    """Start a machine for the parts of a module, and remove it afterwards."""
    assert PLACE is not None
    name = module.__name__.rpartition(".")[2].removeprefix("test_") + suffix
    mounts = {"checkout": ROOT} | ({"python": python} if (python := interpreter()) else {})
    image_made = image.make(PLACE, lambda text: say("image", text))
    place = PLACE / "machines"
    cable = Cable(place, end) if hasattr(module, "SECOND_SIZE") else None
    write_disk: Callable[[Path], None] | None = getattr(module, "write_disk", None)
    disk = place / f"{name}.disk" if write_disk else None
    made = Machine(
        image_made, place / name, size, mounts, lambda text: say(name, text), cable=cable, disk=disk
    )
    made.remove()
    try:
        if write_disk and disk:
            say(name, "write its second disk")
            write_disk(disk)
        made.start()
        node_in_machine.install(made)
        yield made
    finally:
        made.remove()
        if disk:
            disk.unlink(missing_ok=True)


@pytest.fixture
def node(machine: Machine) -> Machine:
    """Return the machine with an agent in its usual configuration, and a ready pod of each class."""
    pods_in_machine.write_pods(machine)
    node_in_machine.run_agent(machine)
    pods_in_machine.wait_for_pods(machine)
    return machine


def say(subject: str, text: str) -> None:
    """Write one line of progress, with the seconds since the start, unless pytest captures it."""
    os.write(2, f"{time.monotonic() - began:6.0f} s  {subject}: {text}\n".encode())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/system/vm/" in report.nodeid:
        rows.setdefault(report.nodeid, []).append(report)
        if report.failed:  # the other parts may take hours
            os.write(2, f"\n{report.longreprtext}\n".encode())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the table; `make try-vm` runs nothing else."""
    if PLACE is None:
        return
    terminalreporter.section("parts")
    for name, reports in rows.items():
        part = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        took = sum(report.duration for report in reports)
        terminalreporter.line(f"{outcome(reports):8}{took:7.0f} s  {part}{reason(reports)}")


def outcome(reports: list[pytest.TestReport]) -> str:
    for word in ("failed", "skipped"):
        if any(report.outcome == word for report in reports):
            return word
    return "passed"


def reason(reports: list[pytest.TestReport]) -> str:
    """Return why a part was skipped, after a colon; empty if it was not."""
    for report in reports:
        if report.skipped and isinstance(report.longrepr, tuple):
            return f": {report.longrepr[2].removeprefix('Skipped: ')}"
    return ""
