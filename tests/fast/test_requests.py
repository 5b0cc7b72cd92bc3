"""The compiled filler writes the row that `pod_entry` gives, for the pods that it accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._fast.preemption import _requests_c, _requests_py
from engine.api import qos
from engine.api.documents import as_written
from engine.api.pod import Pod
from engine.cgroups.formulas import values
from engine.cgroups.formulas.values import PodRules
from engine.tables import DO_NOT_PREEMPT_ANNOTATION, PodColumns, PodTable, ResourceNames, pod_entry

quantities = st.sampled_from(
    ["0", "1", "3", "100m", "1500u", "250m", "1Gi", "64Mi", "9Ti", "9007199254740993", "8Ei", "1e3", "0.5"]
)
lists = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi", "pods"]),
    quantities,
    max_size=4,
)
containers = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"requests": lists, "limits": lists}),
        "restartPolicy": st.sampled_from(["Always", ""]),
    },
)
annotations = st.dictionaries(
    st.sampled_from([qos.SOURCE_ANNOTATION, qos.MIRROR_ANNOTATION, DO_NOT_PREEMPT_ANNOTATION]),
    st.sampled_from(["", "api", "file", "true"]),
)
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, max_size=3)},
    optional={
        "initContainers": st.lists(containers, max_size=3),
        "overhead": lists,
        "priority": st.sampled_from([-(2**31), -1, 0, 1_999_999_999, 2_000_000_000, 2**31 - 1]),
    },
)


@st.composite
def pods(draw) -> Pod:
    metadata: dict[str, Any] = {"name": "p", "uid": "p", "annotations": draw(annotations)}
    if draw(st.booleans()):
        metadata["creationTimestamp"] = "2024-02-29T12:00:00Z"
    status = {"qosClass": draw(st.sampled_from(["", "Burstable", "BestEffort"]))}
    return as_written({"metadata": metadata, "spec": draw(specs), "status": status}, Pod, "p")


NAMES = ["example.com/gpu", "hugepages-2Mi"]


def check(pod: Pod) -> bool:
    """Tell whether the filler accepted the pod; if so, check its row."""
    names = ResourceNames(NAMES)
    columns = PodColumns.zeros(2, len(names))
    accepted = _requests_c.Filler(columns).fill([pod], 0, 1, 7, names.ids, {})
    assert not columns.flags[0]
    if not accepted:
        assert not columns.flags[1]
        return False
    entry = pod_entry(pod)
    assert (columns.qos[1], columns.flags[1]) == (entry.qos, entry.flags)
    assert (columns.priority[1], columns.creation[1]) == (entry.priority, entry.creation)
    assert columns.requests[:, 1].tolist() == [entry.requests.get(name, 0) for name in names.names]
    assert columns.ranking[:, 1].tolist() == [entry.ranking.get(name, 0) for name in names.names]
    assert tuple(columns.limits[:, 1].tolist()) == entry.limits
    assert not any(entry.fraction)
    assert columns.node[1] == 7
    return True


@given(pods())
@settings(max_examples=400, deadline=None)
def test_rows_equal_pod_entries(pod):
    check(pod)
    names = ResourceNames(NAMES)
    fast = _requests_c.requests(pod, names.ids, names.in_order)
    if fast is not None:
        assert fast == pod_entry(pod).requests


@given(pods(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_cgroup_values_are_the_same_by_kernel_and_twin(pod, memory_qos):
    rules = PodRules(memory_qos=memory_qos, tiered_memory=memory_qos, pids_limit=7)
    found = []
    for form in (_requests_c, _requests_py):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values, "amounts", form.amounts)
            found.append(values.pod_values(pod, rules))
    assert found[0] == found[1]


def test_the_kernel_takes_an_ordinary_pod():
    resources = {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": "1"}}
    pod = as_written({"spec": {"containers": [{"name": "c", "resources": resources}]}}, Pod, "p")
    assert _requests_c.amounts(pod) == ("Burstable", True, False, 250, 64 << 20, 1000, 0)


@pytest.mark.parametrize(
    ("spec", "accepted"),
    [
        ({"containers": []}, True),
        ({"containers": [], "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}]}, True),
        ({"containers": [{"resources": {"requests": {"cpu": "1", "memory": "900Gi"}}}]}, True),
        ({"containers": [{"resources": {"requests": {"cpu": "-1"}}}]}, False),
        ({"containers": [{"resources": {"requests": {"memory": "1500m"}}}]}, False),
        ({"containers": [{"resources": {"requests": {"memory": "8Ei"}}}] * 2}, False),
        ({"containers": [{"resources": {"requests": {"other.com/x": "1"}}}]}, False),
        ({"containers": [], "resources": {"requests": {"cpu": "1"}}}, False),
    ],
)
def test_odd_pods_are_left_to_the_caller(spec, accepted):
    pod = as_written({"metadata": {"name": "p", "uid": "p"}, "spec": spec}, Pod, "p")
    assert check(pod) is accepted


def test_objects_without_slots_are_left_to_the_caller():
    class Plain:
        metadata = spec = status = None

    columns = PodColumns.zeros(1, 3)
    assert _requests_c.Filler(columns).fill([Plain(), 3], 0, 0, 0, ResourceNames().ids, {}) == 0


def test_a_failing_pod_takes_the_others_back_out():
    good = as_written({"metadata": {"name": "g", "uid": "g"}, "spec": {"containers": []}}, Pod, "g")
    bad = as_written(
        {
            "metadata": {"name": "b", "uid": "b"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "-1"}}}]},
        },
        Pod,
        "b",
    )
    table = PodTable()
    with pytest.raises(Exception, match="negative"):
        table.add_all([good, bad])
    assert len(table) == 0
    table.validate()


def test_annotations_are_those_of_the_api():
    assert qos.SOURCE_ANNOTATION == _requests_c.SOURCE_ANNOTATION
    assert qos.MIRROR_ANNOTATION == _requests_c.MIRROR_ANNOTATION
    assert DO_NOT_PREEMPT_ANNOTATION == _requests_c.DO_NOT_PREEMPT_ANNOTATION


def test_the_twin_leaves_everything_to_the_caller():
    columns = PodColumns.zeros(1, 3)
    assert _requests_py.Filler(columns).fill([object()], 0, 0, 0, {}, {}) == 0
    assert _requests_py.requests(object(), {}, []) is None


@pytest.mark.parametrize("filler", [_requests_c.Filler, _requests_py.Filler], ids=["kernel", "twin"])
def test_a_row_that_is_cleared_is_zero_and_its_neighbours_are_not(filler):
    columns = PodColumns.zeros(3, 4)
    for _, column in columns.arrays():
        column[...] = 1
    filler(columns).clear(1)
    for name, column in columns.arrays():
        assert not column[..., 1].any(), name
        assert column[..., [0, 2]].all(), name
