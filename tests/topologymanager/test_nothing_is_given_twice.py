"""No CPU is two containers' at once, or exclusive and shared, and no memory is promised twice.

Histories of random machines: CPUs that are offline, NUMA nodes without CPUs or without memory, caches of
unequal size; pods that come and go, agents that restart or die at a step of a state file, disks that fail,
CPUs that are unplugged and plugged in, memory that changes between two agents.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput
from engine.cpumanager.topology import Processor
from engine.memorymanager.state import NodeMemory
from tests.topologymanager.machine_rig import MIB, World, pod_of, reserve

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
OPTIONS = [
    {},
    {"full-pcpus-only": "true"},
    {"strict-cpu-reservation": "true"},
    {"prefer-align-cpus-by-uncorecache": "true"},
    {"distribute-cpus-across-numa": "true"},
    {"distribute-cpus-across-cores": "true"},
    {"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"},
]
POLICIES = ["none", "best-effort", "restricted", "single-numa-node"]
GATES = (
    "CPUManagerPolicyAlphaOptions",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
)
RESERVED = 64


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[Processor], list[NodeMemory]]:
    """Online CPUs of machines whose siblings, cores and whole nodes may be offline, and the nodes' memory."""
    sockets, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    caches = draw(st.lists(st.integers(0, 2), min_size=cores, max_size=cores))
    present = st.sampled_from([True, True, True, False])
    found, cpu = [], 0
    for thread in range(threads):
        for socket in range(sockets):
            for node in range(nodes):
                for core in range(cores):
                    place = (node * cores + core, socket * 3 + caches[core], socket, socket * nodes + node)
                    if thread == core == node == 0 or draw(present):
                        found.append(Processor(cpu, *place))
                    cpu += 1
    sizes = draw(
        st.lists(
            st.sampled_from([0, 256, 512, 768]), min_size=sockets * nodes + 1, max_size=sockets * nodes + 2
        )
    )
    sizes[0] = sizes[0] or 512
    return found, [NodeMemory(node, size * MIB) for node, size in enumerate(sizes)]


KINDS = st.sampled_from(["init", "sidecar", "main", "main"])
PODS = st.lists(
    st.tuples(KINDS, st.integers(0, 5), st.sampled_from([32, 128, 300, 700])), min_size=1, max_size=4
)
NUMBERS = st.integers(0, 40)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), PODS),
        st.tuples(st.just("remove"), NUMBERS),
        st.tuples(st.just("resize"), st.tuples(NUMBERS, st.integers(-2, 3), st.sampled_from([-16, 0, 100]))),
        st.tuples(st.sampled_from(["crash soon", "disk fails soon"]), st.integers(1, 5)),
        st.tuples(
            st.sampled_from(["restart", "unplug", "plug", "unplug and restart", "memory changes"]), NUMBERS
        ),
    ),
    max_size=12,
)


async def apply_event(world: World, number: int, what: str, argument: Any) -> None:
    """Apply one event. Raises `InvalidInput` if the machine, as it is now, cannot be used."""
    online = [one.cpu for one in world.every if one.cpu not in world.offline]
    if what == "admit":
        await world.admit(pod_of(f"p{number}", [*argument, ("main", 0, 16)]))
    elif what == "remove" and world.pods:
        await world.remove(list(world.pods)[argument % len(world.pods)])
    elif what == "resize" and world.pods:
        which, change, mebibytes = argument
        await world.resize(list(world.pods)[which % len(world.pods)], change, mebibytes)
    elif what == "crash soon":
        world.crash_at = argument
    elif what == "disk fails soon":
        world.fail_at = argument
    elif what == "plug":
        world.offline.clear()
        await world.admit(pod_of(f"p{number}", [("main", 1, 16)]))
    elif what.startswith("unplug") and len(online) > 1:
        world.offline.add(online[1:][argument % (len(online) - 1)])
        if what != "unplug":
            await world.restart()
        await world.admit(pod_of(f"p{number}", [("main", 1, 16)]))
    elif what == "memory changes":
        size = (0, 256, 512, 768)[argument % 4] * MIB
        changed = 1 + argument % (len(world.memory) - 1)
        world.memory = [NodeMemory(n.node, size) if n.node == changed else n for n in world.memory]
        world.unclaimed[changed] = size
        await world.restart()
    elif what == "restart":
        await world.restart()


@contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory in memory, if there is one; it need not outlive a power cut."""
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def configuration(
    memory: list[NodeMemory], options: dict[str, str], policy: str, scope: str
) -> KubeletConfiguration:
    return KubeletConfiguration(
        cpu_manager_policy="static",
        cpu_manager_policy_options=options,
        memory_manager_policy="Static",
        reserved_memory=reserve(memory, RESERVED),
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        topology_manager_policy_options={"max-allowable-numa-nodes": "16"},
        feature_gates=dict.fromkeys(GATES, True),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(
    machines(),
    st.sampled_from(OPTIONS),
    st.sampled_from(POLICIES),
    st.sampled_from(["container", "pod"]),
    EVENTS,
)
def test_random_histories(
    machine: tuple[list[Processor], list[NodeMemory]],
    options: dict[str, str],
    policy: str,
    scope: str,
    events: list[Any],
) -> None:
    processors, memory = machine

    async def history(root: Path) -> None:
        world = World(root, configuration(memory, options, policy, scope), processors, memory)
        try:
            await world.start()
            for number, (what, argument) in enumerate(events):
                await apply_event(world, number, what, argument)
                world.check()
        except InvalidInput:
            reject()  # too many of these fail the test: most of the machines can be used
        await world.end()

    with directory() as root:
        asyncio.run(history(root))


def test_an_agent_may_die_and_the_disk_may_fail_at_every_step_of_its_state_files() -> None:
    """Run the same history once for each step at which it can be interrupted."""
    processors = [Processor(cpu, cpu // 2, cpu // 4, cpu // 4, cpu // 4) for cpu in range(12) if cpu != 7]
    memory = [NodeMemory(0, 512 * MIB), NodeMemory(1, 512 * MIB), NodeMemory(2, 0), NodeMemory(3, 256 * MIB)]
    events: list[tuple[str, Any]] = [
        ("admit", [("init", 2, 300), ("sidecar", 1, 32), ("main", 2, 128)]),
        ("admit", [("main", 3, 700)]),
        ("restart", 0),
        ("resize", (0, 1, 32)),
        ("resize", (0, -1, -16)),
        ("unplug", 4),
        ("remove", 0),
        ("memory changes", 3),
        ("admit", [("main", 2, 300)]),
        ("plug", 0),
        ("unplug and restart", 6),
        ("remove", 0),
    ]

    async def history(root: Path, crash_at: int = 0, fail_at: int = 0) -> World:
        config = configuration(memory, {}, "best-effort", "container")
        world = World(root, config, processors, list(memory), crash_at=crash_at, fail_at=fail_at)
        await world.start()
        for number, (what, argument) in enumerate(events):
            await apply_event(world, number, what, argument)
            world.check()
        await world.end()
        return world

    with directory() as root:
        (root / "whole").mkdir()
        steps = asyncio.run(history(root / "whole")).steps
        assert steps > 30
        for at in range(1, steps + 1):
            for fault in ("crash_at", "fail_at"):
                (root / f"{fault}{at}").mkdir()
                world = asyncio.run(history(root / f"{fault}{at}", **{fault: at}))
                assert world.crashes == (fault == "crash_at")
                assert (world.crash_at, world.fail_at) == (0, 0)
