"""Values that a kubelet leaves as an earlier configuration gave them, until a pod starts again."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from engine.api.config import KubeletConfiguration
from engine.api.documents import convert
from engine.host.cgroupfs.mounts import find_mounts
from engine.shadow.kinds.cgroups import (
    KEPT,
    CgroupRules,
    ExpectedGroup,
    GroupReading,
    RulesHistory,
    compare_pod,
)
from engine.shadow.kinds.comparison import Comparison, Finding, NotJudged
from engine.shadow.machine_reader import MachineReader
from tests.shadow.observations import pod, record


def rules(limit: int, directory: Path) -> CgroupRules:
    config = convert({"podPidsLimit": limit}, KubeletConfiguration, "test")
    reader = MachineReader(directory, lambda source, text: None, mounts=find_mounts())
    return reader.facts("containerd", directory / "none.sock").rules(config)


def compared(
    limits: list[int], has: int, directory: Path, *, created: float = 0.0, attempt: int = 0
) -> list[Finding]:
    """Return the findings about a pod whose `pids.max` is `has`, after configurations with these limits."""
    one = pod("p")
    in_time = RulesHistory()
    for at, limit in enumerate(limits):
        in_time.update(rules(limit, directory), 100.0 * at)
    held = record(one)
    held.sandboxes = [replace(held.sandboxes[0], created_at=created, attempt=attempt)]

    def read(wanted: ExpectedGroup) -> GroupReading:
        return GroupReading({**wanted.files, "pids.max": str(has)})

    return list(compare_pod(one, held, in_time, {}, read))


def sides(found: list[Finding]) -> tuple[str, str] | str:
    (one,) = found
    return (one.ours, one.kubelets) if isinstance(one, Comparison) else one.why


def test_a_pod_older_than_the_change_keeps_the_earlier_value(tmp_path: Path) -> None:
    assert sides(compared([500, 400], 500, tmp_path)) == KEPT
    assert isinstance(compared([500, 400], 500, tmp_path)[0], NotJudged)
    # The kubelet keeps the cgroup of a pod that gets another sandbox.
    assert sides(compared([500, 400], 500, tmp_path, created=150, attempt=1)) == KEPT


def test_another_value_and_a_younger_pod_differ(tmp_path: Path) -> None:
    assert sides(compared([500, 400], 300, tmp_path)) == ("pids.max=400", "pids.max=300")
    assert sides(compared([500, 400], 500, tmp_path, created=150)) == ("pids.max=400", "pids.max=500")
    assert sides(compared([400], 500, tmp_path)) == ("pids.max=400", "pids.max=500")


def test_the_live_value_agrees(tmp_path: Path) -> None:
    (found,) = compared([500, 400], 400, tmp_path)
    assert isinstance(found, Comparison)
    assert found.agrees
