"""The pure parts: order of choice, policies' configuration, merged answers, and a state that never leaks."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.api.errors import Bug, InvalidInput
from engine.devices.checkpoint import CheckpointEntry, decode, encode
from engine.devices.inventory import Inventory
from engine.devices.pod_resources import RateLimit
from engine.devices.run_options import run_options
from engine.devices.selection import DeviceSelection, Preference, SelectionError, select
from engine.devices.state import STOP_GRACE, DeviceState
from engine.topologymanager.policy import Numa, TopologyPolicy
from engine.wire.deviceplugin_v1beta1_pb2 import (
    CDIDevice,
    ContainerAllocateResponse,
    Device,
    DeviceSpec,
    ListAndWatchResponse,
    Mount,
    NUMANode,
    TopologyInfo,
)

GPU = "example.com/gpu"


def message(*devices: tuple[str, str, list[int] | None]) -> bytes:
    listed = [
        Device(
            ID=id,
            health=health,
            topology=None if nodes is None else TopologyInfo(nodes=[NUMANode(ID=node) for node in nodes]),
        )
        for id, health, nodes in devices
    ]
    return ListAndWatchResponse(devices=listed).SerializeToString()


@pytest.fixture
def inventory() -> Inventory:
    """Return an inventory: a0 to a2 at node 0, b0 and b1 at node 1, c0 without node, d0 without topology, e0
    unhealthy."""
    inventory = Inventory()
    inventory.update(
        message(
            *((f"a{i}", "Healthy", [0]) for i in range(3)),
            *((f"b{i}", "Healthy", [1]) for i in range(2)),
            ("c0", "Healthy", []),
            ("d0", "Healthy", None),
            ("e0", "Unhealthy", [0]),
        )
    )
    return inventory


def chosen(inventory: Inventory, required: int, answer: list[str] | None = None, **options: Any) -> Any:
    """Return the selection, and the preference that the plugin was asked for; None if it was not asked."""
    choosing = select(inventory, GPU, required, consult=answer is not None, **options)
    asked: Preference | None = None
    try:
        asked = next(choosing)
        choosing.send(answer or [])
    except StopIteration as done:
        return done.value, asked
    raise AssertionError


def test_without_affinity_the_lowest_free_ids_are_chosen(inventory):
    inventory.claim(["a1"])
    assert chosen(inventory, 3) == (DeviceSelection(no_affinity=("a0", "a2", "b0")), None)


def test_reusable_devices_come_first_and_may_be_enough(inventory):
    inventory.claim(["b1", "e0"])
    assert chosen(inventory, 2, reusable={"e0", "b1"})[0] == DeviceSelection(reused=("b1", "e0"))
    assert chosen(inventory, 3, reusable={"e0", "b1"})[0].devices == ["b1", "e0", "a0"]


def test_the_plugin_chooses_among_the_aligned_when_there_are_more_than_needed(inventory):
    selection, asked = chosen(inventory, 2, ["b0", "a2"], affinity=(0,))
    assert asked == Preference(["a0", "a1", "a2"], [], 2)
    assert selection == DeviceSelection(aligned=("a0",), preferred=("a2",))


def test_the_aligned_are_all_taken_when_more_are_needed(inventory):
    selection, asked = chosen(inventory, 5, ["d0", "a0", "d0"], affinity=(0,))
    assert asked is not None
    assert asked.must_include == ["a0", "a1", "a2"]
    assert asked.available == ["a0", "a1", "a2", "b0", "b1", "c0", "d0"]
    assert selection == DeviceSelection(aligned=("a0", "a1", "a2"), preferred=("d0",), unaligned=("b0",))


def test_unaligned_come_before_those_without_nodes(inventory):
    expected = DeviceSelection(aligned=("b0", "b1"), unaligned=("a0", "a1", "a2"), no_affinity=("c0",))
    assert chosen(inventory, 6, affinity=(1,))[0] == expected
    assert chosen(inventory, 6, [], affinity=(1,))[0] == expected


def test_exactly_the_aligned_need_no_question(inventory):
    assert chosen(inventory, 3, ["b0"], affinity=(0,)) == (DeviceSelection(aligned=("a0", "a1", "a2")), None)


def test_an_insufficient_number_is_reported(inventory):
    with pytest.raises(SelectionError, match=r"unavailable for example.com/gpu\. Requested: 8, Available: 7"):
        chosen(inventory, 8)


def test_a_list_during_an_allocation_is_harmless(inventory):
    choosing = select(inventory, GPU, 2, affinity=(7,), consult=True)
    next(choosing)
    inventory.update(message(("0new", "Healthy", None), ("a1", "Healthy", [0]), ("a2", "Healthy", [0])))
    with pytest.raises(StopIteration) as done:
        choosing.send(["a2"])
    assert done.value.value == DeviceSelection(preferred=("a2",), unaligned=("a0",))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("strict", "container", None), "topologyManagerPolicy: expected one of none, best-effort"),
        (("none", "node", None), "topologyManagerScope: expected container or pod"),
        (("restricted", "pod", {"colour": "red"}), 'unknown Topology Manager Policy option: "colour"'),
        (
            ("restricted", "pod", {"prefer-closest-numa-nodes": "maybe"}),
            'strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        (("restricted", "pod", {"max-allowable-numa-nodes": "7"}), "should not be less than 8"),
        (("restricted", "pod", {"max-allowable-numa-nodes": "9" * 5000}), "value out of range"),
        (("restricted", "pod", None), "unsupported on machines with more than 8 NUMA Nodes"),
    ],
    ids=["policy", "scope", "option", "boolean", "too-low", "too-high", "too-many"],
)
def test_wrong_policies_are_named(fields, words):
    with pytest.raises(InvalidInput) as wrong:
        TopologyPolicy.from_config(*(*fields, Numa(tuple(range(9)))))
    assert words in str(wrong.value)


def test_many_nodes_are_fine_when_allowed():
    nine = Numa(tuple(range(9)))
    assert TopologyPolicy.from_config("none", "pod", None, nine).name == "none"
    options = {"max-allowable-numa-nodes": "9", "prefer-closest-numa-nodes": "true"}
    assert TopologyPolicy.from_config("restricted", "pod", options, nine).prefer_closest


def test_numa_nodes_are_read_from_sysfs(tmp_path):
    for node, row in ((0, "10 21"), (2, "21 10")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "distance").write_text(row + "\n")
    (tmp_path / "nodes_online").write_text("")
    numa = Numa.of_machine(tmp_path)
    assert numa == Numa((0, 2), ((10, 21), (21, 10)))
    assert (numa.mask([2, 5]), numa.ids(0b10)) == (0b10, (2,))
    assert Numa.of_machine(tmp_path / "absent") == Numa((0,))


def test_the_first_of_two_answers_stays(caplog):
    def entry(resource: str, value: str) -> CheckpointEntry:
        answer = ContainerAllocateResponse(
            envs={"WHICH": value},
            mounts=[Mount(container_path="/m", host_path=f"/{value}")],
            devices=[DeviceSpec(container_path="/dev/x", host_path=f"/dev/{value}", permissions="r")],
            annotations={"note": value},
            cdi_devices=[CDIDevice(name="v/c=1")],
        )
        return CheckpointEntry(
            container_name="c", resource_name=resource, alloc_resp=answer.SerializeToString()
        )

    with caplog.at_level(logging.ERROR):
        options = run_options([entry("z/z", "late"), entry("a/a", "first")])
    assert options.envs == {"WHICH": "first"}
    assert options.annotations == {"note": "first"}
    assert [m.host_path for m in options.mounts] == ["/first"]
    assert [d.host_path for d in options.devices] == ["/dev/first"]
    assert [d.name for d in options.cdi_devices] == ["v/c=1"]
    (record,) = caplog.records
    assert "values for container c differ" in record.getMessage()
    assert "of z/z" in record.getMessage()


def test_ten_thousand_conflicts_are_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    def entry(resource: str) -> CheckpointEntry:
        envs = {f"V{number}": resource for number in range(10_000)}
        answer = ContainerAllocateResponse(envs=envs).SerializeToString()
        return CheckpointEntry(container_name="c", resource_name=resource, alloc_resp=answer)

    assert set(run_options([entry("z/z"), entry("a/a")]).envs.values()) == {"a/a"}
    (record,) = caplog.records
    assert record.getMessage() == (
        "10000 values for container c differ from those of another resource, which are used: "
        + ", ".join(f"environment variable V{number} of z/z" for number in (0, 1, 10, 100, 1000))
        + ", …"
    )


@pytest.mark.parametrize("answer", [b"\xff", b"\x0a\x03\x0a\x01\xff"], ids=["no message", "no text"])
def test_an_unreadable_answer_is_a_bug(answer: bytes):
    with pytest.raises(Bug, match=r"a/a: unreadable Allocate response"):
        run_options([CheckpointEntry(resource_name="a/a", alloc_resp=answer)])


def test_the_rate_limit_refills():
    now = 0.0
    limit = RateLimit(100, 10, lambda: now)
    assert [limit.take() for _ in range(11)] == [True] * 10 + [False]
    now = 0.025
    assert [limit.take() for _ in range(3)] == [True, True, False]
    now = 100.0
    assert sum(limit.take() for _ in range(20)) == 10


IDS = [f"d{i}" for i in range(6)]


class Life(RuleBasedStateMachine):
    """Let lists arrive, pods take and return devices, and agents restart from the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.state = DeviceState()
        self.now = 0.0
        self.listed: dict[str, str] = {}

    @rule(devices=st.dictionaries(st.sampled_from(IDS), st.sampled_from(["Healthy", "Unhealthy"])))
    def report(self, devices):
        self.state.connect(GPU, 0.0)
        self.state.receive(GPU, message(*((id, health, [int(id[1]) % 2]) for id, health in devices.items())))
        self.listed = dict(devices)

    @rule()
    def disconnect(self):
        if GPU in self.state.resources:
            self.state.disconnect(GPU, self.now)
            self.listed = dict.fromkeys(self.listed, "Unhealthy")

    @rule(pod=st.sampled_from("abc"), name=st.sampled_from("xy"), count=st.integers(1, 3))
    def take(self, pod, name, count):
        resource = self.state.resources.get(GPU)
        if resource is None or self.state.held(pod, name, GPU):
            return
        reusable = {id for entry in self.state.entries_of(pod) for id in entry.devices}
        try:
            selection, _ = chosen(resource.inventory, count, reusable=reusable)
        except SelectionError:
            return
        others = {
            id
            for uid in self.state.pods
            if uid != pod
            for e in self.state.entries_of(uid)
            for id in e.devices
        }
        assert not others.intersection(selection.devices)
        assert all(id in reusable or self.listed[id] == "Healthy" for id in selection.devices)
        self.state.claim(GPU, selection.devices)
        self.state.assign(self.state.make_entry(pod, name, GPU, selection.devices, b""))

    @rule(pod=st.sampled_from("abc"))
    def forget(self, pod):
        self.state.forget(pod)

    @rule(keep=st.sets(st.sampled_from("abc")))
    def collect(self, keep):
        assert not keep.intersection(self.state.collect(keep))

    @rule(seconds=st.sampled_from([1, STOP_GRACE + 1]))
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: GPU in self.state.resources)
    @rule()
    def restart(self):
        text = encode(self.state.snapshot())
        held = {(e.pod_uid, e.container_name): e.devices for e in self.state.entries()}
        self.state = DeviceState()
        self.state.restore(decode(text), self.now)
        self.listed = {}
        assert {(e.pod_uid, e.container_name): e.devices for e in self.state.entries()} == held

    @invariant()
    def what_is_allocated_is_what_is_held(self):
        held = {id for entry in self.state.entries() for id in entry.devices}
        resource = self.state.resources.get(GPU)
        allocated = set(resource.inventory.names(resource.inventory.allocated)) if resource else set()
        assert allocated == held

    @invariant()
    def counts_are_what_was_listed(self):
        capacity, allocatable, removed = self.state.capacity(self.now)
        if removed:
            self.listed = {} if GPU not in self.state.resources else self.listed
        if GPU in capacity:
            assert capacity[GPU] == len(self.listed)
            assert allocatable[GPU] == sum(health == "Healthy" for health in self.listed.values())


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
