"""The record file after every accident: a power cut at any byte, damage anywhere, a disk that refuses."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api.errors import Refused, Unavailable
from engine.api.lifecycle import PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec
from engine.api.status import PodStatus
from engine.host.records import lines, store
from engine.host.records.store import RecordStore, StoredNames
from engine.node.pod.records import AcceptedSpecs, ReadinessRecords, TerminationRecord, TerminationRecords
from tests.no_files import NO_FILES, make_no_file
from tests.waiting import eventually

DAMAGES = int(os.environ.get("KUBENGINE_KEPT_DAMAGES", "600"))
"""How many damaged files are read (`make chaos`: 36,000)."""
HISTORY = (
    {"a": b"1", "b": b"{}", "c": b""},
    {"a": b"2 3"},
    {"b": b"\xff\x00", "d": b"a b" * 3},
    {"a": b"4", "d": b"5"},
)
"""Groups of records, in the order in which they were put."""
NEWEST = {"a": b"4", "b": b"\xff\x00", "c": b"", "d": b"5"}
POD = Pod(
    metadata=ObjectMeta(name="a", namespace="d", uid="u", annotations={"k": "v"}),
    spec=PodSpec(containers=[Container(name="c", image="i")]),
)
POD_END = TerminationRecord(PodEnd("Evicted", "low"), PodStatus(phase="Failed"))


@pytest.fixture
def memory() -> Iterator[Path]:
    """Yield a directory in memory, where syncs cost nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@asynccontextmanager
async def opened_store(path: Path, **options: Any) -> AsyncIterator[RecordStore]:
    opened = RecordStore(path, **options)
    opened.open()
    opened.start()
    try:
        yield opened
    finally:
        await opened.stop()


async def put(opened: RecordStore, records: Mapping[str, bytes]) -> None:
    await asyncio.gather(*(opened.put(name, value) for name, value in records.items()))


def read(path: Path, names: StoredNames | None = None) -> dict[str, bytes]:
    """Return the records that the next agent finds."""
    opened = RecordStore(path, names=names)
    opened.open()
    found = {name: opened.get(name) for name in opened._places}
    if opened._file >= 0:
        os.close(opened._file)
    return {name: value for name, value in found.items() if value is not None}


async def written(path: Path) -> list[tuple[int, dict[str, bytes]]]:
    """Write the history; return the file's length and the acknowledged records after each group."""
    known: dict[str, bytes] = {}
    moments = [(0, known)]
    async with opened_store(path) as opened:
        for group in HISTORY:
            await put(opened, group)
            known = {**known, **group}
            moments.append((path.stat().st_size, known))
    return moments


async def test_the_newest_record_of_each_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    await written(path)
    assert read(path) == NEWEST
    assert path.stat().st_mode & 0o777 == 0o600


async def test_records_put_at_the_same_time_share_a_write(tmp_path: Path) -> None:
    async with opened_store(tmp_path / "records") as opened:
        await put(opened, {str(number): b"x" for number in range(500)})
        assert opened.writes <= 3


async def test_a_record_that_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    async with opened_store(tmp_path / "records") as opened:
        await opened.put("a", b"1")
        await opened.put("a", b"1")
        assert opened.writes == 1


async def test_a_power_cut_at_any_byte_loses_nothing_that_was_acknowledged(memory: Path) -> None:
    path = memory / "records"
    moments = await written(path)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        found = read(path)
        acknowledged = [known for size, known in moments if size <= length][-1]
        assert acknowledged.keys() <= found.keys()
        states = [known for _, known in moments]
        assert all(any(known.get(name) == value for known in states) for name, value in found.items())
        if length in {size for size, _ in moments}:
            assert found == acknowledged
        async with opened_store(path) as opened:
            await opened.put("later", b"6")
        assert read(path) == {**found, "later": b"6"}


async def test_a_crash_at_any_step_loses_nothing_that_was_acknowledged(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "OUTDATED_BYTES", 20)
    acknowledged: dict[str, bytes] = {}
    steps: list[tuple[str, Path, dict[str, bytes]]] = []
    path = memory / "now/records"
    path.parent.mkdir()

    def crashed(step: str) -> None:
        copy = memory / str(len(steps))
        shutil.copytree(path.parent, copy)
        steps.append((step, copy / "records", dict(acknowledged)))

    async with opened_store(path, fault=crashed) as opened:
        for number in range(12):
            for group in HISTORY:
                group = {**group, "number": b"%d" % number}
                await put(opened, group)
                acknowledged.update(group)
    assert {"records written", "records synced", "records written again"} == {step for step, *_ in steps}
    for step, left, known in steps:
        found = read(left)
        later = {name for group in HISTORY for name in group} | {"number"}
        changed = {name for name, value in known.items() if found.get(name) != value}
        assert known.keys() <= found.keys(), step
        assert changed <= later, step
        if step == "records written again":
            assert not changed, step


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(flipped)


async def test_a_damaged_record_is_named_and_set_aside_and_no_older_one_is_believed(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = memory / "records"
    await written(path)
    content = path.read_bytes()
    for number, (at, bad) in enumerate(flips(content)):
        if at == len(content) - 1:
            continue  # without its line feed the last line is one that a power cut left unfinished
        path.write_bytes(bad)
        caplog.clear()
        found = read(path)
        lost = NEWEST.keys() - found.keys()
        assert found == {name: NEWEST[name] for name in found}, bad
        assert len(lost) <= 2, bad
        assert str(path) in caplog.text, bad
        assert any(aside.read_bytes() == bad for aside in memory.glob("records.bad-*")), bad
        assert len(list(memory.glob("records.bad-*"))) <= 3
        caplog.clear()
        if number % 32 == 0:
            assert read(path) == found
            assert not caplog.records, "it was written again"


async def test_a_record_that_is_damaged_later_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records"
    async with opened_store(path) as opened:
        await put(opened, {"a": b"1111", "b": b"2"})
        path.write_bytes(path.read_bytes().replace(b"1111", b"1121"))
        assert opened.get("a") is None
        assert opened.get("b") == b"2"
    assert str(path) in caplog.text


@pytest.mark.parametrize("kind", NO_FILES)
async def test_what_is_no_file_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = tmp_path / "records"
    make_no_file(path, kind)
    async with opened_store(path) as opened:
        await opened.put("a", b"1")
    assert read(path) == {"a": b"1"}


class FailingDisk:
    """Let the next `times` calls of one function of `os` fail; `pwrite` first writes all but 3 bytes."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, number: int, times: int = 1) -> None:
        self.times = times
        real: Callable[..., Any] = getattr(os, name)

        def failing(*arguments: Any) -> Any:
            if self.times:
                self.times -= 1
                if name == "pwrite":
                    real(arguments[0], bytes(arguments[1])[:-3], *arguments[2:])
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        patch.setattr(os, name, failing)


@pytest.mark.parametrize(
    ("name", "number"), [("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("fdatasync", errno.EIO)]
)
async def test_what_the_disk_refuses_is_refused_and_everything_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    path = tmp_path / "records"
    async with opened_store(path) as opened:
        await opened.put("a", b"1")
        FailingDisk(monkeypatch, name, number)
        opened.put_soon("soon", b"2")
        with pytest.raises(Refused, match=str(path)) as refused:
            await opened.put("a", b"3")
        assert refused.value.errno == number
        assert opened.get("a") == b"1"
        assert read(path)["a"] == b"1" or name == "fdatasync"
        await opened.put("b", b"4")
        assert read(path) == {"a": b"1", "b": b"4", "soon": b"2"}


async def test_one_fault_of_the_disk_is_not_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_store(tmp_path / "records") as opened:
        await opened.put("a", b"1")
        FailingDisk(monkeypatch, "pread", errno.EIO)
        assert opened.get("a") == b"1"


async def test_a_shortage_is_neither_damage_nor_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    async with opened_store(path) as opened:
        await opened.put("a", b"1")
    FailingDisk(monkeypatch, "open", errno.EMFILE, times=3)
    with pytest.raises(Unavailable, match=str(path)):
        RecordStore(path).open()
    assert read(path) == {"a": b"1"}


class Directories(StoredNames):
    """Know the keys in `known`, and raise OSError for the key "nameless"."""

    def __init__(self) -> None:
        self.known = {"a", "b", "c"}

    def of(self, key: str) -> str:
        if key == "nameless":
            raise OSError(errno.ENOTDIR, "Not a directory", key)
        return f"n/{key}"

    def key(self, name: str) -> str | None:
        key = name.removeprefix("n/")
        return key if key in self.known else None


async def test_a_record_without_a_name_fails_alone(tmp_path: Path) -> None:
    path, names = tmp_path / "records", Directories()
    async with opened_store(path, names=names) as opened:
        failed, well = await asyncio.gather(
            opened.put("nameless", b"1"), opened.put("a", b"2"), return_exceptions=True
        )
        assert isinstance(failed, Refused)
        assert well is None
    assert read(path, names) == {"a": b"2"}


async def test_records_that_nothing_needs_are_not_read_and_vanish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "OUTDATED_BYTES", 0)
    path, names = tmp_path / "records", Directories()
    async with opened_store(path, names=names) as opened:
        await put(opened, {"a": b"1", "b": b"2", "c": b"3"})
    names.known = {"a"}
    assert read(path, names) == {"a": b"1"}
    assert len(path.read_bytes().splitlines()) == 1


async def test_a_discarded_record_does_not_come_back(tmp_path: Path) -> None:
    hold = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(step: str) -> None:
        if step == "records written":
            asyncio.run_coroutine_threadsafe(hold.wait(), loop).result()

    async with opened_store(tmp_path / "records", fault=wait) as opened:
        putting = asyncio.ensure_future(opened.put("a", b"1"))
        await eventually(lambda: bool(opened._under_way))
        opened.discard("a")
        hold.set()
        await putting
        assert opened.get("a") is None
        await opened.put("a", b"2")
        opened.discard("a")
        assert opened.get("a") is None
        opened.put_soon("a", b"3")
        opened.discard("a")
        assert opened.get("a") is None


@pytest.mark.parametrize("value", [b"two\nlines"])
async def test_what_does_not_fit_in_a_line_is_our_bug(tmp_path: Path, value: bytes) -> None:
    async with opened_store(tmp_path / "records") as opened:
        with pytest.raises(Exception, match="one line"):
            await opened.put("a", value)
        await opened.put("b", b"1")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy: flipped bits, a cut, a repeated or lost part, zeros, or a line with another
    value."""
    match chance.randrange(5):
        case 0:
            data = bytearray(content)
            for at in chance.sample(range(8 * len(data)), chance.randint(1, 8)):
                data[at // 8] ^= 1 << at % 8
            return bytes(data)
        case 1:
            length = chance.randrange(len(content))
            tail = chance.choice((b"", bytes(len(content) - length), chance.randbytes(20)))
            return content[:length] + tail
        case 2:
            return content[: chance.randrange(len(content))] + content[chance.randrange(len(content)) :]
        case 3:
            data = bytearray(content)
            at = chance.randrange(len(content))
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
            return bytes(data)
    values: tuple[Any, ...] = (None, 1, "", [], {}, {"pod": 3}, {"end": {}}, {"c": ["x"]}, [[[]]])
    name = chance.choice(sorted(lines.scan(content).places))
    return content + lines.line(name, msgspec.json.encode(chance.choice(values)))


def expected(data: bytes) -> tuple[dict[str, bytes], bool]:
    """Return the records that a file must give, and whether its damage can be noticed.

    Permitted losses: the record of a damaged line, and the older ones of its key, as long as one end of the
    line still names it; what an unfinished last line would have held; lines that are not there. A cut at a
    line's end leaves a file that could have been written so, and is the only damage that is not reported.
    """
    *complete, unfinished = data.split(b"\n")
    newest: dict[str, bytes] = {}
    reported = bool(unfinished)
    for each in complete:
        checksum, _, content = each.partition(b" ")
        if hashlib.blake2b(content, digest_size=16).hexdigest().encode() == checksum:
            name = content.partition(b" ")[0]
            newest[name.decode()] = content[len(name) + 1 : -len(name) - 1]
        else:
            reported = True
            words = each.split()
            for word in (*words[:2], *words[-1:]):  # the first is a key where the checksum is gone
                newest.pop(word.decode(errors="replace"), None)
    return newest, reported


@pytest.mark.timeout(0 if DAMAGES > 600 else 300)
async def test_any_content_is_read_or_named(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = memory / "records"
    async with opened_store(path) as opened:
        await AcceptedSpecs(opened).write(POD)
        await TerminationRecords(opened).write("u", POD_END)
        ReadinessRecords(opened).write("u", {"c": ("id", True, False)})
        await opened.put("other", b"1")
    content = path.read_bytes()
    chance = random.Random(34)
    for _ in range(DAMAGES):
        path.write_bytes(bad := damaged(content, chance))
        caplog.clear()
        again = RecordStore(path)
        again.open()
        newest, reported = expected(bad)
        assert {name: again.get(name) for name in again._places} == newest, bad
        assert (str(path) in caplog.text) == reported, bad
        for records in (AcceptedSpecs(again), TerminationRecords(again), ReadinessRecords(again)):
            records.read("u")  # a value of another shape is damage too, and no exception
        if again._file >= 0:
            os.close(again._file)
