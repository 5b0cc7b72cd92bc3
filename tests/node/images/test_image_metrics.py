"""Pulls, requests for images and checks of credentials are counted as by a kubelet."""

from __future__ import annotations

from typing import Any

import pytest

from engine.node.images.pull import size_label
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "0-10MB"),
        (10 * MIB - 1, "0-10MB"),
        (10 * MIB, "10MB-100MB"),
        (1024 * MIB, "1GB-5GB"),
        (100 * 1024 * MIB, "GT100GB"),
        (1 << 60, "GT100GB"),
        (-1, "0-10MB"),
    ],
)
def test_sizes_have_the_labels_of_a_kubelet(size: int, label: str) -> None:
    assert size_label(size) == label


async def test_a_pull_a_present_image_and_one_that_is_never_pulled(rig: Rig, hollow: HollowRuntime) -> None:
    node = await rig.start()

    def values(name: str) -> Any:
        metric: Any = node.registry.metrics[f"kubelet_{name}"]
        return getattr(metric, "values", None) or {each: sum(n) for each, n in metric.counts.items()}

    rig.write("pulled", {"containers": [container(image="new:1", imagePullPolicy="IfNotPresent")]})
    await eventually(lambda: rig.phase("pulled") == "Running")
    requests = "image_manager_ensure_image_requests_total"
    assert values(requests) == {("ifnotpresent", "false", "true"): 1}
    (pulls,) = values("image_pull_duration_seconds").items()
    assert pulls == (("0-10MB",), 1)
    rig.write("again", {"containers": [container(image="new:1", imagePullPolicy="IfNotPresent")]})
    rig.write("always", {"containers": [container(image="new:1", imagePullPolicy="Always")]})
    rig.write("never", {"containers": [container(image="none:1", imagePullPolicy="Never")]})
    await eventually(lambda: rig.phase("again") == rig.phase("always") == "Running")
    await eventually(lambda: ("never", "false", "unknown") in values(requests))
    found = {**values(requests)}
    assert found.pop(("never", "false", "unknown")) >= 1
    assert found == {
        ("ifnotpresent", "false", "true"): 1,
        ("ifnotpresent", "true", "false"): 1,
        ("always", "unknown", "true"): 1,
    }
    assert values("image_pull_duration_seconds") == {("0-10MB",): 2}
    assert values("imagemanager_image_mustpull_checks_total") == {("credentialRecordFound",): 1}
