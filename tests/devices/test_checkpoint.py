"""The checkpoint file: kept across agents, written once for many changes, set aside when it is not ours."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import Unavailable
from engine.devices.checkpoint import Checkpoint, CheckpointEntry, DeviceCheckpointError, decode, encode
from engine.devices.checkpoint_file import FILE_NAME, CheckpointFile
from tests.waiting import eventually

GPU = "example.com/gpu"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
id_lists = st.none() | st.lists(texts, max_size=3)
entries = st.builds(
    CheckpointEntry,
    pod_uid=texts,
    container_name=texts,
    resource_name=texts,
    device_ids=st.none() | st.dictionaries(st.integers(-1, 20), id_lists, max_size=3),
    alloc_resp=st.none() | st.binary(max_size=8),
)
checkpoints = st.builds(
    Checkpoint,
    pod_device_entries=st.none() | st.lists(entries, max_size=3),
    registered_devices=st.none() | st.dictionaries(texts, id_lists, max_size=3),
)


@given(checkpoints)
@settings(deadline=None)
def test_a_written_checkpoint_is_read(checkpoint):
    assert decode(encode(checkpoint)) == checkpoint


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{", b'{"Data":{}}', b'{"Data":{"PodDeviceEntries":[1]}}', b"\xff"]
)
def test_a_file_that_is_no_checkpoint_is_reported(text):
    with pytest.raises(DeviceCheckpointError):
        decode(text)


async def test_a_kubelet_s_file_is_taken_over(agent):
    """Written by hand in the kubelet's form: the pod keeps its device and its plugin's answer."""
    await agent.stop_manager()
    kubelets = Checkpoint(
        pod_device_entries=[
            CheckpointEntry(
                pod_uid="uid-a",
                container_name="app",
                resource_name=GPU,
                device_ids={1: ["gpu-3"]},
                alloc_resp=b"\x0a\x06\x0a\x01K\x12\x01V",
            )
        ],
        registered_devices={GPU: ["gpu-3", "gpu-0"]},
    )
    (agent.plugin_dir / FILE_NAME).write_bytes(encode(kubelets))
    (agent.plugin_dir / "left-over.sock").write_text("")
    (agent.plugin_dir / "kept").mkdir()
    await agent.start()
    assert agent.counts() == (0, 0)
    assert {entry.name for entry in agent.plugin_dir.iterdir()} == {"kept", FILE_NAME, "kubelet.sock"}
    pod = agent.make_pod("a")
    agent.pods.append(pod)
    await agent.plugin(count=4)
    await agent.manager.allocate(pod)
    assert agent.devices(pod) == ["gpu-3"]
    assert (await agent.manager.container_config(pod, "app")).envs == {"K": "V"}


async def test_a_corrupt_file_is_set_aside(agent, caplog):
    await agent.stop_manager()
    path = agent.plugin_dir / FILE_NAME
    path.write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    await agent.start()
    (kept,) = (agent.plugin_dir / "set-aside").iterdir()
    assert kept.read_text().endswith('"Checksum":1}')
    assert "checksum 1 does not match its data" in caplog.text
    assert str(kept) in caplog.text
    await agent.restart()
    assert kept.exists(), "the next start leaves it where it is"


async def test_the_file_equals_the_state(agent):
    await agent.plugin(count=4, numa=2)
    pod = await agent.admit(agent.make_pod("a", agent.container("app", gpu=3)))
    found = decode((agent.plugin_dir / FILE_NAME).read_bytes())
    (entry,) = found.pod_device_entries
    assert entry.device_ids == {0: ["gpu-0", "gpu-1"], 1: ["gpu-2"]}
    assert found.registered_devices == {GPU: ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]}
    assert ((agent.plugin_dir / FILE_NAME).stat().st_mode & 0o777) == 0o600
    agent.manager.pod_removed(pod.uid)
    await agent.stop_manager()
    assert decode((agent.plugin_dir / FILE_NAME).read_bytes()).pod_device_entries is None
    await agent.start()


async def test_a_list_without_news_writes_nothing(agent):
    plugin = await agent.plugin(count=100)
    file = agent.manager._file
    await eventually(lambda: file.writes > 0)
    await file.flush()
    before = file.writes
    for _ in range(5):
        await plugin.set_devices(plugin._devices)
    await plugin.set_devices(list(reversed(plugin._devices)))
    await asyncio.sleep(0.2)
    assert file.writes == before


async def test_many_changes_share_a_write(agent):
    plugin = await agent.plugin(count=50)
    await eventually(lambda: agent.manager._file.writes > 0)
    before = agent.manager._file.writes
    pods = [agent.make_pod(f"p{i}") for i in range(50)]
    agent.pods.extend(pods)
    await asyncio.gather(*(agent.manager.allocate(pod) for pod in pods))
    assert agent.manager._file.writes - before < 50
    held = [id for pod in pods for id in agent.devices(pod)]
    assert sorted(held) == sorted(plugin.ids)
    assert len(decode((agent.plugin_dir / FILE_NAME).read_bytes()).pod_device_entries) == 50


async def test_a_directory_that_cannot_be_written_fails_the_waiter(tmp_path):
    file = CheckpointFile(tmp_path / "absent", lambda: Checkpoint(registered_devices={"a": []}))
    await file.start()
    with pytest.raises(Exception, match="cannot write: No such file"):
        await file.flush()
    with pytest.raises(Exception, match="cannot write: No such file"):
        await file.stop()


async def test_a_stop_waits_for_the_write_in_progress(tmp_path):
    """The next agent would read the file as it was before."""
    writing, go_on = threading.Event(), threading.Event()

    def fault(point: str) -> None:
        if point == "checkpoint written":
            writing.set()
            go_on.wait(60)

    file = CheckpointFile(tmp_path, lambda: Checkpoint(registered_devices={"a": []}), fault=fault)
    await file.start()
    file.changed()
    await asyncio.to_thread(writing.wait, 60)
    stopping = asyncio.create_task(file.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    go_on.set()
    await stopping
    assert decode((tmp_path / FILE_NAME).read_bytes()).registered_devices == {"a": []}


def test_the_json_is_what_go_writes():
    written = encode(Checkpoint(pod_device_entries=None, registered_devices={"b": ["<&>\u2028"], "a": None}))
    assert written.startswith(
        b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a":null,"b":["\\u003c\\u0026\\u003e\\u2028"]}},'
    )
    assert msgspec.json.decode(written)["Data"]["RegisteredDevices"]["b"] == ["<&>\u2028"]


@pytest.mark.parametrize("kind", ["directory", "link to itself", "deep"])
def test_an_invalid_checkpoint_is_set_aside_and_the_agent_starts(tmp_path, caplog, kind):
    path = tmp_path / FILE_NAME
    match kind:
        case "directory":
            path.mkdir()
        case "link to itself":
            path.symlink_to(path.name)
        case "deep":
            path.write_bytes(b"[" * 100_000)
    assert CheckpointFile(tmp_path, Checkpoint).load(17.0) == Checkpoint()
    assert str(path) in caplog.text
    assert not path.is_symlink()
    assert not path.exists()
    assert [each.name for each in (tmp_path / "set-aside").iterdir()] == [f"{FILE_NAME}.17"]


def failing_opens(monkeypatch: pytest.MonkeyPatch, path: Path, number: int, times: int) -> None:
    usual, left = os.open, [times]

    def open_it(asked, *arguments, **named):
        if asked == path and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return usual(asked, *arguments, **named)

    monkeypatch.setattr(os, "open", open_it)


def test_a_temporarily_unreadable_checkpoint_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAME
    held = Checkpoint(registered_devices={GPU: ["0"]})
    path.write_bytes(encode(held))
    failing_opens(monkeypatch, path, errno.EIO, times=1)
    assert CheckpointFile(tmp_path, Checkpoint).load(17.0) == held


def test_a_shortage_of_descriptors_takes_no_devices_from_running_pods(tmp_path, monkeypatch):
    path = tmp_path / FILE_NAME
    path.write_bytes(encode(Checkpoint(registered_devices={GPU: ["0"]})))
    failing_opens(monkeypatch, path, errno.EMFILE, times=2)
    with pytest.raises(Unavailable, match="Too many open files"):
        CheckpointFile(tmp_path, Checkpoint).load(17.0)
    assert path.exists()
