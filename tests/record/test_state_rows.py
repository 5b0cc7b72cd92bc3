"""A recorder writes its whole state only as often as a replay of the newest segments needs it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.record.blocks import RecordRow
from engine.record.reader import Record
from engine.record.writer import LEAST_BYTES, SEGMENT_SECONDS, SEGMENTS, STATE_SHARE, RecordWriter, segments

DAY = 86_400.0


class Recording:
    """Write states and rows of random bytes to a record, with a clock that a test moves."""

    def __init__(self, directory: Path, *, max_bytes: int = 1 << 20, max_age: float = 7 * DAY) -> None:
        self.now, self.states = 1_000_000.0, 0
        self._random = random.Random(1)
        self.writer = RecordWriter(directory, max_bytes=max_bytes, max_age=max_age, clock=lambda: self.now)
        self.writer.open()

    def step(self, seconds: float, size: int, state: int = 1000) -> None:
        self.now += seconds
        if self.writer.state_due:
            self.states += 1
            self.writer.add_state(self.row("state", state))
        self.writer.add(self.row("row", size))
        self.writer.flush()

    def row(self, name: str, size: int) -> RecordRow:
        return RecordRow(time=self.now, stream="x", name=name, text=self._random.randbytes(size // 2).hex())


def test_a_state_is_due_at_the_beginning_and_only_once(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    for _ in range(100):
        recording.step(1.0, 10)
    assert recording.states == 1


@pytest.mark.parametrize("state", [100, 3000, 20_000])
def test_states_take_a_small_part_of_a_record_of_any_size(tmp_path: Path, state: int) -> None:
    recording = Recording(tmp_path, max_bytes=LEAST_BYTES)
    written = 0
    for _ in range(2000):
        recording.step(10.0, 500, state)
        written += 500
    assert recording.states > 2
    # Each but the first follows enough of other rows.
    assert (recording.states - 1) * state <= written / (STATE_SHARE - 1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < LEAST_BYTES * (SEGMENTS + 1) / SEGMENTS


def test_what_is_left_has_a_state(tmp_path: Path) -> None:
    recording = Recording(tmp_path, max_bytes=LEAST_BYTES)
    for number in range(3000):
        recording.step(10.0, 500, 1000)
        if number % 50 == 0:
            left = [row.name for row in Record(tmp_path).rows()]
            assert "state" in left[: len(left) // 2 + 2], number
    assert len(segments(tmp_path)) > 2


def test_a_node_at_rest_says_its_state_several_times_within_the_age_of_its_record(tmp_path: Path) -> None:
    recording = Recording(tmp_path, max_age=DAY)
    for _ in range(int(2 * DAY / SEGMENT_SECONDS)):
        recording.step(SEGMENT_SECONDS, 2, 100_000)
    assert SEGMENTS <= recording.states <= 2 * SEGMENTS + 1
    assert "state" in {row.name for row in Record(tmp_path).rows()}


def test_a_state_is_due_again_after_rows_were_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tmp_path)
    recording.step(1.0, 10)
    monkeypatch.setattr("engine.record.writer.MOST_WAITING", 1)
    for _ in range(2):
        recording.writer.add(recording.row("row", 10))
    recording.writer.flush()
    monkeypatch.undo()
    assert recording.writer.state_due
    recording.step(1.0, 10)
    recording.step(1.0, 10)
    assert recording.states == 2
    names = [row.name for row in Record(tmp_path).rows()]
    assert names.index("lost") < len(names) - 1 - names[::-1].index("state")


def test_a_state_that_is_lost_itself_is_due_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tmp_path)
    monkeypatch.setattr("engine.record.writer.MOST_WAITING", 1)
    recording.step(1.0, 10)
    assert "state" not in {row.name for row in Record(tmp_path).rows()}
    assert recording.writer.state_due
