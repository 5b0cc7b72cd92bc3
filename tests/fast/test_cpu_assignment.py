"""The kernel that chooses CPUs gives what its twin gives, on machines of any shape."""

from __future__ import annotations

from itertools import product
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine._fast.pinning import _cpu_assignment_c as compiled
from engine._fast.pinning import _cpu_assignment_py as plain

Levels = tuple[dict[int, int], dict[int, int], dict[int, int], dict[int, int]]


class Machine(NamedTuple):
    """Hold sets of CPUs as bit masks: those of each core, cache, socket and node by id, and the free ones."""

    levels: Levels
    free: int

    @property
    def cpus(self) -> int:
        return sum(self.levels[0].values())


def grouped(keys: list[int], ids: list[int], numbers: list[int]) -> dict[int, int]:
    """Return the CPUs of each group as bit masks; CPU `numbers[i]` is in the group of `keys[i]`."""
    found: dict[int, int] = {}
    for key, number in zip(keys, numbers, strict=True):
        name = ids[key % len(ids)]
        found[name] = found.get(name, 0) | 1 << number
    return found


@st.composite
def regular(draw: st.DrawFn) -> Machine:
    """Draw a machine of equal cores in caches, nodes and sockets, with some CPUs offline."""
    threads, cores = draw(st.integers(1, 4)), draw(st.integers(1, 64))
    nodes, sockets = draw(st.integers(1, 16)), draw(st.integers(1, 8))
    in_cache = draw(st.integers(1, 16))
    beyond = draw(st.sampled_from([0, 0, 61, 1000]))
    offline = draw(st.sets(st.integers(0, threads * cores - 1), max_size=6))
    online = [cpu for cpu in range(threads * cores) if cpu not in offline] or [0]
    core_of = [cpu % cores for cpu in online]
    numbers = [cpu + beyond for cpu in online]
    levels = (
        grouped(core_of, list(range(cores)), numbers),
        grouped([core // in_cache for core in core_of], list(range(cores)), numbers),
        grouped([core * sockets // cores for core in core_of], list(range(sockets)), numbers),
        grouped([core * nodes // cores for core in core_of], list(range(nodes)), numbers),
    )
    return Machine(levels, draw_free(draw, numbers))


@st.composite
def irregular(draw: st.DrawFn) -> Machine:
    """Draw a machine whose CPUs are in arbitrary cores, caches, sockets and nodes; ids have no order."""
    numbers = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=60)))
    levels: list[dict[int, int]] = []
    for most in (40, 12, 6, 10):
        ids = draw(st.lists(st.integers(0, 500), min_size=1, max_size=most, unique=True))
        keys = st.lists(st.integers(0, len(ids) - 1), min_size=len(numbers), max_size=len(numbers))
        levels.append(grouped(draw(keys), ids, numbers))
    cores, caches, sockets, nodes = levels
    return Machine((cores, caches, sockets, nodes), draw_free(draw, numbers))


def draw_free(draw: st.DrawFn, numbers: list[int]) -> int:
    """Draw the free CPUs: all but a few, or any of them; sometimes one that the machine does not have."""
    everything = sum(1 << number for number in numbers)
    some = sum(1 << number for number in draw(st.sets(st.sampled_from(numbers), max_size=12)))
    stranger = draw(st.sampled_from([0, 0, 0, 1 << 2000]))
    return (everything & ~some if draw(st.booleans()) else some) | stranger


machines = regular() | irregular()


@settings(max_examples=400, deadline=None)
@given(machines, st.data(), st.booleans(), st.booleans())
def test_packed(machine: Machine, data: st.DataObject, spread: bool, whole_caches: bool) -> None:
    free = (machine.free & machine.cpus).bit_count()
    count = data.draw(st.integers(0, free + 1))
    taken, expected = (
        form.take_packed(
            form.Layout(*machine.levels), machine.free, count, spread=spread, whole_caches=whole_caches
        )
        for form in (compiled, plain)
    )
    assert taken == expected
    assert taken & ~(machine.free & machine.cpus) == 0
    assert taken.bit_count() == min(count, free)


@settings(max_examples=400, deadline=None)
@given(machines, st.data(), st.booleans(), st.integers(1, 4))
def test_distributed(machine: Machine, data: st.DataObject, spread: bool, group: int) -> None:
    free = (machine.free & machine.cpus).bit_count()
    count = data.draw(st.integers(0, free + 1) | st.integers(0, free // group).map(lambda n: n * group))
    taken, expected = (
        form.take_distributed(form.Layout(*machine.levels), machine.free, count, group, spread=spread)
        for form in (compiled, plain)
    )
    assert taken == expected
    assert taken & ~(machine.free & machine.cpus) == 0
    assert taken.bit_count() == min(count, free)


def machine_of(free: tuple[int, ...], size: int) -> Machine:
    """Return NUMA nodes of `size` CPUs, one a core, two nodes a socket; `free[i]` CPUs of node i are free."""
    nodes = {node: ((1 << size) - 1) << node * size for node in range(len(free))}
    sockets: dict[int, int] = {}
    for node, cpus in nodes.items():
        sockets[node // 2] = sockets.get(node // 2, 0) | cpus
    cores = {cpu: 1 << cpu for cpu in range(size * len(free))}
    wanted = sum(((1 << count) - 1) << node * size for node, count in enumerate(free))
    return Machine((cores, nodes, sockets, nodes), wanted)


@pytest.mark.parametrize(("nodes", "size"), [(2, 6), (3, 4), (4, 3)])
@pytest.mark.parametrize("group", [1, 2])
def test_every_distribution_over_few_nodes(nodes: int, size: int, group: int) -> None:
    for free in product(range(size + 1), repeat=nodes):
        machine = machine_of(free, size)
        forms = [(form, form.Layout(*machine.levels)) for form in (compiled, plain)]
        for count in range(group, sum(free) + 1, group):
            taken, expected = (
                form.take_distributed(layout, machine.free, count, group) for form, layout in forms
            )
            assert taken == expected, (free, count)
            assert taken.bit_count() == count


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(4, 12), min_size=5, max_size=12), st.integers(1, 3), st.floats(0.3, 1))
def test_distributions_over_many_nodes(free: list[int], group: int, part: float) -> None:
    machine = machine_of(tuple(free), 12)
    count = int(sum(free) * part) // group * group
    taken, expected = (
        form.take_distributed(form.Layout(*machine.levels), machine.free, count, group)
        for form in (compiled, plain)
    )
    assert taken == expected


@given(machines)
@example(Machine(({0: 1 << 5000}, {0: 1 << 5000}, {0: 1 << 5000}, {0: 1 << 5000}), 1 << 5000))
def test_layouts(machine: Machine) -> None:
    one, other = compiled.Layout(*machine.levels), plain.Layout(*machine.levels)
    for name in ("cores", "caches", "sockets", "nodes", "cpus", "per_core", "per_cache", "per_socket"):
        assert getattr(one, name) == getattr(other, name)
    assert compiled.take_packed(one, machine.free, 1) == plain.take_packed(other, machine.free, 1)


@pytest.mark.parametrize("form", [compiled, plain], ids=["compiled", "plain"])
class TestEither:
    def test_a_node_on_two_sockets_gives_its_cpus_once(self, form: ModuleType) -> None:
        sockets = {0: 0b00111, 1: 0b11000}
        nodes = {0: 0b00001, 1: 0b01110, 2: 0b10000}
        cores = {cpu: 1 << cpu for cpu in range(5)}
        layout = form.Layout(cores, sockets, sockets, nodes)
        assert form.take_distributed(layout, layout.cpus, 4, 1).bit_count() == 4

    def test_a_layout_without_cpus_is_refused(self, form: ModuleType) -> None:
        with pytest.raises(ValueError, match="needs CPUs"):
            form.Layout({}, {}, {}, {})

    def test_a_group_without_cpus_is_refused(self, form: ModuleType) -> None:
        layout = form.Layout({0: 1}, {0: 1}, {0: 1}, {0: 1})
        with pytest.raises(ValueError, match="group size 0"):
            form.take_distributed(layout, 1, 1, 0)
