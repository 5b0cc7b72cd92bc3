"""A whole shadow between a kubelet that a test makes up and the hollow runtime."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.api.kubengine_config import RecordSection
from engine.api.quantity import Quantity
from engine.record.reader import Record
from engine.record.writer import RecordWriter
from engine.runtime.hollow import HollowRuntime
from engine.shadow.judge import REPEATABLE
from engine.shadow.kubelet_reader import KubeletAccess
from engine.shadow.machine_facts import with_devices
from engine.shadow.replay import replay_shadow
from engine.shadow.watch import Shadow, ShadowOptions
from tests.shadow.fake_kubelet import Fake
from tests.shadow.observations import node


def say(fake: Fake, *names: str) -> None:
    """Let the kubelet show pods that wait for their containers."""
    pods = [
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"},
            "status": {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"},
        }
        for name in names
    ]
    memory = {"availableBytes": 10**9, "workingSetBytes": 10**8}
    used = [{"podRef": {"uid": f"uid-{name}"}, "memory": {"workingSetBytes": 7}} for name in names]
    config = {"cgroupDriver": "systemd", "evictionHard": {"memory.available": "100Mi"}}
    for path, document in {
        "/pods": {"items": pods},
        "/configz": {"kubeletconfig": config},
        "/stats/summary": {"node": {"memory": memory}, "pods": used},
    }.items():
        fake.answers[path] = (200, json.dumps(document).encode())
    fake.answers["/metrics"] = (200, b"process_start_time_seconds 1.5\n")


@pytest.fixture
async def shadow(fake: Fake, tmp_path: Path) -> AsyncIterator[Shadow]:
    runtime = HollowRuntime(tmp_path / "cri.sock")
    await runtime.start()
    section = RecordSection(directory=str(tmp_path / "record"))
    options = ShadowOptions(
        KubeletAccess(fake.url), tmp_path, runtime=f"unix://{tmp_path}/cri.sock", record=section
    )
    shadow = Shadow(options)
    yield shadow
    await shadow.close()
    await runtime.stop()


async def test_its_record_is_played_again(shadow: Shadow, fake: Fake, tmp_path: Path) -> None:
    for names in (["a"], ["a", "b"], ["b"]):
        say(fake, *names)
        await shadow.compare()
    fake.answers["/pods"] = (503, b"")
    await shadow.compare()
    say(fake, "b")
    await shadow.compare()
    await shadow.close()
    found = replay_shadow(tmp_path / "record")
    assert (found.mismatches, found.gaps) == ([], [])
    judged = [row.name for row in Record(tmp_path / "record").rows() if row.stream == "judged"]
    assert found.decisions == sum(kind in REPEATABLE for kind in judged) > 2
    assert (shadow.observations, shadow.skipped, found.name) == (5, 1, "n1")


async def test_a_configuration_that_stays_is_the_same_whatever_driver_the_runtime_names(
    shadow: Shadow, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def driver(shadow: Shadow, configured: str) -> str:
        return "cgroupfs"

    monkeypatch.setattr("engine.shadow.watch.CONFIG_EVERY", 1)
    monkeypatch.setattr(Shadow, "_driver", driver)
    say(fake, "a")
    await shadow.compare()
    assert shadow.last is not None
    first = shadow.last.config
    await shadow.compare()
    # The same object: what has been under pressure since when is kept with it.
    assert shadow.last.config is first


async def test_options_with_which_nothing_can_be_observed_are_an_error_at_once(
    shadow: Shadow, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "next.yaml").write_text("kind: Service\n")
    for name in ("config", "next_config"):
        with pytest.raises(InvalidInput, match="Service"):
            Shadow(replace(shadow.options, **{name: tmp_path / "next.yaml"}))
    say(fake, "a")
    # The read-only port shows no configuration, and no file was named.
    shown = fake.answers.pop("/configz")
    with pytest.raises(InvalidInput, match="--config"):
        await shadow.compare()
    # Later, it is one of the things that a node does.
    fake.answers["/configz"] = shown
    await shadow.compare()
    fake.answers.pop("/configz")
    shadow._sources = None
    await shadow.compare()
    assert shadow.skipped == 1


def test_devices_count_before_the_node_shows_them_again() -> None:
    one = node(cpu="2")
    assert with_devices(one, {}) is one
    found = with_devices(one, {"example.com/gpu": ["a", "b"], "example.com/none": None})
    assert found.status.allocatable["example.com/gpu"] == Quantity.parse("2")
    assert with_devices(found, {"example.com/gpu": ["a"]}) is found


async def test_a_full_disk_costs_the_record_only(
    shadow: Shadow, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: list[bool] = []
    append = RecordWriter._append

    def refuse(writer: Any, block: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        append(writer, block)

    monkeypatch.setattr("engine.record.writer.RecordWriter._append", refuse)
    monkeypatch.setattr("engine.record.writer.MOST_WAITING", 8)
    for number in range(12):
        full[:] = [True] if 2 <= number < 8 else []
        say(fake, "a", f"b{number}")
        await shadow.compare()
    await shadow.close()
    found = replay_shadow(tmp_path / "record")
    # It is played again from the state that follows the loss.
    assert found.mismatches == []
    assert any("rows were lost: No space left on device" in gap for gap in found.gaps)
    states = [row.time for row in Record(tmp_path / "record").rows() if row.name == "state"]
    assert len(states) == 2
    assert (shadow.observations, shadow.skipped) == (12, 0)
