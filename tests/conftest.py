"""Define options of all tests, skip what this machine cannot run, and keep workers apart."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

from tests.leaks import FAILED

# A shared machine is no reason to fail an example, and CI tries the same ones each time.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

# Workers inherit the width of the terminal; commands under test print to a pipe.
os.environ.pop("COLUMNS", None)

pytest_plugins = ["engine.testing.pytest_plugin"]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Shorten the temporary directory and restore the handler of interrupts.

    A worker's own directory would make the paths of unix sockets too long: they have at most 107 characters.
    A shell ignores SIGINT in background jobs, and so would each process that a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and config.option.basetemp is not None:  # a test's own pytest has none
        config.option.basetemp = str(Path(config.option.basetemp).with_name(worker))


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a failed test leave what it opened: its traceback holds that until a later test.

    gRPC ends its poller with its last object and then waits for all servers. A server that was not stopped
    would keep the worker in a garbage collection for ever, so one reference to the poller stays.
    """
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        if "grpc" in sys.modules:
            with suppress(RuntimeError):  # no event loop: the test started no server either
                sys.modules["grpc"].aio.init_grpc_aio()
    return report


@pytest.fixture(autouse=True, scope="module")
def caches_are_frozen(request: pytest.FixtureRequest) -> Iterator[None]:
    """Exempt what outlives a module from the collections after each later test.

    The traceback of a failed test holds what the test opened, which a later collection should free.
    """
    yield
    gc.collect()
    if not request.session.testsfailed:
        gc.freeze()


@pytest.fixture(autouse=True)
def leaks_are_ones_own() -> Iterator[None]:
    """Collect garbage after each test, so that a leak is found in the test that made it."""
    yield
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vectors",
        default=str(Path(__file__).parent / "conformance" / "data"),
        help="directory of recorded answers of kubelet v1.32 (*.jsonl.gz)",
    )
    parser.addoption(
        "--vectors-1.36",
        default=str(Path(__file__).parent / "conformance" / "data-1.36"),
        help="directory of recorded answers of kubelet v1.36, which is the rule (*.jsonl.gz)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs = {
        "root": (os.geteuid() == 0, "needs root: cgroups and namespaces"),
        "containerd": (
            os.geteuid() == 0 and shutil.which("containerd") is not None,
            "needs root and containerd on the PATH (Debian: containerd, runc)",
        ),
        "uml": (shutil.which("linux.uml") is not None, "needs linux.uml (Debian: user-mode-linux)"),
    }
    for item in items:
        for marker, (available, reason) in needs.items():
            if item.get_closest_marker(marker) is not None and not available:
                item.add_marker(pytest.mark.skip(reason=reason))
    longest = files_with_marker(items, "timeout")
    long = files_with_marker(items, "slow", "uml", "containerd")
    items.sort(key=lambda item: (item.path not in longest, item.path not in long))


def files_with_marker(items: list[pytest.Item], *markers: str) -> set[Path]:
    return {item.path for item in items if any(map(item.get_closest_marker, markers))}
