"""Decides which CPUs a pod has after an in-place resize (KEP-5554). Pure; `CpuManager` applies the answer.

A container that grows keeps what it has and gets CPUs near it. One that shrinks keeps the CPUs that it
started with, its baseline: a program that reads its affinity once never loses one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_

from engine.api import cpu_set as cpu_sets
from engine.api.pod import Container, Pod
from engine.api.resources import CPU
from engine.cpumanager.nearest import nearest_cpus
from engine.cpumanager.static_policy import StaticCpuPolicy, take_by_topology
from engine.topologymanager.policy import Hint, Hints
from engine.topologymanager.provider import CannotResize

Align = Callable[[Container | None, Mapping[str, Hints]], Hint | None]
"""Merges hints of CPUs with what the container, or the whole pod for None, holds of other resources. Returns
None where the topology policy does not allow the result."""


def resized_cpus(
    policy: StaticCpuPolicy, old: Pod, new: Pod, align: Align, *, whole_pod: bool
) -> dict[str, int]:
    """Return the CPUs of each container that changes them in the resize. Raises `CannotResize`.

    With `whole_pod` the pod's containers are aligned together.
    """
    state, uid = policy.state, new.uid
    if uid in state.pods and policy.pod_count(new) != state.pods[uid].bit_count():
        raise CannotResize("The CPUs of pod-level resources cannot change while the pod runs", never=True)
    before: dict[str, int] = {}
    counts: dict[str, int] = {}
    growing: list[Container] = []
    found: dict[str, int] = {}
    freed = 0
    for was, container in zip(old.all_containers, new.all_containers, strict=True):
        if container in new.init_containers and not container.is_sidecar:
            continue
        name, held, count = container.name, state.held(uid, container.name), policy.count(new, container)
        if bool(policy.count(old, was)) != bool(count):
            raise CannotResize(
                f"Container {name} cannot change between exclusive and shared CPUs while it runs", never=True
            )
        if held is None or not count:
            continue
        if uid in state.pods and count != held.bit_count():
            raise CannotResize(f"Container {name} shares the CPUs of its pod, which are divided", never=True)
        before[name], counts[name] = held, count
        if count < held.bit_count():
            found[name] = _shrunk(policy, name, held, state.baseline(uid, name) or held, count)
            freed |= held & ~found[name]
        elif count > held.bit_count():
            growing.append(container)
    now = before | found
    hint: Hint | None = None
    if growing and whole_pod:
        hint = _place(
            policy, align, None, _union(now.values()), policy.available | freed, sum(counts.values())
        )
    for container in growing:
        name = container.name
        free = (policy.available | policy.reusable(new, container) | freed) & ~_union(now.values())
        if not whole_pod:
            hint = _place(policy, align, container, before[name], free, counts[name])
        assert hint is not None
        more = nearest_cpus(policy, before[name], free, counts[name] - before[name].bit_count(), hint)
        found[name] = now[name] = before[name] | more
    return found


def fewer_than_requested(policy: StaticCpuPolicy, pod: Pod) -> dict[str, int]:
    """Return the CPUs of each running container that has exclusive ones, but fewer than it requests."""
    found = {}
    for container in pod.all_containers:
        ends = container in pod.init_containers and not container.is_sidecar
        held = policy.state.held(pod.uid, container.name)
        if not ends and held is not None and held.bit_count() < policy.count(pod, container):
            found[container.name] = held
    return found


def _shrunk(policy: StaticCpuPolicy, name: str, held: int, baseline: int, count: int) -> int:
    """Return the baseline and as many of the remaining CPUs as are wanted."""
    if count < baseline.bit_count():
        raise CannotResize(
            f"Container {name} started with the exclusive CPUs {cpu_sets.text(baseline)} and cannot shrink "
            f"to {count} CPUs while it runs",
            never=True,
        )
    _check_cores(policy, name, count)
    return baseline | take_by_topology(
        policy.topology, policy.options, held & ~baseline, count - baseline.bit_count()
    )


def _check_cores(policy: StaticCpuPolicy, name: str, count: int) -> None:
    threads = policy.topology.threads_per_core
    if policy.options.full_pcpus and count % threads:
        raise CannotResize(
            f"Container {name} requests {count} CPUs, which is no multiple of the {threads} CPUs of a core",
            never=True,
        )


def _place(
    policy: StaticCpuPolicy, align: Align, container: Container | None, held: int, free: int, count: int
) -> Hint:
    """Return the NUMA nodes from which `count` CPUs, including the held ones, come. Raises `CannotResize`."""
    name = f"Container {container.name}" if container is not None else "The pod"
    if container is not None:
        _check_cores(policy, container.name, count)
    free &= ~held
    possible = policy.allocatable & ~held
    missing = count - held.bit_count()
    if missing > possible.bit_count():
        most = policy.allocatable.bit_count()
        raise CannotResize(f"{name} needs {count} exclusive CPUs, and the node has {most}", never=True)
    if missing > free.bit_count():
        raise CannotResize(
            f"{name} needs {missing} more exclusive CPUs, and {free.bit_count()} are free", never=False
        )
    hint = align(container, {CPU: policy.hints(free, held, count)})
    if hint is None:
        never = align(container, {CPU: policy.hints(possible, held, count)}) is None
        text = "no" if never else "at present no"
        raise CannotResize(
            f"{name} has CPUs {cpu_sets.text(held)}, and {text} {missing} more are aligned with them as the "
            "topology manager's policy requires",
            never=never,
        )
    return hint


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)
