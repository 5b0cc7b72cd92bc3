"""A record that a live agent wrote is played again: the same decisions under its own configuration, and what
another one or more pods would have changed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.documents.reader import parse_pods
from engine.api.duration import Duration
from engine.api.encoding.json_text import json_encoder
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import EvictionSection, KubengineConfiguration, RecordSection
from engine.api.pod import Pod
from engine.eviction import signals
from engine.eviction.manager import EvictionManager
from engine.eviction.signals import Observations, SignalObservation
from engine.eviction.usage import Disk, PodUsage
from engine.plan.replay.answer import replay_answer
from engine.plan.replay.compared import not_repeated
from engine.plan.replay.decided import EVICTED, Replayed, recorded_decisions
from engine.plan.replay.recorded import NoAgent, read_recorded
from engine.plan.replay.replay import NodeReplay
from engine.record.blocks import RecordRow
from engine.record.writer import RecordWriter, segments
from engine.runtime.hollow import HollowRuntime
from tests.node_rig import Rig, container
from tests.waiting import eventually

MIB = 1024 * 1024
API = {"kubernetes.io/config.source": "api"}
CRITICAL = 2_000_001_000
WHOLE = 1000 * MIB


@dataclass
class Machine:
    """Return signals and pods' usage as a test sets them, in bytes."""

    free_memory: int = 800 * MIB
    free_disk: int = 800 * MIB
    memory: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)

    def read(self, now: float) -> Observations:
        return {
            signals.MEMORY_AVAILABLE: SignalObservation(self.free_memory, WHOLE, now),
            signals.NODEFS_AVAILABLE: SignalObservation(self.free_disk, WHOLE, now),
        }

    def quick(self, pods: Sequence[Pod]) -> dict[str, PodUsage]:
        return {
            pod.uid: PodUsage(
                memory=self.memory.get(pod.metadata.name, MIB),
                volumes={"v": Disk(self.disk.get(pod.metadata.name, MIB))},
                disk_known=True,
            )
            for pod in pods
        }

    async def whole(self, pods: Sequence[Pod], **options: Any) -> dict[str, PodUsage]:
        return self.quick(pods)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    runtime = HollowRuntime(tmp_path / "cri.sock")
    await runtime.start()
    rig = Rig(
        tmp_path,
        tmp_path / "cri.sock",
        max_pods=6,
        eviction_hard={"memory.available": "100Mi", "nodefs.available": "10%"},
        eviction_pressure_transition_period=Duration(1),
    )
    rig.section.eviction = EvictionSection(interval=Duration(0.1))
    rig.section.record = RecordSection(directory=str(tmp_path / "record"))
    yield rig
    await rig.close()
    await runtime.stop()


def burstable(memory: str = "10Mi") -> dict[str, Any]:
    return {"containers": [container(resources={"requests": {"memory": memory}})]}


def pod_of(rig: Rig, name: str) -> Pod | None:
    """Return the pod of this name, or None."""
    assert rig.node is not None
    return next((pod for pod in rig.node.pods() if pod.metadata.name == name), None)


def phase(rig: Rig, name: str) -> str:
    pod = pod_of(rig, name)
    return pod.status.phase if pod is not None else ""


def reason(rig: Rig, name: str) -> str:
    pod = pod_of(rig, name)
    return pod.status.reason if pod is not None else ""


async def live(rig: Rig) -> None:
    """Let a node live through churn, critical pods, and memory and disk that run short."""
    node = await rig.start()
    machine, eviction = Machine(), node.components["eviction"]
    assert isinstance(eviction, EvictionManager)
    eviction.reader.read = machine.read
    eviction.meter.quick, eviction.meter.whole = machine.quick, machine.whole
    for name in ("a", "b", "c", "d", "e"):
        rig.write(name, burstable(), annotations=API)
    rig.write("too-large", burstable("900Gi"), annotations=API)
    await eventually(lambda: all(phase(rig, name) == "Running" for name in "abcde"))
    await eventually(lambda: phase(rig, "too-large") == "Failed")
    (rig.manifests / "e.yaml").unlink()
    await eventually(lambda: pod_of(rig, "e") is None)
    rig.write("f", burstable(), annotations=API)
    await eventually(lambda: phase(rig, "f") == "Running")

    machine.memory["b"] = 400 * MIB
    machine.free_memory = 50 * MIB
    await eventually(lambda: reason(rig, "b") == "Evicted")
    rig.write("best-effort", {"containers": [container()]}, annotations=API)
    await eventually(lambda: reason(rig, "best-effort") == "Evicted")
    machine.free_memory = 450 * MIB
    await eventually(lambda: not eviction.under_pressure)

    rig.write("g", burstable(), annotations=API)
    rig.write("h", burstable(), annotations=API)
    await eventually(lambda: phase(rig, "g") == phase(rig, "h") == "Running")
    rig.write("vital", {**burstable(), "priority": CRITICAL}, annotations=API)
    await eventually(lambda: phase(rig, "vital") == "Running")
    assert "Preempting" in rig.reasons()

    machine.disk["c"] = 500 * MIB
    machine.free_disk = 90 * MIB
    await eventually(lambda: any(reason(rig, name) == "Evicted" for name in "acdfgh"))
    machine.free_disk = 700 * MIB
    await eventually(lambda: not eviction.under_pressure)
    await rig.stop()


def outcomes(found: Sequence[Replayed], kind: str) -> list[tuple[str, str]]:
    return [(one.pod, one.outcome) for one in found if one.kind == kind]


async def test_its_own_configuration_gives_the_agents_decisions(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_plan: Callable[..., Any]
) -> None:
    await live(rig)
    node = read_recorded(tmp_path / "record")
    recorded, found = list(recorded_decisions(node)), NodeReplay(node).play()
    assert not_repeated(recorded, found) == []
    for kind in ("preemption", "eviction"):
        assert outcomes(found, kind) == outcomes(recorded, kind)
        assert outcomes(found, kind)
    assert ("default/b", EVICTED) in outcomes(found, "eviction")
    refused = {one.pod: one.why for one in found if one.outcome == "refused"}
    assert refused["default/too-large"].startswith("OutOfmemory")
    assert refused["default/best-effort"].startswith("Evicted")
    assert sorted(outcomes(found, "admission")) == sorted(outcomes(recorded, "admission"))
    # Rounds in which nothing can happen are skipped; replayed one by one, they give the same.
    with monkeypatch.context() as patch:
        patch.setattr(NodeReplay, "_is_quiet", lambda replay: False)
        assert NodeReplay(node).play() == found
    # Nothing is lost on the way to the answer, and a decision that differs is seen.
    (row,) = replay_answer([node]).table.to_pylist()
    assert (row["decision"], row["node"], row["amount"]) == ("same", "n1", len(found))
    assert not_repeated(recorded, found[:-1])

    # The agent would have evicted no pod for memory, nor refused the pod without requests.
    higher = replace_config(rig.config, eviction_hard={"memory.available": "10Mi", "nodefs.available": "10%"})
    rows = replay_answer([node], higher).table.to_pylist()
    told = {(one["decision"], one["object"]) for one in rows}
    assert {("spared", "default/b"), ("admit", "default/best-effort")} <= told
    assert rows[0]["decision"] == "differs"
    # With a threshold above what was free, pods are evicted from the first round on.
    lower = replace_config(rig.config, eviction_hard={"memory.available": "900Mi"})
    early = [one for one in replay_answer([node], lower).table.to_pylist() if one["decision"] == "evict"]
    assert early
    # A pod that takes the last place refuses one that ran.
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more", "namespace": "x"}}
    pods, _ = parse_pods(json.dumps({**manifest, "spec": burstable()}).encode(), "more")
    rows = replay_answer([node], None, pods).table.to_pylist()
    assert {"refuse", "victim"} & {one["decision"] for one in rows}

    following = tmp_path / "next.yaml"
    following.write_text("kind: KubeletConfiguration\nmaxPods: 6\nevictionHard: {memory.available: 10Mi}\n")
    line = ["replay", str(tmp_path / "record"), "--config", str(following), "--explain", "--limit", "50"]
    done = run_plan(*line, "--fail-on", "spared")
    assert done.returncode == 1, done.stderr
    assert b"on n1, default/b goes on (" in done.stdout
    assert run_plan(*line, "--fail-on", "gap,mismatch").returncode == 0


async def test_any_part_that_is_left_gives_the_agents_decisions(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_in_each_segment(monkeypatch)
    await live(rig)
    played = [{one.kind for one in found} for found in replays_of_rests(tmp_path / "record")]
    assert len(played) > 3
    assert {"admission", "preemption", "eviction"} <= played[0]


def state_in_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recorder begin a segment for each block, and say its whole state in each of them."""
    monkeypatch.setattr("engine.node.decisions.recorder.FLUSH_SECONDS", 0.05)
    monkeypatch.setattr("engine.record.writer.SEGMENT_SECONDS", 0.01)
    monkeypatch.setattr("engine.record.writer.STATE_SHARE", 0)


def replays_of_rests(directory: Path) -> Iterator[list[Replayed]]:
    """Remove one segment after the other; yield the decisions of what is left, which are the agent's."""
    while len(left := segments(directory)) > 1:
        left[0].unlink()
        try:
            node = read_recorded(directory)
        except NoAgent:
            return  # the agent ended before it had to say its state again
        found = NodeReplay(node).play()
        assert not_repeated(recorded_decisions(node), found) == [], left[1].name
        yield found


def recorder(directory: Path) -> RecordWriter:
    writer = RecordWriter(directory, max_bytes=1 << 20, max_age=3600, clock=time.time)
    writer.open()
    return writer


def test_what_the_recorders_lost_is_a_gap(tmp_path: Path) -> None:
    config = plain(KubeletConfiguration()), plain(KubengineConfiguration())
    about = {"kubelet": config[0], "kubengine": config[1], "name": "n1"}
    for ends, lost in ((True, "3 rows were lost: No space left on device"), (False, ""), (True, "")):
        writer = recorder(tmp_path)
        writer.add(RecordRow(time=time.time(), stream="node", name="configuration", inputs=about))
        if lost:
            writer.add(RecordRow(time=time.time(), stream="record", name="lost", text=lost))
        writer.flush()
        if ends:
            writer.close()
    first, second = read_recorded(tmp_path).gaps
    assert "3 rows were lost" in first
    assert "ended without closing the record: up to a second is lost" in second


def test_a_record_without_the_start_of_an_agent_says_why_it_cannot_be_played(tmp_path: Path) -> None:
    recorder(tmp_path).close()
    with pytest.raises(InvalidInput, match=r"raise record\.maxSize"):
        read_recorded(tmp_path)


def plain(value: object) -> Any:
    return json.loads(json_encoder(str)(value))


def test_a_directory_without_a_record_is_an_error(run_plan: Callable[..., Any], tmp_path: Path) -> None:
    done = run_plan("replay", str(tmp_path))
    assert (done.returncode, b"has no record" in done.stderr) == (1, True)


def replace_config(config: KubeletConfiguration, **fields: Any) -> KubeletConfiguration:
    changed = KubeletConfiguration(**{name: getattr(config, name) for name in config.__struct_fields__})
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
