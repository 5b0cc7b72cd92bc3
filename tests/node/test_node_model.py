"""A whole node in a random world: between any two steps pods come, go and are edited, and agent, plugin and
runtime die and come back. No device is allocated twice or lost, nothing is overcommitted, no end is undone, a
restart stops nothing that runs, and in the end no pod waits, or is rejected, that fits."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.node.model_world import MEMORY, World

NAMES = ["a", "b", "m", "z"]
STEPS = st.integers(0, 60)
QUIET_SECONDS = 400.0
"""Longer than every back-off and allowance."""

pods = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from([100, 2500]),
        "memory": st.sampled_from([1 << 20, MEMORY * 3 // 5]),
        "gpus": st.sampled_from([0, 1, 2]),
        "port": st.sampled_from([0, 0, 80]),
        "never": st.sampled_from([False, False, True]),
        "critical": st.sampled_from([False, False, False, True]),
    }
)


class TakingIn(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.plugin_comes(3)
        self.world.start_agent()
        self.world.pass_time(1)  # a pod that asks for what no plugin is known to have had runs without

    @rule(name=st.sampled_from(NAMES), pod=pods, steps=STEPS)
    def pod_comes_or_is_edited(self, name, pod, steps):
        self.world.write(name, **pod)
        self.world.pass_time(0.03)
        self.world.steps(steps)

    @precondition(lambda self: self.world.names())
    @rule(which=st.integers(0, 9), steps=STEPS)
    def pod_is_unwanted(self, which, steps):
        names = self.world.names()
        self.world.delete(names[which % len(names)])
        self.world.steps(steps)

    @precondition(lambda self: self.world.running())
    @rule(which=st.integers(0, 9), code=st.sampled_from([0, 1]), steps=STEPS)
    def container_ends(self, which, code, steps):
        running = self.world.running()
        self.world.ends(running[which % len(running)], code)
        self.world.steps(steps)

    @rule(steps=st.integers(0, 300))
    def agent_dies_and_comes_back(self, steps):
        self.world.agent_dies()
        self.world.start_agent()
        self.world.steps(steps)

    @rule()
    def agent_dies(self):
        self.world.agent_dies()

    @precondition(lambda self: self.world.node is None)
    @rule()
    def what_was_accepted_is_lost(self):
        self.world.remove_accepted_records()

    @precondition(lambda self: self.world.devices is not None)
    @rule(steps=STEPS)
    def plugin_dies(self, steps):
        self.world.plugin_dies()
        self.world.steps(steps)

    @rule(count=st.sampled_from([3, 1, 0]), steps=STEPS)
    def plugin_comes(self, count, steps):
        self.world.plugin_comes(count)
        self.world.steps(steps)

    @precondition(lambda self: self.world.runtime_answers)
    @rule(steps=STEPS)
    def runtime_dies(self, steps):
        self.world.runtime_dies()
        self.world.steps(steps)

    @precondition(lambda self: not self.world.runtime_answers)
    @rule(steps=STEPS)
    def runtime_comes(self, steps):
        self.world.runtime_answers = True
        self.world.steps(steps)

    @rule(seconds=st.sampled_from([0.0, 0.05, 1.6, 12.0]))
    def time_passes(self, seconds):
        self.world.pass_time(seconds)

    @rule()
    def all_is_well_and_the_agent_starts_again(self):
        world = self.world
        world.runtime_answers = True
        world.plugin_comes(3)
        if world.node is None or (world.starting is not None and world.starting.done()):
            world.agent_dies()
            world.start_agent()
        world.pass_time(QUIET_SECONDS)
        world.check_settled()
        before = {container.id for container in world.running()}
        world.agent_dies()
        world.start_agent()
        world.pass_time(QUIET_SECONDS)
        world.check_settled()
        assert before <= {container.id for container in world.running()}, "a restart stopped what ran"

    @invariant()
    def nothing_happened_that_must_not(self):
        self.world.check()

    def teardown(self):
        self.world.close()


TakingIn.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestTakingIn = TakingIn.TestCase
