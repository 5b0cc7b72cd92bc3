"""Test the systemd unit that is shipped: its privileges, and a node that works under it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.testing.uml import run_in_uml, systemd_available

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "package/kubengine.service"
NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYSLOG": 34,
}

needs_systemd = pytest.mark.skipif(
    not systemd_available(), reason="needs systemd and its bus (Debian: systemd, dbus)"
)


def settings() -> list[tuple[str, str]]:
    return re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE)


def values(name: str) -> list[str]:
    return [word for key, text in settings() if key == name for word in text.split()]


def test_memory_is_reclaimed_before_pods_pay() -> None:
    """Limit the agent's memory: the kernel kills it last (OOMScoreAdjust), so a leak would cost pods their
    memory."""
    assert values("OOMScoreAdjust") == ["-999"]
    assert values("MemoryHigh") == ["2G"]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Return the observations of one boot, which every test shares."""
    found: dict[str, Any] = run_in_uml(
        f"""
        import pathlib
        sys.path[:0] = [{str(ROOT)!r}]
        from tests.system.unit_scenes import under_its_unit
        report(under_its_unit(pathlib.Path({str(UNIT)!r}), pathlib.Path(SCRATCH)))
        """,
        timeout=840,
        systemd=True,
    )
    return found


under_systemd = [pytest.mark.root, pytest.mark.uml, pytest.mark.slow, needs_systemd]


class TestUnderSystemd:
    pytestmark = under_systemd

    def test_systemd_waits_until_the_agent_is_up(self, seen: dict[str, Any]) -> None:
        assert seen["active"] == {"ActiveState": "active", "SubState": "running", "StatusText": ""}

    def test_it_has_the_capabilities_that_the_unit_names_and_no_way_to_more(
        self, seen: dict[str, Any]
    ) -> None:
        process = seen["process"]
        expected = sum(1 << NUMBERS[name] for name in values("CapabilityBoundingSet"))
        assert int(process["bounding"], 16) == expected
        assert process["no new privileges"] == "1"
        assert process["seccomp"] == "2"

    def test_mounts_of_the_unit_are_visible_to_the_runtime(self, seen: dict[str, Any]) -> None:
        assert seen["process"]["mounts are the host's"] == "True"
        assert seen["files"] == {"tmpfs": "tmpfs\n", "owned": "3000 2777\n", "downward": seen["pod"]}
        assert seen["mounts left"] == []

    def test_containers_outlive_an_agent_that_is_killed_hangs_or_is_restarted(
        self, seen: dict[str, Any]
    ) -> None:
        assert seen["after"] == {"killed": True, "hung": True, "restarted": True}
        assert int(seen["result"]) == 2
        assert seen["stopped"] == {"ActiveState": "inactive", "Result": "success"}


def test_every_capability_and_restriction_is_explained() -> None:
    text = (ROOT / "docs/install.md").read_text()
    unexplained = [name for name in values("CapabilityBoundingSet") if f"`{name}`" not in text]
    assert unexplained == []
    named = {key for key, _ in settings() if key not in {"Description", "Documentation", "WantedBy"}}
    assert {key for key in named if f"`{key}" not in text} == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)")
def test_systemd_rates_it_as_the_documents_say() -> None:
    documented = re.search(
        r"`systemd-analyze security` of systemd (\d+) rates it ([\d.]+)",
        (ROOT / "docs/install.md").read_text(),
    )
    assert documented is not None
    version = subprocess.run(
        ["systemd-analyze", "--version"], check=True, capture_output=True, text=True
    ).stdout
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT)]
    rating = re.search(
        r"exposure level for \S+: ([\d.]+)",
        subprocess.run(command, check=False, capture_output=True, text=True).stdout,
    )
    assert rating is not None
    if version.split()[1] == documented[1]:
        assert rating[1] == documented[2]
    else:  # others weigh other settings
        assert float(rating[1]) < 7.0
