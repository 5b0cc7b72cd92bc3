"""Every file that a later process reads back: what is damaged is never believed, is named and set aside, and
its reader goes on. Each bit flipped, each length cut.

The files are listed here by the module that owns them; a module that begins to write files is found.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.api.events import EventRecorder
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.cpumanager import baselines as cpu_baselines
from engine.cpumanager import manager as cpu_manager
from engine.cpumanager.checkpoint import CpuCheckpoint
from engine.cpumanager.checkpoint import decode as decode_cpus
from engine.cpumanager.checkpoint import encode as encode_cpus
from engine.devices import checkpoint_file
from engine.devices.checkpoint import Checkpoint, CheckpointEntry, encode
from engine.devices.checkpoint_file import CheckpointFile
from engine.dra.checkpoint import decode as claims_decode
from engine.dra.checkpoint import encode as claims_encode
from engine.dra.table import ClaimState, PreparedDevice
from engine.host.checksummed_file import strip_checksum, write_checksummed
from engine.host.disks.project_quota import keep_project, kept_project
from engine.host.state_file import StateFile
from engine.images import records_file
from engine.images.records import ImageRecords
from engine.memorymanager import manager as memory_manager
from engine.memorymanager.checkpoint import MemoryCheckpoint
from engine.memorymanager.checkpoint import decode as decode_memory
from engine.memorymanager.checkpoint import encode as encode_memory
from engine.memorymanager.state import Block, MemoryTable, NodeState
from engine.node.nodeinfo.node_events import NodeEvents
from engine.node.runtime_view.runtime_health import HandlerFeatures, RuntimeFeatures
from engine.node.spec.user_namespaces import UserNamespaceAllocator
from engine.runtime.addresses import PodNetwork
from engine.runtime.images.store import ImageStore, StoredImage
from engine.runtime.objects.records import RuntimeContainer, Sandbox
from engine.runtime.state import BackendNotes, StateDirectory
from engine.wire import cri_v1_pb2 as cri
from tests.project.strange_content import strange

ENGINE = Path(__file__).parents[2] / "engine"
FEW = 600
DAMAGES = int(os.environ.get("KUBENGINE_KEPT_DAMAGES", FEW))
"""How many strange contents the readers are given in all (`make chaos`: 36,000)."""

WRITES = {"replace_file", "replacing_file", "write_text", "write_bytes", "O_CREAT", "NamedTemporaryFile"}
LEFT_OUT = ("bench", "cli", "plan", "testing", "wire")
"""Rooms that write what users ask for."""
PEM = "PEM under the kubelet's names; a file that does not parse is requested again"
CONTAINERS = "for containers; not read back"
WRITERS = {
    "csi/volume_data.py": "the file is a kubelet's; one that says nothing leaves a mount that is taken away",
    "intree/iscsi.py": "a kubelet's file; without a good one the directory's name tells what to detach",
    "intree/scsi.py": "sysfs",
    "cluster/certificates/bootstrap.py": "a kubeconfig under the kubelet's name",
    "cluster/certificates/store.py": PEM,
    "cluster/certificates/serving.py": PEM,
    "cpumanager/system_processes.py": "cgroupfs",
    "eviction/usage_events.py": "cgroupfs",
    "hostsetup/own_process.py": "procfs and cgroupfs",
    "shadow/machine_reader.py": "only reads, by the readers of the kept files",
    "shadow/takeover_survey.py": "the same",
    "shutdown/logind.py": "a drop-in of logind, which the agent never reads",
    "shutdown/manager.py": "a kubelet's file; an unreadable one counts as none",
    "host/records/store.py": "lines under checksums: tests/host/test_records.py",
    "node/pod/record_names.py": "files of earlier versions, which it removes",
    "host/safe_open.py": "how volumes' files are written",
    "host/files.py": "how files are written",
    "host/checksummed_file.py": "how files are kept",
    "host/state_file.py": "how state files that a kubelet reads are kept",
    "node/decisions/file.py": "lines that are only appended; the agent reads none of them",
    "node/images/pull_records.py": "as a kubelet keeps them; who is not found in one shows that he may",
    "node/logs/log_rotation.py": "logs",
    "node/node.py": "a lock without content",
    "node/volumes/container_files.py": CONTAINERS,
    "node/volumes/pod_volumes.py": CONTAINERS,
    "record/writer.py": "blocks with checksums that are only appended: tests/record",
    "runtime/images/layers.py": "layers, checked by their digest when they are unpacked",
    "runtime/processes.py": f"a lock without content; {CONTAINERS}",
    "runtime/shim/container.py": "`started` and `exit`, recorded twice: tests/runtime/test_damaged_state.py",
    "runtime/shim/logs.py": "logs",
    "runtime/shim/rootfs.py": CONTAINERS,
    "runtime/shim/sandbox.py": "`up`, without content",
    "runtime/shim/terminal.py": CONTAINERS,
}


@dataclass(frozen=True)
class Kept:
    """Describe a file that `owner` writes below a directory, and how it writes and reads it."""

    owner: str
    file: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]


SANDBOX = Sandbox("s", cri.PodSandboxConfig(hostname="h"), 17)
CONTAINER = RuntimeContainer("c", SANDBOX, cri.ContainerConfig(image=cri.ImageSpec(image="i")), 17)
ENTRY = CheckpointEntry(
    pod_uid="u", container_name="c", resource_name="r/g", device_ids={0: ["g"]}, alloc_resp=b"abc"
)
CHECKPOINT = Checkpoint(pod_device_entries=[ENTRY], registered_devices={"r/g": ["g", "h"]})
NETWORK = {"bridge": "b", "subnet": "10.66.0.0/20"}
USERS = Pod(metadata=ObjectMeta(uid="u"), spec=PodSpec(host_users=False))


TABLE = MemoryTable(total=4096, system_reserved=96, allocatable=4000, reserved=1000, free=3000)
MEMORY = MemoryCheckpoint(
    "Static",
    {0: NodeState(number_of_assignments=1, memory_map={"memory": TABLE}, cells=(0,))},
    {"u": {"c": [Block((0,), "memory", 1000)]}},
)


def state_file(path: Path) -> StateFile:
    return StateFile(path, bytes, name="state")


def _image_records(directory: Path) -> None:
    records = ImageRecords()
    records.restore({"i": {"firstDetected": 1.0, "lastUsed": 2.0, "size": 3}}, 5.0)
    records_file.save(directory / records_file.FILE_NAME, records)


def _read_image_records(directory: Path) -> dict[str, dict[str, float]]:
    records = ImageRecords()
    records_file.load(directory / records_file.FILE_NAME, records, 5.0)
    return records.export()


def _rebooted(directory: Path) -> bool:
    """Tell whether the file holds another boot id, so that a Rebooted event is recorded."""
    recorder = EventRecorder(lambda: 0.0)
    NodeEvents(recorder, "n", directory / "boot_id").started("two")
    return any(event.reason == "Rebooted" for event in recorder)


def _store(directory: Path) -> ImageStore:
    store = ImageStore(directory)
    store.open()
    return store


def _image(directory: Path) -> None:
    _store(directory)._write(StoredImage("sha256:" + "a" * 64, {"Cmd": ["x"]}, ["l"], ["t"], size=5))


def _layer(directory: Path) -> None:
    (directory / "layers/l").mkdir(parents=True)
    _store(directory)._keep_size("l", (123, 45))


def _state(directory: Path) -> StateDirectory:
    state = StateDirectory(directory)
    state.open()
    return state


DEVICE = PreparedDevice("pool", "dev", None, ("r",), ("example.com/gpu=0",))
CLAIM = ClaimState("u", "c", "default", {"p"}, {"example.com": (DEVICE,)})


KEPT = [
    Kept(
        "node/spec/user_namespaces.py",
        "u/userns",
        lambda d: (
            (d / "u").mkdir()
            or UserNamespaceAllocator(d).of(
                USERS, "", RuntimeFeatures(handlers={"": HandlerFeatures(user_namespaces=True)})
            )
        ),
        lambda d: UserNamespaceAllocator(d)._read(d / "u/userns"),
    ),
    Kept(
        "node/nodeinfo/node_events.py",
        "boot_id",
        lambda d: NodeEvents(EventRecorder(lambda: 0.0), "n", d / "boot_id").started("one"),
        _rebooted,
    ),
    Kept("images/records_file.py", records_file.FILE_NAME, _image_records, _read_image_records),
    Kept(
        "devices/checkpoint_file.py",
        checkpoint_file.FILE_NAME,
        lambda d: (d / checkpoint_file.FILE_NAME).write_bytes(encode(CHECKPOINT)),
        lambda d: CheckpointFile(d, Checkpoint).load(1.0),
    ),
    Kept(
        "cpumanager/manager.py",
        cpu_manager.FILE_NAME,
        lambda d: (d / cpu_manager.FILE_NAME).write_bytes(
            encode_cpus(CpuCheckpoint("static", "0,3-7", {"u": {"c": "1-2"}}))
        ),
        lambda d: state_file(d / cpu_manager.FILE_NAME).read(decode_cpus, logging.error),
    ),
    Kept(
        "cpumanager/baselines.py",
        cpu_baselines.FILE_NAME,
        lambda d: (d / cpu_baselines.FILE_NAME).write_bytes(cpu_baselines.encode({"u": {"c": 6}})),
        lambda d: state_file(d / cpu_baselines.FILE_NAME).read(cpu_baselines.decode, logging.error),
    ),
    Kept(
        "memorymanager/manager.py",
        memory_manager.FILE_NAME,
        lambda d: (d / memory_manager.FILE_NAME).write_bytes(encode_memory(MEMORY)),
        lambda d: state_file(d / memory_manager.FILE_NAME).read(decode_memory, logging.error),
    ),
    Kept(
        "runtime/images/store.py",
        f"images/{'a' * 64}.json",
        _image,
        lambda d: _store(d).get("sha256:" + "a" * 64),
    ),
    Kept("runtime/images/store.py", "layers/l.size", _layer, lambda d: _store(d)._layer_size("l")),
    Kept(
        "runtime/state.py",
        "sandboxes/s/record.json",
        lambda d: _state(d).save_sandbox(SANDBOX, BackendNotes()),
        lambda d: [(s.id, s.created_at, s.config) for s, _ in _state(d).load_sandboxes()],
    ),
    Kept(
        "runtime/state.py",
        "containers/c/record.json",
        lambda d: _state(d).save_container(CONTAINER, BackendNotes()),
        lambda d: [(c.id, c.created_at, c.config) for c, _ in _state(d).load_containers({"s": SANDBOX})],
    ),
    Kept(
        "host/disks/project_quota.py",
        "project",
        lambda d: keep_project(d / "project", 1_048_577),
        lambda d: kept_project(d / "project"),
    ),
    Kept(
        "dra/manager.py",
        "dra_manager_state",
        lambda d: (d / "dra_manager_state").write_bytes(claims_encode([CLAIM])),
        lambda d: state_file(d / "dra_manager_state").read(claims_decode, logging.error),
    ),
    Kept(
        "runtime/addresses.py",
        "network.json",
        lambda d: write_checksummed(d / "network.json", json.dumps(NETWORK).encode()),
        lambda d: PodNetwork(d, "10.77.0.0/20")._choose(),
    ),
]


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the content with each of its bits flipped, and cut to every shorter length."""
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for length in range(len(content)):
        yield content[:length]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.file.rpartition("/")[2][-20:])
async def test_a_damaged_file_is_named_and_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: Kept
) -> None:
    path = tmp_path / kept.file
    writing = kept.write(tmp_path)
    if inspect.isawaitable(writing):
        await writing
    content = path.read_bytes()
    whole = kept.read(tmp_path)
    path.unlink()
    without = kept.read(tmp_path)
    assert whole != without
    for bad in damaged(content):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bad)
        caplog.clear()
        found = kept.read(tmp_path)
        assert found == without, bad
        assert str(path) in caplog.text, bad
        assert not path.exists() or path.read_bytes() != bad
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert kept.read(tmp_path) == whole


def is_sealed(content: bytes) -> bool:
    with suppress(ValueError):
        strip_checksum(content)
        return True
    return False


async def written(kept: Kept, directory: Path) -> bytes:
    """Let the owner write its file, and return the content."""
    directory.mkdir(exist_ok=True)
    writing = kept.write(directory)
    if inspect.isawaitable(writing):
        await writing
    return (directory / kept.file).read_bytes()


@pytest.mark.timeout(0 if DAMAGES > FEW else 600)
@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.file.rpartition("/")[2][-20:])
async def test_any_content_is_read_or_named_and_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: Kept
) -> None:
    chance = random.Random(kept.file)
    others = [
        await written(each, tmp_path / f"other-{at}") for at, each in enumerate(KEPT) if each is not kept
    ]
    content = await written(kept, tmp_path / "own")
    path = tmp_path / "own" / kept.file
    for _ in range(-(-DAMAGES // len(KEPT))):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bad := strange(content, others, chance))
        caplog.clear()
        kept.read(tmp_path / "own")
        assert path.exists() or is_sealed(bad) or str(path) in caplog.text, bad
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    kept.read(tmp_path / "own")


def test_whoever_writes_files_is_known() -> None:
    components = [path for path in ENGINE.iterdir() if path.is_dir() and path.name not in LEFT_OUT]
    found = {
        str(path.relative_to(ENGINE)) for room in components for path in room.rglob("*.py") if writes(path)
    }
    owners = {kept.owner for kept in KEPT}
    assert found - owners - WRITERS.keys() == set(), (
        "keep it with engine.host.checksummed_file, or add the exception and its reason here"
    )
    assert owners | WRITERS.keys() == found, "an exception that nothing needs"


def writes(path: Path) -> bool:
    tree = ast.parse(path.read_text(), str(path))
    return any(
        _names(node) & (WRITES | {"StateFile"})
        or (isinstance(node, ast.ImportFrom) and node.module == "engine.host.checksummed_file")
        or (isinstance(node, ast.Call) and _opens_to_write(node))
        for node in ast.walk(tree)
    )


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()


def _opens_to_write(call: ast.Call) -> bool:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [
        each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return bool(_names(call.func) & {"open"}) and any(
        set(mode) & set("wax") for mode in modes if len(mode) < 4
    )
