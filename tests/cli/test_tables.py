"""What the tables of commands show, and the output in the README."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.cli import eviction, images
from engine.cli.agent.client import AgentClient
from engine.runtime.hollow import HollowRuntime
from engine.server.page.rows import pod_rows
from tests.node_rig import Rig
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = (ROOT / "README.md").read_text().partition("\nnode vm ")[2].partition("\n```")[0]
"""What `make run` shows, below its first line."""
CANDIDATE: dict[str, Any] = {
    "place": 1, "pod": "a/b", "qos": "Burstable", "priority": 0, "usage": None, "request": None, "why": "",
}  # fmt: skip
EVICTION: dict[str, Any] = {
    "thresholds": [], "signals": {}, "conditions": [], "layout": "one disk",
    "first": {"memory": [CANDIDATE], "pids": [CANDIDATE]},
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "names": ["host"], "id": "sha256:0", "size": 0, "firstDetected": 0.0, "lastUsed": None, "inUseBy": [],
    "protected": "",
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "images": [IMAGE], "now": 1.0, "highThresholdPercent": 85, "lowThresholdPercent": 80, "order": "lru",
}  # fmt: skip


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a dict that tests fill with the agent's answers by component."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(AgentClient, "describe", lambda _, component, **__: found[component])
    return found


def test_an_unknown_usage_is_a_dash_for_every_resource(answers: dict[str, Any]) -> None:
    """Not `None` for pids and a dash for memory."""
    answers["eviction"] = EVICTION
    shown = CliRunner().invoke(eviction.command, [], catch_exceptions=False).output
    assert "None" not in shown
    assert [line.split()[4:6] for line in shown.splitlines() if "a/b" in line] == [["-", "-"]] * 2


def test_images_without_a_size_have_no_total(answers: dict[str, Any]) -> None:
    """The embedded runtime's image of the host takes no room: `1 image`, not `1 image, 0`."""
    answers["images"] = IMAGES
    shown = CliRunner().invoke(images.command, [], catch_exceptions=False).output
    assert "\n1 image; collected from" in shown
    answers["images"] = {**IMAGES, "images": [{**IMAGE, "size": 1 << 20}] * 2}
    assert "\n2 images, 2Mi;" in CliRunner().invoke(images.command, [], catch_exceptions=False).output


@pytest.fixture
async def examples(tmp_path: Path) -> AsyncIterator[Rig]:
    """Yield a started node with the example manifests."""
    async with HollowRuntime(tmp_path / "cri.sock") as runtime:
        runtime.images.add("busybox:1")
        rig = Rig(tmp_path, tmp_path / "cri.sock", enable_server=False, healthz_port=0)
        shutil.copytree(ROOT / "examples" / "manifests", rig.manifests, dirs_exist_ok=True)
        await rig.start()
        yield rig
        await rig.close()


async def test_the_readme_shows_what_the_example_prints(examples: Rig) -> None:
    """Its events in the agent's words, and of each pod the containers that count, sidecars included."""
    node = examples.node
    assert node is not None

    def rows() -> dict[str, str]:
        shown = pod_rows(node.pods()).values()
        return {row["name"].removesuffix("-n1"): f"{row['ready']}/{row['of']}" for row in shown}

    lines = [line.split() for line in SAMPLE.splitlines()]
    expected = {line[0].removesuffix("-vm"): line[3] for line in lines if line and line[0].endswith("-vm")}
    assert len(expected) == 3
    await eventually(lambda: rows() == expected)
    (said,) = [line for line in lines if "Started" in line]
    (event, *_) = [event for event in node.recorder if event.reason == "Started"]
    assert said[3:] == event.message.split()
