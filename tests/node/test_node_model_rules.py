"""The model finds errors: with one rule of admission switched off, a short story in its world fails.

Each story is a possible run of `test_node_model`, with the same steps, and passes while all rules apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from engine.admission.admitted import NodeAllocations
from engine.admission.manager import Admission
from engine.devices.checkpoint_file import CheckpointFile
from engine.devices.state import DeviceState
from engine.node.pod.life import TRANSITIONS, Action, LifeEvent, LifeState
from engine.node.pod.records import AcceptedSpecs, TerminationRecords
from engine.node.pod_admission import PodAdmission
from engine.node.pods import PodManager
from engine.node.sync.sync import PodSync
from engine.node.sync.worker import PodWorker
from tests.node.model_world import World

SMALL: dict[str, Any] = {
    "cpu": 100, "memory": 1 << 20, "gpus": 0, "port": 0, "never": False, "critical": False,
}  # fmt: skip
LARGE = {**SMALL, "cpu": 2500, "port": 80}
DEVICES = {**SMALL, "gpus": 2}
"""Of neither have two place on the node."""


def runs(world: World, name: str, seconds: float = 9, **facts: Any) -> None:
    world.write(name, **facts)
    world.pass_time(seconds)
    world.check()
    assert [c for c in world.running() if c.sandbox.config.metadata.name == f"{name}-n1"], f"{name} runs"


def settles(world: World) -> None:
    world.pass_time(20)
    world.check()
    world.check_settled()


def edit(world: World) -> None:
    runs(world, "a", **SMALL)
    runs(world, "a", **SMALL)
    settles(world)


def rival_of_one_that_leaves(world: World) -> None:
    runs(world, "a", **LARGE)
    world.delete("a")
    runs(world, "b", **LARGE)
    settles(world)


def restart_with_a_newcomer(world: World) -> None:
    runs(world, "m", **LARGE)
    world.agent_dies()
    world.write("a", **LARGE)
    world.start_agent()
    settles(world)


def restart_with_devices(world: World) -> None:
    runs(world, "m", **DEVICES)
    world.agent_dies()
    world.write("a", **DEVICES)
    world.start_agent()
    settles(world)


def rival_for_devices(world: World) -> None:
    runs(world, "a", **DEVICES)
    world.delete("a")
    runs(world, "b", **DEVICES)
    settles(world)


def restart_without_a_manifest(world: World) -> None:
    runs(world, "m", **LARGE)
    world.agent_dies()
    world.delete("m")
    world.write("a", **LARGE)
    world.start_agent()
    settles(world)
    assert world.running(), "a has its place"


def restart_after_a_kubelet(world: World) -> None:
    runs(world, "m", **LARGE)
    world.agent_dies()
    world.remove_accepted_records()
    world.delete("m")
    world.write("a", **LARGE)
    world.start_agent()
    settles(world)


def two_at_once(world: World) -> None:
    world.write("a", **LARGE)
    world.write("b", **LARGE)
    settles(world)


def rejected_until_there_is_room(world: World) -> None:
    runs(world, "a", **LARGE)
    world.write("b", **LARGE)
    settles(world)
    world.delete("a")
    settles(world)


def preempted_then_restarted(world: World) -> None:
    runs(world, "a", **LARGE)
    runs(world, "c", **{**LARGE, "port": 0, "critical": True})
    settles(world)
    world.agent_dies()
    world.delete("c")
    world.start_agent()
    settles(world)


def dies_while_it_takes_in(world: World) -> None:
    runs(world, "a", **{**SMALL, "gpus": 1})
    settles(world)


STORIES = [
    edit,
    rival_of_one_that_leaves,
    restart_with_a_newcomer,
    restart_with_devices,
    rival_for_devices,
    restart_without_a_manifest,
    restart_after_a_kubelet,
    two_at_once,
    rejected_until_there_is_room,
    preempted_then_restarted,
    dies_while_it_takes_in,
]

Patch = pytest.MonkeyPatch


def in_the_way_is_off(patch: Patch) -> None:
    patch.setattr(NodeAllocations, "in_the_way", lambda *_: [])


def who_leaves_is_forgotten(patch: Patch) -> None:
    patch.setattr(PodAdmission, "terminating", lambda self, uid: self._admission.remove(uid))


def what_runs_is_not_counted(patch: Patch) -> None:
    patch.setattr(PodAdmission, "adopt", lambda *_: None)


def what_was_accepted_is_not_read(patch: Patch) -> None:
    patch.setattr(AcceptedSpecs, "read", lambda *_: None)
    patch.setattr(PodWorker, "wait_at_rest", _at_once)


def unmeasured_pods_are_not_waited_for(patch: Patch) -> None:
    patch.setattr(PodWorker, "wait_at_rest", _at_once)


def namesakes_are_not_waited_for(patch: Patch) -> None:
    patch.setattr(PodWorker, "wait_gone", _at_once)


def who_is_unwanted_gives_back_at_once(patch: Patch) -> None:
    for state in LifeState:
        if (state, LifeEvent.REMOVE) in TRANSITIONS:
            after = (LifeState.LEAVING, (Action.INTERRUPT, Action.LEAVE, Action.RELEASE))
            patch.setitem(TRANSITIONS, (state, LifeEvent.REMOVE), after)


def stopped_before_the_runtime_says_so(patch: Patch) -> None:
    stop, tasks = PodSync.sync_terminating, []

    async def later(self: PodSync) -> None:
        tasks.append(asyncio.ensure_future(stop(self)))

    patch.setattr(PodSync, "sync_terminating", later)


def the_judged_are_not_counted(patch: Patch) -> None:
    patch.setattr(NodeAllocations, "expect_if_it_fits", lambda *_: False)
    patch.setattr(NodeAllocations, "expect", lambda *_: None)


def the_rejected_are_not_tried_again(patch: Patch) -> None:
    patch.setattr(PodWorker, "retry", lambda _: None)


def nobody_is_told_of_room(patch: Patch) -> None:
    patch.setattr(Admission, "_notify", lambda _: None)


def ends_are_not_read(patch: Patch) -> None:
    patch.setattr(TerminationRecords, "read", lambda *_: None)


def devices_are_not_restored(patch: Patch) -> None:
    patch.setattr(DeviceState, "restore", lambda *_: None)


def the_checkpoint_is_not_waited_for(patch: Patch) -> None:
    async def flush(self: CheckpointFile) -> None:
        self.changed()

    patch.setattr(CheckpointFile, "flush", flush)


def strangers_are_left_alone(patch: Patch) -> None:
    patch.setattr(PodManager, "_end_orphaned_pods", lambda _: None)


async def _at_once(_: Any) -> None: ...


CAUGHT: list[tuple[Callable[[Patch], None], Callable[[World], None]]] = [
    (in_the_way_is_off, rival_of_one_that_leaves),
    (who_leaves_is_forgotten, rival_of_one_that_leaves),
    (what_runs_is_not_counted, restart_with_a_newcomer),
    (what_was_accepted_is_not_read, restart_without_a_manifest),
    (unmeasured_pods_are_not_waited_for, restart_after_a_kubelet),
    (namesakes_are_not_waited_for, edit),
    (who_is_unwanted_gives_back_at_once, rival_for_devices),
    (stopped_before_the_runtime_says_so, rival_of_one_that_leaves),
    (the_judged_are_not_counted, two_at_once),
    (the_rejected_are_not_tried_again, rejected_until_there_is_room),
    (nobody_is_told_of_room, rival_of_one_that_leaves),
    (ends_are_not_read, preempted_then_restarted),
    (devices_are_not_restored, restart_with_devices),
    (the_checkpoint_is_not_waited_for, dies_while_it_takes_in),
    (strangers_are_left_alone, restart_without_a_manifest),
]


def play(story: Callable[[World], None]) -> None:
    with closing(World()) as world:
        world.plugin_comes(3)
        world.start_agent()
        world.pass_time(2)
        story(world)


@pytest.mark.parametrize("story", STORIES)
def test_the_story_holds(story: Callable[[World], None]) -> None:
    play(story)


@pytest.mark.parametrize(("rule_off", "story"), CAUGHT)
def test_the_model_catches(
    rule_off: Callable[[Patch], None], story: Callable[[World], None], monkeypatch: Patch
) -> None:
    rule_off(monkeypatch)
    with pytest.raises(AssertionError):
        play(story)
