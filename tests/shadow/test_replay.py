"""A shadow's record is played again: the observations, its decisions and those of a second configuration are
the
same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import InvalidInput
from engine.record.blocks import RecordRow, decode_blocks, encode_block
from engine.record.reader import Record
from engine.record.writer import RecordWriter
from engine.shadow.judge import Judge
from engine.shadow.kinds.comparison import Comparison
from engine.shadow.kinds.observation import Observation
from engine.shadow.kinds.status import StatusComparer, compare_status
from engine.shadow.observation_rows import (
    ObservationDecoder,
    ObservationEncoder,
    RecordedObservation,
    skipped_row,
)
from engine.shadow.replay import ReplayedShadow, is_of_shadow, replay_shadow
from tests.shadow.observations import FACTS, pod, requesting
from tests.shadow.recorded import PERIOD, RecordingShadow, following, observations


def same(found: Observation, seen: Observation) -> bool:
    """Tell whether a decoded observation equals the recorded one, with its pods in the same order."""
    fields = ("at", "now", "config", "node", "node_known", "use", "series", "probes_served", "images")
    return (
        all(getattr(found, name) == getattr(seen, name) for name in fields)
        and list(found.pods.items()) == list(seen.pods.items())
        and {uid: found.record(uid) for uid in seen.pods} == {uid: seen.record(uid) for uid in seen.pods}
    )


@pytest.mark.parametrize("state", [lambda number: number == 1, lambda number: True], ids=["changes", "state"])
def test_observations_are_decoded_as_they_were_seen(state: Any) -> None:
    encoder, decoder = ObservationEncoder(), ObservationDecoder()
    before: Observation | None = None
    for number, seen in enumerate(observations(), 1):
        *values, last = encoder.rows(RecordedObservation(seen, FACTS), number, state=state(number))
        assert [decoder.decode(row) for row in values] == [None] * len(values)
        found = decoder.decode(plain(last))
        assert found is not None
        assert same(found.seen, with_bounds(seen)), number
        assert found.facts == FACTS
        if before is not None:
            unchanged = before.config == found.seen.config
            assert (before.config is found.seen.config) == unchanged
        before = found.seen
    # Unchanged values are not recorded again.
    assert set(last.inputs) == {"number", "at", "now", "measured"} or state(2)


def with_bounds(seen: Observation) -> Observation:
    """Return the observation with `max_pids` limited to 63 bits."""
    if seen.use is None or seen.use.max_pids is None:
        return seen
    return replace(seen, use=replace(seen.use, max_pids=2**63 - 1))


def plain(row: RecordRow) -> RecordRow:
    ((back,),) = decode_blocks(encode_block([row]))
    return back


def test_its_own_configuration_gives_the_shadows_decisions(tmp_path: Path) -> None:
    shadow = RecordingShadow(tmp_path)
    for seen in observations():
        shadow.observe(seen)
    shadow.writer.close()
    found = replay_shadow(tmp_path)
    judged = [row for row in Record(tmp_path).rows() if row.stream == "judged"]
    assert {row.name for row in judged} >= {"admission", "restart", "status", "back-off", "images"}
    assert (found.mismatches, found.gaps, found.changes) == ([], [], [])
    assert found.decisions == len({(row.time, row.name, row.inputs["subject"]) for row in judged})
    assert is_of_shadow(tmp_path)


def test_a_status_is_judged_again_when_the_pod_or_its_containers_change() -> None:
    comparer, judged = StatusComparer(), 0
    for seen in observations():
        fresh = [one for pod in seen.pods.values() for one in compare_status(pod, seen)]
        assert list(comparer.compare(seen)) == fresh
        judged += len(fresh)
    assert judged > 8


def test_another_configuration_decides_as_it_would_have_beside_the_kubelet(tmp_path: Path) -> None:
    shadow = RecordingShadow(tmp_path)
    for seen in observations():
        shadow.observe(seen)
    shadow.writer.close()
    found = replay_shadow(tmp_path, following())
    assert found.changes == shadow.changes()
    assert {one.decision for one in found.changes} >= {"refuse", "evict", "pressure"}


def test_more_pods_are_there_before_all_others(tmp_path: Path) -> None:
    shadow = RecordingShadow(tmp_path)
    for seen in observations():
        shadow.observe(seen)
    shadow.writer.close()
    more = [pod(f"more-{n}", requesting(cpu="1", memory="300")) for n in range(3)]
    changes = {(one.decision, one.subject) for one in replay_shadow(tmp_path, None, more).changes}
    assert {("refuse", "default/more-2"), ("evict", "default/a")} <= changes


def test_a_decision_that_the_replay_takes_otherwise_is_a_mismatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = RecordingShadow(tmp_path)
    for seen in observations():
        shadow.observe(seen)
    shadow.writer.close()
    repeatable = Judge.repeatable

    def otherwise(judge: Judge, seen: Observation) -> Iterator[Any]:
        for one in repeatable(judge, seen):
            if isinstance(one, Comparison) and one[:2] == ("admission", "default/b"):
                one = one._replace(ours="OutOfcpu")
            yield one

    monkeypatch.setattr(Judge, "repeatable", otherwise)
    found = replay_shadow(tmp_path)
    (mismatch,) = found.mismatches
    assert "admission of default/b: the shadow decided admitted, replayed OutOfcpu" in mismatch


def test_the_rest_of_a_record_is_played_from_its_first_state(tmp_path: Path) -> None:
    shadow = RecordingShadow(tmp_path)
    seen = list(observations())
    for number, one in enumerate(seen):
        if number == 3:
            shadow.writer._segment = None  # as when it is an hour old
        shadow.observe(one, state=number == 4)
    shadow.writer.close()
    first, _ = sorted(tmp_path.glob("*.krec"))
    whole = replay_shadow(tmp_path)
    first.unlink()
    rest = replay_shadow(tmp_path, following())
    assert (whole.began, rest.began) == (seen[0].at, seen[4].at)
    assert rest.mismatches == []
    assert ("pressure", "node") in {(one.decision, one.subject) for one in rest.changes}
    for kept in tmp_path.glob("*.krec"):
        kept.write_bytes(b"")
    with pytest.raises(InvalidInput, match="no observation of a shadow"):
        replay_shadow(tmp_path)


def played_without(tmp_path: Path, number: int) -> ReplayedShadow:
    """Replay a record that lacks the rows of one observation."""
    shadow = RecordingShadow(tmp_path)
    for at, seen in enumerate(observations()):
        if at == number:
            shadow.number += 1
            continue
        shadow.observe(seen, state=at == 4)
    shadow.writer.close()
    return replay_shadow(tmp_path)


def test_after_a_lost_observation_it_waits_for_the_next_state(tmp_path: Path) -> None:
    found = played_without(tmp_path, 2)
    assert found.mismatches == []
    decoder, numbers = ObservationDecoder(), []
    for row in Record(tmp_path).rows(lambda row: row.stream in ("observation", "record")):
        if row.name == "began":
            decoder.restart()
        elif row.stream == "observation" and (decoded := decoder.decode(row)) is not None:
            numbers.append(round((decoded.seen.at - 1000) / PERIOD))
    assert numbers == [0, 1, 4, 5]


def test_skipped_observations_are_no_loss(tmp_path: Path) -> None:
    shadow = RecordingShadow(tmp_path)
    for seen in observations():
        shadow.observe(seen)
        shadow.number += 1
        shadow.writer.add(skipped_row(seen.at + 5, shadow.number, "kubelet: does not answer"))
    shadow.writer.close()
    found = replay_shadow(tmp_path, following())
    assert (found.mismatches, found.ended, found.changes) == ([], 1050.0, shadow.changes())


def test_a_row_that_no_shadow_wrote_is_an_error(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, max_bytes=1 << 20, max_age=3600, clock=lambda: 1.0)
    writer.open()
    writer.add(
        RecordRow(time=1.0, stream="observation", name="state", inputs={"number": 1, "pods": {"u": 7}})
    )
    writer.close()
    with pytest.raises(InvalidInput, match="not a recorded observation"):
        replay_shadow(tmp_path)
