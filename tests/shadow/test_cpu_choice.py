"""The choice of exclusive CPUs, repeated from the state before it, and beside a real kubelet."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from engine.api.pod import Pod
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.options import StaticOptions
from engine.cpumanager.topology import CpuTopology, Processor
from engine.shadow.kinds.alignment import Alignment
from engine.shadow.kinds.choices import ChoiceComparer, ManagerAssignments
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.kinds.cpus import CpuRules
from engine.shadow.kinds.observation import Observation
from engine.topologymanager.policy import Numa, TopologyPolicy
from tests.ports import free_port
from tests.shadow.observations import observed, pod, ran, record
from tests.shadow.test_beside_kubelet import Report, command
from tests.system.busybox import container
from tests.system.kubelet import Kubelet, needs_kubelet
from tests.waiting import wait_until

EXCLUSIVE = {"requests": {"cpu": "2", "memory": "1Mi"}, "limits": {"cpu": "2", "memory": "1Mi"}}


def rules() -> CpuRules:
    """Four cores with two threads each, of which core 0 (CPUs 0 and 4) is reserved."""
    processors = [Processor(cpu, cpu % 4, 0, 0, 0) for cpu in range(8)]
    options = StaticOptions.parse({}, alpha=False, beta=False)
    return CpuRules(CpuTopology(processors), 0b10001, options, Numa())


def pinned(name: str, order: int = 0) -> Pod:
    spec = {"containers": [{"name": "c", "image": "i", "resources": EXCLUSIVE}]}
    return pod(name, spec, order=order, qosClass="Guaranteed")


def seen(pods: list[Pod], **cpus: str) -> Observation:
    entries = {f"uid-{name}": {"c": of} for name, of in cpus.items()}
    found = observed(pods, [record(one, ran(0)) for one in pods])
    return replace(found, cpus=CpuCheckpoint("static", "0-7", entries))


def judged(comparer: ChoiceComparer, found: Observation, of: CpuRules | None = None) -> list[Finding]:
    assert found.cpus is not None
    parts = [ManagerAssignments("cpus", of or rules(), found.cpus.entries)]
    return list(comparer.compare(found, parts, Alignment(TopologyPolicy(), found, None)))


def test_new_containers_get_whole_cores_in_the_order_of_arrival() -> None:
    comparer = ChoiceComparer()
    assert judged(comparer, seen([])) == []
    late, early = pinned("late", 2), pinned("early", 1)
    found = judged(comparer, seen([late, early], early="1,5", late="2,6"))
    assert [(one.subject, one.agrees) for one in found if isinstance(one, Comparison)] == [
        ("default/early/c", True), ("default/late/c", True),
    ]  # fmt: skip
    assert judged(comparer, seen([late, early], early="1,5", late="2,6")) == found


def test_another_choice_and_none_at_all_differ() -> None:
    comparer = ChoiceComparer()
    judged(comparer, seen([]))
    other, without = pinned("other", 1), pinned("without", 2)
    found = judged(comparer, seen([other, without], other="1-2"))
    assert [(one.ours, one.kubelets) for one in found if isinstance(one, Comparison)] == [
        ("CPUs 1,5", "CPUs 1-2"), ("CPUs 2,6", "none"),
    ]  # fmt: skip


def why(found: list[Finding]) -> list[str]:
    return [one.why for one in found if isinstance(one, NotJudged)]


def test_what_was_free_must_be_known() -> None:
    old, new = pinned("old"), pinned("new", 1)
    first = ChoiceComparer()
    assert why(judged(first, seen([old], old="1,5"))) == ["chosen before the first observation"]
    assert "gave theirs back" in why(judged(first, seen([new], new="1,5")))[0]
    second = ChoiceComparer()
    judged(second, seen([]))
    assert "not seen yet" in why(judged(second, seen([new], new="2,6", hidden="1,5")))[0]
    third = ChoiceComparer()
    judged(third, seen([]))
    judged(third, seen([old], old="1,5"))
    assert "not seen yet" in why(judged(third, seen([new, old], new="2,6", old="1,5", hidden="3,7")))[0]


def test_a_pod_that_is_in_the_file_before_it_is_listed_is_judged_later() -> None:
    comparer, new = ChoiceComparer(), pinned("new")
    judged(comparer, seen([]))
    assert judged(comparer, seen([], new="1,5")) == []
    (found,) = judged(comparer, seen([new], new="1,5"))
    assert isinstance(found, Comparison)
    assert found.agrees
    # It keeps its CPUs until the kubelet has cleaned up after it.
    assert judged(comparer, seen([], new="1,5")) == []
    (after,) = judged(comparer, seen([pinned("next")], new="1,5", next="2,6"))
    assert isinstance(after, Comparison)
    assert after.agrees


def test_without_the_static_policy_nothing_is_judged() -> None:
    found = seen([pinned("p")], p="1")
    (only,) = ChoiceComparer().compare(
        found, [ManagerAssignments("cpus", None, {})], Alignment(TopologyPolicy(), found, None)
    )
    assert only == NotJudged("cpus", "node", "the kubelet has no static policy for them")


@pytest.mark.containerd
@pytest.mark.root
@pytest.mark.slow
@needs_kubelet
@pytest.mark.skipif((os.cpu_count() or 0) < 2, reason="exclusive CPUs need two CPUs")
def test_a_real_kubelet_takes_the_same_cpu(kubelet: Kubelet, tmp_path: Path) -> None:
    document = yaml.safe_load(kubelet.config.read_text())
    document |= {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "kubeReserved": {}}
    kubelet.config.write_text(yaml.safe_dump(document))
    kubelet.start()
    wait_until(lambda: kubelet.logged("Starting kubelet"))
    address = f"127.0.0.1:{free_port()}"
    report = Report(address)
    with subprocess.Popen(
        command(kubelet, tmp_path, "--interval", "1s", "--listen", address), stdout=subprocess.DEVNULL
    ) as shadow:
        try:
            wait_until(
                lambda: report.shows(lambda found: found["observations"] > found["skippedObservations"] + 1)
            )
            alone = container(resources={"limits": {"cpu": "1", "memory": "16Mi"}})
            spec = {"terminationGracePeriodSeconds": 1, "containers": [alone]}
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pinned"}, "spec": spec}
            (tmp_path / "manifests" / "pinned.yaml").write_text(yaml.safe_dump(manifest))
            wait_until(lambda: report.shows(lambda found: found["kinds"]["cpus"]["agreed"]))
        finally:
            shadow.terminate()
    assert report.last["kinds"]["cpus"]["differed"] == 0
    assert report.last["differences"] == []
