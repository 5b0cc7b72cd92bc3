"""Records belong to one directory of a pod, and those of earlier versions are taken over."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from shutil import rmtree

import pytest

from engine.api.errors import Unavailable
from engine.host import checksummed_file
from engine.host.checksummed_file import write_checksummed
from engine.host.records import store as record_store
from engine.host.records.store import RecordStore
from engine.node.pod.record_names import (
    ACCEPTED,
    END,
    KINDS,
    LINK,
    READINESS,
    PodRecordNames,
    forget,
    key,
    take_over,
)
from engine.node.running_node import RECORDS
from tests.records import store_at
from tests.waiting import eventually


async def put(root: Path, uid: str, kind: str, value: bytes) -> None:
    with store_at(root) as store:
        store.start()
        await store.put(key(uid, kind), value)
        await store.stop()


def get(root: Path, uid: str, kind: str) -> bytes | None:
    with store_at(root) as store:
        return store.get(key(uid, kind))


async def test_a_record_is_read_as_long_as_the_pods_directory_is_there(tmp_path: Path) -> None:
    await put(tmp_path, "u", END, b"{}")
    assert get(tmp_path, "u", END) == b"{}"
    assert (tmp_path / "pods/u").stat().st_mode & 0o777 == 0o750
    (tmp_path / "pods/u" / LINK).unlink()
    (tmp_path / "pods/u").rmdir()
    assert get(tmp_path, "u", END) is None


async def test_a_pod_of_a_kubelet_with_the_same_uid_is_another(tmp_path: Path) -> None:
    await put(tmp_path, "u", END, b"{}")
    (tmp_path / "pods/u" / LINK).unlink()  # the kubelet removed the directory and created it again
    assert get(tmp_path, "u", END) is None
    await put(tmp_path, "u", ACCEPTED, b"{}")
    assert get(tmp_path, "u", END) is None
    assert get(tmp_path, "u", ACCEPTED) == b"{}"


async def test_a_pod_that_comes_back_has_no_records(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        store.start()
        for kind in KINDS:
            await store.put(key("u", kind), b"{}")
        forget(store, "u")
        assert {store.get(key("u", kind)) for kind in KINDS} == {None}
        await store.stop()


async def test_what_has_the_links_name_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "pods/u").mkdir(parents=True)
    (tmp_path / "pods/u" / LINK).write_bytes(b"x")
    await put(tmp_path, "u", END, b"{}")
    assert get(tmp_path, "u", END) == b"{}"


async def test_the_link_is_on_disk_before_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("engine.node.pod.record_names.sync_directory", lambda path: order.append(str(path)))
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: order.append("file") or sync(file))
    await put(tmp_path, "u", END, b"{}")
    assert order == [str(tmp_path / "pods/u"), "file"]


def test_every_new_link_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("engine.node.pod.record_names.sync_directory", synced.append)
    names = PodRecordNames(tmp_path)
    # The order of a set depends on random hashes: many rounds of several pods.
    for round in range(50):
        pods = [f"{round}-{pod}" for pod in range(4)]
        for uid in pods:
            names.of(key(uid, ACCEPTED))
        names.sync()
        assert sorted(synced) == sorted(tmp_path / uid for uid in pods)
        synced.clear()


def test_a_link_that_cannot_be_synced_is_synced_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = PodRecordNames(tmp_path)
    names.of(key("u", ACCEPTED))

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    synced: list[Path] = []
    monkeypatch.setattr("engine.node.pod.record_names.sync_directory", fail)
    with pytest.raises(OSError, match="Input/output"):
        names.sync()
    monkeypatch.setattr("engine.node.pod.record_names.sync_directory", synced.append)
    names.sync()
    assert synced == [tmp_path / "u"]


async def test_a_removed_pod_does_not_stop_the_records_of_others(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        store.start()
        store.put_soon(key("gone", READINESS), b"{}")
        await eventually(lambda: store.writes)  # without a sync, as nobody waits for the record
        rmtree(tmp_path / "pods/gone")
        await store.put(key("u", ACCEPTED), b"{}")
        await store.stop()
    assert get(tmp_path, "u", ACCEPTED) == b"{}"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Return a root directory with the files that an earlier version wrote."""
    for kind in KINDS:
        (tmp_path / "pods/u").mkdir(parents=True, exist_ok=True)
        write_checksummed(tmp_path / f"pods/u/{kind}.json", f'{{"{kind}": 1}}'.encode())
    return tmp_path


async def migrate(root: Path) -> None:
    with store_at(root) as store:
        store.start()
        await take_over(root / "pods", store)
        await store.stop()


async def test_the_files_of_earlier_versions_become_records(earlier: Path) -> None:
    await put(earlier, "u", END, b"older")
    await migrate(earlier)
    for kind in KINDS:
        assert get(earlier, "u", kind) == f'{{"{kind}": 1}}'.encode()
    assert not list(earlier.glob("pods/u/*.json"))


async def test_a_damaged_file_of_an_earlier_version_is_set_aside(
    earlier: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = earlier / "pods/u/end.json"
    path.write_bytes(path.read_bytes()[:-1])
    await migrate(earlier)
    assert get(earlier, "u", END) is None
    assert get(earlier, "u", ACCEPTED) is not None
    assert str(path) in caplog.text


async def test_files_of_earlier_versions_stay_while_the_disk_is_full(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, store_at(earlier) as store:
        patch.setattr(record_store, "replace_file", full)
        store.start()
        await take_over(earlier / "pods", store)
        assert store.get(key("u", END)) == b'{"end": 1}'
        assert len(list(earlier.glob("pods/u/*.json"))) == len(KINDS)
        patch.undo()
        await store.stop()
    assert get(earlier, "u", END) == b'{"end": 1}'


async def test_short_descriptors_do_not_lose_a_file_of_an_earlier_version(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(checksummed_file, "_read", short)
        store = RecordStore(earlier / RECORDS, names=PodRecordNames(earlier / "pods"))
        with pytest.raises(Unavailable):
            await take_over(earlier / "pods", store)
    assert len(list(earlier.glob("pods/u/*.json"))) == len(KINDS)
