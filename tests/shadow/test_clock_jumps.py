"""A clock that is set while a shadow runs changes no finding, and the record keeps its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api.duration import Duration
from engine.api.kubengine_config import RecordSection
from engine.api.quantity import Quantity
from engine.images.records import SeenImage
from engine.record.reader import Record
from engine.record.writer import record_writer
from engine.shadow.judge import Judge, MachineRules
from engine.shadow.kinds.comparison import Finding
from engine.shadow.kinds.images import COUNTER
from engine.shadow.kinds.observation import FileSystem, Observation, SeenImages
from engine.shadow.ledger import AgreementLedger
from engine.shadow.observation_rows import RecordedObservation
from engine.shadow.recording import ObservationRecorder
from engine.shadow.replay import replay_shadow
from tests.shadow.observations import FACTS, observed, pod, ran, record

DAY = 86400.0
GIB = 1 << 30


def observations() -> list[Observation]:
    """Return an observation a minute of a node whose pod restarts and whose kubelet removes an image."""
    images = [SeenImage(f"sha256:{name}", 5 * GIB, False, "", (name,)) for name in "ab"]
    found = []
    for minute in range(30):
        one = pod("p", phase="Running" if minute else "Pending")
        newest = ran(minute // 10, at=60.0 * (minute // 10 * 10))
        left = images if minute < 25 else images[:1]
        seen = SeenImages(left, frozenset(), FileSystem(100 * GIB, (15 if minute < 25 else 20) * GIB))
        series = {f'{COUNTER}{{reason="space"}}': float(minute >= 25)}
        at = observed([one], [record(one, newest)], at=1e9 + 60.0 * minute)
        found.append(replace(at, now=60.0 * minute, images=seen, series=series))
    return found


def judged(seen: Sequence[Observation]) -> tuple[list[list[Finding]], AgreementLedger]:
    judge, ledger = Judge(), AgreementLedger()
    findings = []
    for one in seen:
        found = list(judge.judge(one, None, MachineRules(), lambda wanted: None, ()))
        ledger.add(found, now=one.now, wall=one.at)
        findings.append(found)
    return findings, ledger


@pytest.mark.parametrize("jump", [-DAY, DAY], ids=["back", "ahead"])
def test_the_findings_stay_the_same(jump: float) -> None:
    steady = observations()
    moved = [replace(one, at=one.at + jump if minute >= 12 else one.at) for minute, one in enumerate(steady)]
    (expected, quiet), (found, ledger) = judged(steady), judged(moved)
    assert found == expected
    assert ledger.tallies == quiet.tallies
    assert ledger.tallies["images"].agreed >= 2


def test_the_record_keeps_the_order(tmp_path: Path) -> None:
    section = RecordSection(str(tmp_path), Quantity.parse("1Mi"), Duration(30 * DAY))
    recorder, times = ObservationRecorder(), []
    seen = observations()
    moved = [replace(one, at=one.at - DAY if minute >= 12 else one.at) for minute, one in enumerate(seen)]
    writer = record_writer(section, lambda: times[-1] if times else moved[0].at)
    writer.open()
    for number, one in enumerate(moved, 1):
        times.append(one.at)
        for row in recorder.rows(RecordedObservation(one, FACTS), (), number, state=number == 1):
            writer.add(row)
        writer.flush()
    writer.close()
    # A clock that was set back does not end a replay, and changes no decision.
    assert replay_shadow(tmp_path).ended == moved[-1].at
    rows = [row for row in Record(tmp_path).rows() if row.stream in ("pod", "decision")]
    assert [row.name for row in rows] == [
        "Pending", "Running", "restart restarted", "restart restarted"
    ]  # fmt: skip
    assert rows[-1].time < rows[0].time
