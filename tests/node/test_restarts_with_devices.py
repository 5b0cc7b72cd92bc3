"""Agents and machines restart under pods that hold every device there is; the plugin comes back late, and at
first without its devices. Nobody is refused: all run again, with the devices that they had.

`KUBENGINE_RESTARTS` says how many restarts (`make chaos`: 1,000), `KUBENGINE_CRASH_SEED` which.
"""

from __future__ import annotations

import os
import random

from tests.node.model_world import World, world

RESTARTS = int(os.environ.get("KUBENGINE_RESTARTS", "12"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
DEVICES = 3
RECOVERY = 600.0
"""Longer than every back-off."""


def fill(world: World) -> None:
    for name in "abc"[:DEVICES]:
        world.write(name, cpu=100, memory=1 << 20, gpus=1, port=0, never=False, critical=False)


def restart(world: World, chance: random.Random) -> None:
    world.agent_dies()
    if chance.random() < 0.5:
        world.machine_restarts()
    elif chance.random() < 0.5:
        world.plugin_dies()
    world.start_agent()
    world.pass_time(chance.uniform(0, 3))
    if world.devices is None:
        world.pass_time(chance.uniform(0, 30))
        world.plugin_comes(chance.choice([0, DEVICES]))
        world.pass_time(chance.uniform(0, 5))
        world.plugin_lists(DEVICES)


def run_again(world: World) -> bool:
    until = world.clock[0] + RECOVERY
    while world.clock[0] < until:
        world.pass_time(5)
        if len(world.running()) == DEVICES:
            return True
    return False


def test_a_restart_rejects_no_pod():
    chance = random.Random(SEED)
    with world() as here:
        here.plugin_comes(DEVICES)
        here.start_agent()
        here.pass_time(0.05)
        fill(here)
        assert run_again(here)
        for _ in range(RESTARTS):
            restart(here, chance)
            assert run_again(here), [pod.status for pod in here.node.pods()]
            here.check()
            refused = [event for event in here.node.recorder if event.reason == "UnexpectedAdmissionError"]
            assert not refused
