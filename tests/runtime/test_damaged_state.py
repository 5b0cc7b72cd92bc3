"""The embedded runtime starts with damaged state files, and reports which file is bad."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.cri.client import RuntimeClient
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.images.store import ImageStore
from engine.runtime.shim import container as shim
from engine.runtime.state import StateDirectory
from engine.testing.images import ImageEntry, make_layer, write_image
from engine.wire import cri_v1_pb2 as cri
from tests.groups import groups_with
from tests.runtime.pods import Pods


class Shape:
    """Stand in for a container of which only the id, which names its directory, matters."""

    id = "c"


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    state = StateDirectory(tmp_path)
    state.open()
    (state.containers / "c").mkdir()
    return state


@pytest.mark.parametrize("name", ["started", "exit"])
def test_every_damage_to_what_a_shim_wrote_is_seen(
    state: StateDirectory, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = state.containers / "c" / name
    text = {"started": "1700000000000000000\n", "exit": "3 0 0 1700000000000000001\n"}[name]
    read = {"started": state.started, "exit": state.ending}[name]
    whole = None
    for bit in range(-1, 8 * 2 * len(text)):
        shim._reserve(str(path))
        shim._write(str(path), text)
        if bit < 0:
            whole = read(Shape())  # type: ignore[arg-type]
            continue
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        written = path.stat().st_mtime_ns
        caplog.clear()
        found = read(Shape())  # type: ignore[arg-type]
        assert str(path) in caplog.text, bit
        assert found == (written if name == "started" else None)
    assert whole == (1700000000000000000 if name == "started" else (3, 0, 0, 1700000000000000001))
    for content in (b"", b"17", text.encode(), b"\xff\xfe\n\xff\xfe\n"):
        path.write_bytes(content)
        caplog.clear()
        read(Shape())  # type: ignore[arg-type]
        assert str(path) in caplog.text, content


@pytest.mark.root
def test_an_end_is_recorded_on_a_full_file_system(tmp_path: Path, state: StateDirectory) -> None:
    directory = state.containers / "c"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)], check=True)
    try:
        shim._reserve(f"{directory}/exit")
        with pytest.raises(OSError, match="No space left on device"):
            (directory / "filler").write_bytes(b"x" * 65536)
        shim._write(f"{directory}/exit", "3 0 0 17\n")
        ending = state.ending(Shape())  # type: ignore[arg-type]
        assert ending is not None
        assert ending.exit_code == 3
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["containers", "sandboxes"])
async def test_containers_with_damaged_records_end_and_the_others_are_adopted(
    tmp_path: Path,
    busybox_archive: Path,
    private_cgroup_root: str,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    def runtime() -> EmbeddedRuntime:
        return EmbeddedRuntime(socket=tmp_path / "r.sock", root=tmp_path / "root", state=tmp_path / "state")

    first = runtime()
    await first.start()
    await first.import_image(busybox_archive)
    client = RuntimeClient(str(first.socket))
    pods = Pods(client, tmp_path, private_cgroup_root, "embedded")
    sandboxes = [await pods.pod(), await pods.pod()]
    bad, good = [await pods.start(sandbox, "/bin/sleep", "1000") for sandbox in sandboxes]
    await pods.note_processes()
    await first.stop()
    damaged = tmp_path / "state" / kind / (bad if kind == "containers" else sandboxes[0]) / "record.json"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    second = runtime()
    await second.start()
    try:
        assert str(damaged) in caplog.text
        running = {c.id for c in await client.list_containers()}
        assert running == {good}
        assert (await pods.status(good)).state == cri.CONTAINER_RUNNING
        assert not groups_with(bad)
    finally:
        await client.close()
        await second.purge()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"id": 3}', b"[" * 100_000])
def test_a_damaged_record_of_an_image_takes_only_that_image(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    store = ImageStore(tmp_path / "store")
    for name in ("good", "bad"):
        layer = make_layer([ImageEntry(f"{name}", b"x")])
        store.import_archive(write_image(tmp_path / f"{name}.tar", [f"example.com/{name}:1"], layers=[layer]))
    bad = store.get("example.com/bad:1")
    record = tmp_path / "store" / "images" / f"{bad.id[7:]}.json"
    record.write_bytes(content)
    after = ImageStore(tmp_path / "store")
    assert after.get("example.com/good:1") is not None
    assert after.get("example.com/bad:1") is None
    assert str(record) in caplog.text
    assert len(list(record.parent.glob(f"{record.name}.bad-*"))) == 1
