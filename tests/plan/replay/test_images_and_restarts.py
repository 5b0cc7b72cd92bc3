"""What a live agent's image collections and restarts were decided by is in its record, and played again they
are the same; other thresholds and delays change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import CrashLoopBackOffConfig
from engine.api.duration import Duration
from engine.api.errors import Refused
from engine.api.kubengine_config import RecordSection
from engine.images.collection import FilesystemReading
from engine.images.manager import ImageManager
from engine.plan.replay.answer import replay_answer
from engine.plan.replay.compared import not_repeated
from engine.plan.replay.decided import IMAGES, RESTART, Replayed, recorded_decisions
from engine.plan.replay.recorded import NodeRecording, read_recorded
from engine.plan.replay.replay import NodeReplay
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.plan.replay.test_replay import replace_config, replays_of_rests, state_in_each_segment
from tests.waiting import eventually

MIB = 1024 * 1024
WHOLE = 1000 * MIB
HOLLOW = "runtime.kubengine.dev/"
STUCK = "example.com/stuck:1"


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HollowRuntime]:
    """Run a runtime whose images fill a file system of 1000 MiB, and which refuses to remove one image."""
    runtime = HollowRuntime(tmp_path / "cri.sock")
    remove = runtime.images.remove

    async def read(path: Path) -> FilesystemReading:
        return FilesystemReading(WHOLE, WHOLE - sum(image.size for image in runtime.images.list()))

    async def remove_unless_stuck(reference: str) -> None:
        image = runtime.images.resolve(reference)
        if image is not None and STUCK in image.repo_tags:
            raise Refused("is stuck")
        await remove(reference)

    monkeypatch.setattr("engine.images.runtime_store.read_filesystem_in_time", read)
    monkeypatch.setattr(runtime.images, "remove", remove_unless_stuck)
    await runtime.start()
    yield runtime
    await runtime.stop()


@pytest.fixture
async def rig(tmp_path: Path, runtime: HollowRuntime) -> AsyncIterator[Rig]:
    rig = Rig(
        tmp_path,
        tmp_path / "cri.sock",
        image_gc_high_threshold_percent=60,
        image_gc_low_threshold_percent=40,
        image_minimum_gc_age=Duration(0.02),
        crash_loop_back_off=CrashLoopBackOffConfig(max_container_restart_period=Duration(1)),
    )
    rig.section.record = RecordSection(directory=str(tmp_path / "record"))
    yield rig
    await rig.close()


async def live(rig: Rig, runtime: HollowRuntime) -> None:
    """Let a node collect images three times, once for eviction, and restart containers that fail."""
    node = await rig.start()
    images = node.components["images"]
    assert isinstance(images, ImageManager)
    probe = {"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1}
    unhealthy = {"containers": [container(livenessProbe=probe)], "terminationGracePeriodSeconds": 1}
    rig.write("unhealthy", unhealthy, annotations={f"{HOLLOW}exec-exit-code": "1"})
    fails = {f"{HOLLOW}exit-after.c": "50ms", f"{HOLLOW}exit-code.c": "3"}
    rig.write("fails", {"containers": [container("c"), container("stays")]}, annotations=fails)
    for number in range(5):
        runtime.images.add(f"example.com/old:{number}", size=90 * MIB)
    runtime.images.add(STUCK, size=60 * MIB)
    await collect(images)
    await asyncio.sleep(1.1)  # a shorter difference of times is none
    runtime.images.add("example.com/new:1", size=150 * MIB)
    await collect(images)
    runtime.images.add("example.com/new:2", size=200 * MIB)
    runtime.images.add("example.com/old:0", size=90 * MIB)
    await collect(images)
    await images.delete_unused()
    await eventually(lambda: restarts(node.pods(), "fails") >= 4, 30)
    await eventually(lambda: restarts(node.pods(), "unhealthy") >= 2, 30)
    await rig.stop()


async def collect(images: ImageManager) -> None:
    """Collect once what is there has its least age."""
    await images.detect()
    await asyncio.sleep(0.05)
    await images.garbage_collect()


def restarts(pods: Sequence[Any], name: str) -> int:
    return max(
        (
            status.restart_count
            for pod in pods
            if pod.metadata.name.startswith(name)
            for status in pod.status.container_statuses or ()
        ),
        default=0,
    )


def outcomes(found: Sequence[Replayed], kind: str) -> list[tuple[str, str, str]]:
    return [(one.pod, one.part, one.outcome) for one in found if one.kind == kind]


def rows_of(node: NodeRecording, config: Any) -> list[tuple[str, str]]:
    return [(row["decision"], row["object"]) for row in replay_answer([node], config).table.to_pylist()]


async def test_any_part_that_is_left_gives_the_agents_restarts(
    rig: Rig, runtime: HollowRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_in_each_segment(monkeypatch)
    await live(rig, runtime)
    waits = [
        {one.outcome for one in found if one.kind == RESTART}
        for found in replays_of_rests(tmp_path / "record")
    ]
    assert len(waits) > 3
    # Delays that grew before are known.
    assert any("restarted, back-off 1 s" in outcomes for outcomes in waits[1:])


async def test_collections_and_restarts_are_repeated(
    rig: Rig, runtime: HollowRuntime, tmp_path: Path, run_plan: Callable[..., Any]
) -> None:
    await live(rig, runtime)
    node = read_recorded(tmp_path / "record")
    recorded, found = list(recorded_decisions(node)), NodeReplay(node).play()
    assert not_repeated(recorded, found) == []
    assert outcomes(found, IMAGES) == outcomes(recorded, IMAGES)
    assert sorted(outcomes(found, RESTART)) == sorted(outcomes(recorded, RESTART))
    assert {name for name, _, _ in outcomes(found, RESTART)} == {"default/fails-n1", "default/unhealthy-n1"}
    collected = [name for name, _, _ in outcomes(found, IMAGES)]
    assert collected.count("example.com/old:0") == 2
    assert "example.com/new:2" in collected
    assert STUCK not in collected

    # Thresholds that are never reached keep what the periodic collections removed.
    higher = replace_config(rig.config, image_gc_high_threshold_percent=99)
    kept = [one for one in rows_of(node, higher) if one[0] == "kept"]
    assert ("kept", "example.com/old:0") in kept
    # The first collection has nothing to do; with a lower threshold it has.
    lower = replace_config(rig.config, image_gc_high_threshold_percent=45, image_gc_low_threshold_percent=30)
    assert ("earlier", "example.com/old:0") in rows_of(node, lower)
    off = replace_config(rig.config, image_gc_high_threshold_percent=100)
    assert {"kept", "later"} & {decision for decision, _ in rows_of(node, off)}

    # A longer delay leaves time for fewer restarts.
    slower = replace_config(
        rig.config, crash_loop_back_off=CrashLoopBackOffConfig(max_container_restart_period=Duration(3))
    )
    rows = replay_answer([node], slower).table.to_pylist()
    fewer = {row["object"]: row["amount"] for row in rows if row["decision"] == "restarts"}
    times = len([one for one in recorded if (one.kind, one.pod) == (RESTART, "default/fails-n1")])
    assert 0 < fewer["default/fails-n1/c"] < times
    done = run_plan("replay", str(tmp_path / "record"), "--explain", "--fail-on", "gap,mismatch")
    assert done.returncode == 0, done.stdout
