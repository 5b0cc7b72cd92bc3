"""The distribution pytest-kubengine: fixtures where it is installed, no trace of a plugin where it is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.project.shown import ROOT, blocks

pytest_plugins = ["pytester"]
PAGE = ROOT / "docs/how-to/test.md"
EXAMPLES = blocks(PAGE, "python")


@pytest.fixture(scope="module")
def build() -> ModuleType:
    path = ROOT / "package/pytest_kubengine.py"
    spec = importlib.util.spec_from_file_location("build_pytest_kubengine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(
    build: ModuleType, pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Return a project whose environment has the wheel and the checkout."""
    with zipfile.ZipFile(build.write_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{ROOT}")
    return pytester


def test_its_wheel_is_the_same_each_time_and_asks_for_this_version(build: ModuleType, tmp_path: Path) -> None:
    first, second = (build.write_wheel(tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    version = importlib.metadata.version("kubengine")
    with zipfile.ZipFile(first) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        assert f"kubengine[testing]=={version}" in wheel.read(metadata).decode()
        assert not [name for name in wheel.namelist() if name.endswith(".py")]


def test_the_first_example_of_the_page_has_under_ten_lines() -> None:
    assert len(EXAMPLES[0].splitlines()) < 10


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_passes(installed: pytest.Pytester, number: int) -> None:
    installed.makepyfile(EXAMPLES[number])
    result = installed.runpytest_subprocess("-p", "no:cacheprovider")
    outcomes = result.parseoutcomes()
    skipped = "csi_driver" in EXAMPLES[number] and os.geteuid() != 0
    assert outcomes == {"skipped" if skipped else "passed": 1}


def test_every_fixture_is_on_the_page(installed: pytest.Pytester) -> None:
    listed = installed.runpytest_subprocess("--fixtures", "-v").stdout.str()
    here = [line for line in listed.splitlines() if "engine/testing/pytest_plugin.py" in line]
    names = {line.split()[0] for line in here}
    page = PAGE.read_text()
    assert {"hollow_node", "api_server", "csi_driver"} < names
    assert [name for name in names - {"containerd2"} if f"| `{name}` |" not in page] == []


def test_a_conftest_may_name_the_plugin_too(installed: pytest.Pytester) -> None:
    installed.makeconftest('pytest_plugins = ["engine.testing.pytest_plugin"]')
    installed.makepyfile("def test_it(hollow_node): assert hollow_node.events('NodeReady')")
    installed.runpytest_subprocess().assert_outcomes(passed=1)


def test_tests_that_use_no_fixture_load_nothing_more(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        """
        import sys

        def test_it():
            loaded = [name for name in sys.modules if name.split(".")[0] == "engine"]
            assert sorted(loaded) == ["engine", "engine.testing", "engine.testing.pytest_plugin"]
            assert not sys.modules.keys() & {"grpc", "numpy", "h2", "msgspec"}
        """
    )
    installed.runpytest_subprocess().assert_outcomes(passed=1)


def test_pytest_does_not_rewrite_the_modules_of_the_engine(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        """
        def test_it():
            import engine.api.pod
            assert type(engine.api.pod.__spec__.loader).__name__ == "SourceFileLoader"
        """
    )
    installed.runpytest_subprocess().assert_outcomes(passed=1)


def test_kubengine_itself_installs_no_plugin() -> None:
    """A project with a folder `engine` could not run its tests otherwise."""
    points = importlib.metadata.distribution("kubengine").entry_points
    assert [point for point in points if point.group == "pytest11"] == []
