"""Whatever happens to the files of a manifest directory, its pods are what its files say when all is quiet.

Files are made, edited, replaced, renamed, linked, broken, mended and removed at random, the agent goes and
comes back at any time; `KUBENGINE_MANIFEST_OPERATIONS` says how often.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput, Refused
from engine.api.pod import Pod
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.host.records.store import RecordStore
from engine.node.pod.record_names import ACCEPTED, key
from engine.node.pod.records import AcceptedSpecs
from engine.node.sources import manifests as sources
from engine.node.sources.manifests import ManifestDirectory
from engine.node.sources.static_pods import StaticUids
from engine.node.spec.cri_config import container_hash
from tests.waiting import eventually

OPERATIONS = int(os.environ.get("KUBENGINE_MANIFEST_OPERATIONS", "2000"))
NAMES = [f"p{number}" for number in range(12)]
FILES = [f"{number:02}.yaml" for number in range(16)] + [".hidden.yaml", "z.json"]
BROKEN = [b"", b"\x00\xff", b"kind: Pod\nmetadata: [", b"kind: Secret\napiVersion: v1\n", b"{" * 5000]
MARK = "!.yaml"
NODE = "n1"


def text(name: str, version: int, amount: int = 1) -> bytes:
    container = {"name": "c", "image": f"i:{version}", "resources": {"requests": {"cpu": f"{amount}m"}}}
    metadata = {"name": name, "namespace": "ns"}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    ).encode()


@dataclass
class Agent:
    """Hold a manifest directory and the pods that a node would run for it."""

    manifests: Path
    store: RecordStore
    running: dict[str, PodRecord] = field(default_factory=dict)
    desired: dict[str, Pod] = field(default_factory=dict)
    faults: list[InvalidInput] = field(default_factory=list)
    directory: ManifestDirectory | None = None
    period: float = 60.0

    def __post_init__(self) -> None:
        self.accepted = AcceptedSpecs(self.store)

    async def start(self) -> None:
        self.directory = ManifestDirectory(
            self.manifests,
            node_name=NODE,
            period=self.period,
            clock=time.time,
            uids=StaticUids(self.running.values, self.accepted),
            on_change=self._take,
            on_fault=self.faults.append,
        )
        await self.directory.start()
        await self.directory.scanned.wait()

    async def stop(self) -> None:
        assert self.directory is not None
        await self.directory.stop()
        self.accepted.forget_manifests(list(self.accepted._manifests))

    def _take(self, pods: list[Pod]) -> None:
        uids = [pod.uid for pod in pods]
        assert len(uids) == len(set(uids)), "one uid for two pods"
        self.desired = {pod.metadata.name: pod for pod in pods}
        for uid in self.running.keys() - set(uids):
            del self.running[uid]
        for pod in pods:
            self.store.put_soon(key(pod.uid, ACCEPTED), self.accepted.record(pod))
            if pod.uid not in self.running:
                self.running[pod.uid] = record(pod)


def record(pod: Pod) -> PodRecord:
    """Return the runtime's record of a pod that runs."""
    made = PodRecord(pod.uid, pod.metadata.name, "ns")
    made.sandboxes.append(SandboxRecord(f"s-{pod.uid}", True, 0, time.time(), source="file"))
    for each in pod.all_containers:
        made.containers.append(
            ContainerRecord(
                f"c-{pod.uid}", each.name, f"s-{pod.uid}", RUNNING, 0, 1.0, hash=container_hash(each)
            )
        )
    return made


@dataclass
class Directory:
    """Operate on files at random, and know what they mean. `pods` maps a file to the name, version and
    amount in it."""

    path: Path
    chance: random.Random
    pods: dict[str, tuple[str, int, int] | None] = field(default_factory=dict)
    versions: int = 0
    disturbed: set[str] = field(default_factory=set)
    """Names of pods that may have become others, or have been away for a moment, since all was quiet."""

    def operate(self) -> None:
        name = self.chance.choice(FILES)
        operation = self.chance.choice([self._write, self._write, self._replace, self._resize, self._break])
        if name in self.pods and self.chance.random() < 0.5:
            operation = self.chance.choice([self._remove, self._rename, self._touch, self._link, self._swap])
        before = dict(self.pods)
        operation(name)
        harmless = operation in (self._resize, self._touch)
        for file in before.keys() | self.pods.keys():
            if before.get(file) != self.pods.get(file) or (file == name and not harmless):
                was, now = before.get(file), self.pods.get(file)
                if not (harmless and was and now and was[:2] == now[:2]):
                    self.disturbed.update(held[0] for held in (was, now) if held)

    def mend(self) -> None:
        """Rewrite or remove each broken file."""
        for name in [name for name, held in self.pods.items() if held is None]:
            self.chance.choice([self._write, self._remove])(name)
            self.disturbed.update(held[0] for held in [self.pods.get(name)] if held is not None)

    def mark(self) -> None:
        """Write a file that is scanned before all others."""
        self.versions += 1
        self.pods[MARK] = held = ("mark", self.versions, 1)
        (self.path / MARK).write_bytes(text(*held))
        self.disturbed.add("mark")

    @property
    def marked(self) -> tuple[int, int]:
        return self.versions, 1

    def meant(self) -> dict[str, tuple[int, int]]:
        """Return the version and amount of each pod by name; the first file that names a pod counts."""
        found: dict[str, tuple[int, int]] = {}
        for file, held in sorted(self.pods.items()):
            if held is not None and not file.startswith("."):
                found.setdefault(f"{held[0]}-{NODE}", held[1:])
        return found

    def _new(self) -> tuple[str, int, int]:
        self.versions += 1
        return self.chance.choice(NAMES), self.versions, self.chance.randrange(1, 9)

    def _clear(self, name: str) -> Path:
        path = self.path / name
        if path.is_symlink():
            path.unlink()
        return path

    def _write(self, name: str) -> None:
        held = self.pods[name] = self._new()
        content = text(*held)
        with self._clear(name).open("wb") as file:
            half = self.chance.randrange(len(content))
            file.write(content[:half])
            file.flush()
            file.write(content[half:])

    def _replace(self, name: str) -> None:
        held = self.pods[name] = self._new()
        fresh = self.path.parent / "fresh"
        fresh.write_bytes(text(*held))
        fresh.rename(self.path / name)

    def _resize(self, name: str) -> None:
        held = self.pods.get(name)
        path = self.path / name
        if held is not None and not path.is_symlink():
            self.pods[name] = resized = (held[0], held[1], self.chance.randrange(1, 9))
            path.write_bytes(text(*resized))

    def _break(self, name: str) -> None:
        self._clear(name).write_bytes(self.chance.choice(BROKEN))
        self.pods[name] = None

    def _remove(self, name: str) -> None:
        (self.path / name).unlink()
        del self.pods[name]

    def _rename(self, name: str) -> None:
        other = self.chance.choice(FILES)
        (self.path / name).replace(self.path / other)
        self.pods[other] = self.pods.pop(name)

    def _touch(self, name: str) -> None:
        os.utime(self.path / name)

    def _link(self, name: str) -> None:
        """Replace a file by a symlink to its content, as in a mounted ConfigMap."""
        kept = self.path.parent / "kept" / f"{self.versions}-{self.chance.random()}"
        kept.write_bytes((self.path / name).read_bytes())
        (self.path / name).unlink()
        (self.path / name).symlink_to(kept)

    def _swap(self, name: str) -> None:
        other = self.chance.choice(sorted(self.pods.keys() - {MARK}))
        between = self.path / ".between"
        for source, target in ((name, ".between"), (other, name), (".between", other)):
            if source != target and (self.path / source).exists():
                (self.path / source).replace(self.path / target)
        assert not between.exists() or name == other
        between.unlink(missing_ok=True)
        if name != other:
            self.pods[name], self.pods[other] = self.pods[other], self.pods[name]


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize("seed", range(4))
async def test_pods_are_what_the_files_say_when_all_is_quiet(memory: Path, seed: int) -> None:
    chance = random.Random(20261122 + seed)
    manifests = memory / "manifests"
    manifests.mkdir()
    (memory / "kept").mkdir()
    files = Directory(manifests, chance)
    agent = Agent(manifests, RecordStore(memory / "records"))
    await agent.start()
    left = OPERATIONS // 4
    uids: dict[str, str] = {}
    stood_for: dict[str, tuple[str, int]] = {}
    while left > 0:
        burst = min(chance.choice([1, 3, 30, 200]), left)
        left -= burst
        away = chance.random() < 0.2
        files.disturbed.clear()
        if away:
            await agent.stop()
        for _ in range(burst):
            files.operate()
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() * 0.03)
        files.mend()
        if away:
            await agent.start()
        for _ in range(2):  # a look that had begun before may see the first
            files.mark()
            await eventually(lambda: shown(agent).get(f"mark-{NODE}") == files.marked)
        assert shown(agent) == files.meant()
        for name, pod in agent.desired.items():
            if name in uids and name.removesuffix(f"-{NODE}") not in files.disturbed:
                assert pod.uid == uids[name], "it is the same pod"
            version = (name, shown(agent)[name][0])
            assert stood_for.setdefault(pod.uid, version) == version, "one uid for two pods"
        uids = {name: pod.uid for name, pod in agent.desired.items()}
    await agent.stop()
    assert agent.faults


async def test_a_file_written_twice_in_one_tick_of_its_clock_is_read_twice(memory: Path) -> None:
    manifests = memory / "manifests"
    manifests.mkdir()
    agent = Agent(manifests, RecordStore(memory / "records"))
    await agent.start()

    def wanted(version: int) -> bool:
        return shown(agent) == {f"p-{NODE}": (version, 1)}

    tick = time.time_ns() + 3600 * 10**9
    for version in (1, 2):
        path = manifests / "a.yaml"
        path.write_bytes(text("p", version))
        os.utime(path, ns=(tick, tick))
        await eventually(partial(wanted, version))
    await agent.stop()


async def test_a_file_that_was_another_while_it_was_read_is_read_again(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files are exchanged after the scan, and exchanged again after they were read, without a
    notification.
    """

    def exhausted(*_: object) -> None:
        raise Refused("no watches left")

    manifests = memory / "manifests"
    manifests.mkdir()
    paths = [manifests / "a.yaml", manifests / "b.yaml"]
    look = sources._stamps
    looks: list[Any] = []

    def exchange() -> None:
        between = memory / "between"
        for source, target in zip([*paths, between], [between, *paths], strict=True):
            source.replace(target)

    def exchanging(path: Path) -> Any:
        if len(looks) == 1:
            exchange()
        found = look(path)
        if not looks:
            exchange()
        looks.append(found)
        return found

    monkeypatch.setattr(sources, "InotifyWatch", exhausted)
    monkeypatch.setattr(sources, "_stamps", exchanging)
    for path, version in zip(paths, (1, 2), strict=True):
        path.write_bytes(text("p", version))
        os.utime(path, ns=(10**9 * version,) * 2)
    agent = Agent(manifests, RecordStore(memory / "records"), period=0.02)
    await agent.start()
    await eventually(lambda: len(looks) > 1 and shown(agent) == {f"p-{NODE}": (1, 1)})
    await agent.stop()


def test_another_manifest_does_not_adopt_the_remains_of_a_pod(tmp_path: Path) -> None:
    remains: list[PodRecord] = []
    uids = StaticUids(lambda: remains, AcceptedSpecs(RecordStore(tmp_path)))

    def chosen(value: str) -> str:
        """Return the uid of a pod with another environment, which a container's hash does not contain."""
        pod, _ = parse_pods(text("p", 1), "a.yaml")
        pod[0].metadata.uid = f"uid-{value}"
        uid = uids.choose(pod[0], f"digest-{value}", lambda: pod[0].uid, uids.held())
        remains[:] = remains or [record(pod[0])]
        return uid

    assert chosen("1") == "uid-1"
    uids.keep_only([])
    assert chosen("1") == "uid-1"
    uids.keep_only([])
    assert chosen("2") == "uid-2"


def shown(agent: Agent) -> dict[str, tuple[int, int]]:
    """Version and amount of each pod that the agent wants."""
    return {name: _said(pod) for name, pod in agent.desired.items()}


def _said(pod: Pod) -> tuple[int, int]:
    container = pod.spec.containers[0]
    assert container.image is not None
    return int(container.image.partition(":")[2]), container.requests["cpu"].milli
