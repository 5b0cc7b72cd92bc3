"""A record loses at most its last block, stays within its bounds, and says what it lacks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import InvalidInput, Refused
from engine.record import blocks
from engine.record.blocks import (
    MAGIC,
    RecordRow,
    TornRecord,
    decode_blocks,
    encode_block,
    rows_of_body,
    whole_blocks,
)
from engine.record.reader import Record
from engine.record.writer import LEAST_BYTES, MOST_WAITING, SUFFIX, RecordWriter, segments
from tests.no_files import NO_FILES, make_no_file

ROOT = Path(__file__).parents[2]
texts = st.text(max_size=8)
rows = st.builds(
    RecordRow,
    time=st.integers(0, 2**42).map(lambda ms: ms / 1000),
    stream=texts, name=texts, text=texts, pod=texts, uid=texts, container=texts,
    inputs=st.dictionaries(texts, st.integers(-5, 5) | texts | st.none(), max_size=2),
    values=st.lists(st.integers(-(2**62), 2**62 - 1), max_size=3).map(tuple),
)  # fmt: skip


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def writer(directory: Path, clock: Clock, **limits: float) -> RecordWriter:
    options = {"max_bytes": LEAST_BYTES, "max_age": 3600.0, **limits}
    opened = RecordWriter(directory, clock=clock, **options)
    opened.open()
    return opened


def row(text: str, at: float = 1_000_000.0) -> RecordRow:
    return RecordRow(time=at, stream="event", name="Said", text=text)


def said(record: Record) -> list[str]:
    return [one.text for one in record.rows(lambda one: one.stream == "event")]


@given(st.lists(st.lists(rows, min_size=1, max_size=5), max_size=4))
def test_blocks_hold_what_was_put_in(written: list[list[RecordRow]]) -> None:
    data = b"".join(map(encode_block, written))
    assert list(decode_blocks(data)) == written


@given(st.lists(rows, min_size=1, max_size=20), st.data())
def test_some_rows_of_a_block_are_read_alone(written: list[RecordRow], data: st.DataObject) -> None:
    keys = [(row.stream, row.name, row.text) for row in written]
    chosen = data.draw(st.sets(st.sampled_from(keys)))
    wanted = [at for at, key in enumerate(keys) if key in chosen]
    ((_, body),) = whole_blocks(encode_block(written))
    assert list(rows_of_body(body, wanted)) == [(at, written[at]) for at in wanted]


def test_a_closed_segment_is_written_again_in_few_blocks(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock, max_bytes=1 << 24)
    for number in range(200):
        recorder.add(msgspec.structs.replace(row(f"row {number}"), values=(number, 5)))
        recorder.flush()
    (first,) = segments(tmp_path)
    before = list(Record(tmp_path).rows())
    size = first.stat().st_size
    clock.now += 3601
    recorder.add(row("in the next"))
    recorder.flush()
    assert len(segments(tmp_path)) == 2
    assert first.stat().st_size < size / 5
    assert len(list(whole_blocks(first.read_bytes()))) == 1
    assert list(Record(tmp_path).rows())[: len(before)] == before


@pytest.mark.parametrize("fault", ["torn", "full"])
def test_a_segment_that_cannot_be_written_again_stays(
    fault: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = writer(tmp_path, clock, max_bytes=1 << 24)
    for number in range(3):
        recorder.add(row(f"row {number}"))
        recorder.flush()
    (first,) = segments(tmp_path)
    if fault == "torn":
        os.truncate(first, first.stat().st_size - 3)
    before = first.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.record.writer.os.fsync", full)
    clock.now += 3601
    recorder.add(row("in the next"))
    recorder.flush()
    assert first.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".krec"] == []
    assert "in the next" in said(Record(tmp_path))


@given(st.lists(rows, min_size=1, max_size=3), st.data())
def test_every_cut_yields_whole_blocks_only(one: list[RecordRow], data: st.DataObject) -> None:
    block = encode_block(one)
    cut = data.draw(st.integers(len(block) + 1, 2 * len(block) - 1))
    read = []
    with pytest.raises(TornRecord) as torn:
        read.extend(decode_blocks((block + block)[:cut]))
    assert (torn.value.at, torn.value.size) == (len(block), cut - len(block))


def test_a_changed_byte_is_noticed() -> None:
    block = bytearray(encode_block([row("a")]))
    block[-1] ^= 1
    with pytest.raises(TornRecord):
        list(decode_blocks(bytes(block)))


def test_what_is_flushed_can_be_read_while_the_recorder_runs(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock)
    recorder.add(row("one"))
    recorder.flush()
    recorder.add(row("two"))
    record = Record(tmp_path)
    assert (said(record), record.gaps) == (["one"], [])
    recorder.close()
    assert (said(record), record.gaps) == (["one", "two"], [])


def test_a_killed_recorder_loses_what_was_not_flushed_and_it_is_said(tmp_path: Path, clock: Clock) -> None:
    program = (
        "import os, sys, time; from pathlib import Path\n"
        "from engine.record.blocks import RecordRow; from engine.record.writer import RecordWriter\n"
        "w = RecordWriter(Path(sys.argv[1]), max_bytes=1 << 20, max_age=1e9, clock=time.time); w.open()\n"
        "w.add(RecordRow(time=time.time(), stream='event', name='Said', text='kept')); w.flush()\n"
        "w.add(RecordRow(time=time.time(), stream='event', name='Said', text='lost'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    recorder = writer(tmp_path, clock)
    recorder.add(row("later"))
    recorder.close()
    record = Record(tmp_path)
    assert sorted(said(record)) == ["kept", "later"]
    assert len(record.gaps) == 1
    assert "ended without closing" in record.gaps[0]


def test_a_torn_end_costs_only_itself(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock)
    for text in ("one", "two"):
        recorder.add(row(text))
        recorder.flush()
    (segment,) = segments(tmp_path)
    os.truncate(segment, segment.stat().st_size - 3)
    again = writer(tmp_path, clock)
    again.add(row("three"))
    again.close()
    record = Record(tmp_path)
    assert said(record) == ["one", "three"]
    assert any("not a whole block" in gap for gap in record.gaps)


DEEP = "[" * 5000 + "]" * 5000
COLUMNS = [[0]] * 6
FOREIGN: dict[str, object] = {
    "of another shape": {"texts": []},
    "without texts": [[], [0], [[0]] * 7],
    "with an index before the first text": [["a"], [0], [[-1]] * 7],
    "with columns of other lengths": [["a", ""], [0, 0], [[0]] * 7],
    "with columns that lack": [["a", ""], [0], [[0]] * 3],
    "of a time after all years": [["a", ""], [2**62], [*COLUMNS, [1]]],
    "of a time before all years": [["a", ""], [-1], [*COLUMNS, [1]]],
    "with inputs that are a list": [["a", "[]"], [0], [*COLUMNS, [1]]],
    "with deep inputs": [["a", f'{{"a": {DEEP}}}'], [0], [*COLUMNS, [1]]],
    "with inputs that are no JSON": [["a", "{"], [0], [*COLUMNS, [1]]],
}
"""Bodies that no recorder writes; a record may come from another machine."""


def sealed(body: bytes) -> bytes:
    """Return a block with a right length and checksum."""
    return MAGIC + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
def test_a_block_that_no_recorder_wrote_is_a_gap(tmp_path: Path, clock: Clock, body: object) -> None:
    recorder = writer(tmp_path, clock)
    recorder.add(row("one"))
    recorder.close()
    (segment,) = segments(tmp_path)
    with segment.open("ab") as file:
        file.write(sealed(zlib.compress(msgspec.msgpack.encode(body))))
    record = Record(tmp_path)
    assert said(record) == ["one"]
    assert any("not a whole block" in gap for gap in record.gaps)


def test_what_is_not_compressed_is_no_block() -> None:
    with pytest.raises(TornRecord):
        list(decode_blocks(sealed(b"plain")))


def test_a_block_is_decompressed_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    block = encode_block([row("a" * 100_000)])
    assert list(decode_blocks(block))
    monkeypatch.setattr(blocks, "_MOST_DECODED", 50_000)
    with pytest.raises(TornRecord):
        list(decode_blocks(block))


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_segment_that_is_no_file_is_a_gap(tmp_path: Path, clock: Clock, kind: str) -> None:
    """A FIFO would keep its reader waiting."""
    recorder = writer(tmp_path, clock)
    recorder.add(row("one"))
    recorder.close()
    make_no_file(tmp_path / f"1{SUFFIX}", kind)
    record = Record(tmp_path)
    assert said(record) == ["one"]
    assert any(gap.startswith(f"1{SUFFIX}: cannot be read: ") for gap in record.gaps)


def test_a_full_disk_costs_rows_only_when_too_many_wait(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = writer(tmp_path, clock, max_bytes=1 << 24)
    recorder.add(row("before"))
    recorder.flush()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.record.writer.os.write", full)
        for number in range(MOST_WAITING + 7):
            recorder.add(row(f"row {number}"))
        recorder.flush()
    recorder.flush()
    recorder.close()
    record = Record(tmp_path)
    assert said(record) == ["before", *(f"row {number}" for number in range(MOST_WAITING))]
    assert len(record.gaps) == 1
    assert "7 rows were lost" in record.gaps[0]


def test_a_full_disk_leaves_no_empty_segments(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = writer(tmp_path, clock)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.record.writer.os.write", full)
        for number in range(5):
            clock.now += 1
            recorder.add(row(f"row {number}"))
            recorder.flush()
    assert segments(tmp_path) == []
    recorder.close()
    assert said(Record(tmp_path)) == [f"row {number}" for number in range(5)]


def test_half_a_block_is_taken_back(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = writer(tmp_path, clock)
    recorder.add(row("before"))
    recorder.flush()
    write = os.write

    def fills_up(descriptor: int, data: bytes) -> int:
        if len(data) > 9:
            return write(descriptor, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.record.writer.os.write", fills_up)
        patch.setattr("engine.record.writer._size", lambda path: 0)
        recorder.add(row("a longer text"))
        recorder.flush()
    recorder.close()
    record = Record(tmp_path)
    assert (said(record), record.gaps) == (["before", "a longer text"], [])


def test_the_oldest_segments_go(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock)
    for number in range(400):
        clock.now += 1
        recorder.add(row(f"{number} {os.urandom(512).hex()}", clock.now))
        recorder.flush()
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= LEAST_BYTES
    kept = [int(text.split()[0]) for text in said(Record(tmp_path))]
    assert kept == list(range(kept[0], 400))
    assert len(kept) > 30


def test_what_is_too_old_goes(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock, max_age=100.0)
    for text in ("old", "middle", "new"):
        recorder.add(row(text, clock.now))
        recorder.flush()
        clock.now += 150
    recorder.add(row("last", clock.now))
    recorder.flush()
    assert "old" not in said(Record(tmp_path))
    assert "last" in said(Record(tmp_path))


def test_a_clock_that_is_set_back_keeps_the_order(tmp_path: Path, clock: Clock) -> None:
    recorder = writer(tmp_path, clock)
    for text, step in (("one", 0.0), ("two", -5000.0), ("three", 1.0)):
        clock.now += step
        recorder.add(row(text, clock.now))
        recorder.flush()
    assert said(Record(tmp_path)) == ["one", "two", "three"]


def test_limits_and_places_that_cannot_be_used(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(InvalidInput, match=r"record\.maxSize"):
        RecordWriter(tmp_path, max_bytes=5, max_age=1.0, clock=clock)
    with pytest.raises(InvalidInput, match=r"record\.maxAge"):
        RecordWriter(tmp_path, max_bytes=LEAST_BYTES, max_age=0.0, clock=clock)
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be made"):
        writer(tmp_path / "file" / "below", clock)
    with pytest.raises(InvalidInput, match="has no record"):
        list(Record(tmp_path).rows())
