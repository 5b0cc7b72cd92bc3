"""The file of decisions: whole lines, for its owner only, bounded, and no trouble for the agent."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat

import pytest

from engine.api.decisions import Decisions
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import DecisionsSection
from engine.api.quantity import Quantity
from engine.host.tasks import Tasks
from engine.node.decisions.file import DecisionFile
from tests.waiting import eventually


@pytest.fixture
def decisions():
    return Decisions(lambda: 0.0)


def decide(decisions, times=1):
    for _ in range(times):
        decisions.record("image-gc", "collected", "for space", {"size": 7})


def made(path, decisions, size="10Mi", files=3):
    section = DecisionsSection(file=str(path), max_size=Quantity.parse(size), max_files=files)
    return DecisionFile(section, decisions, Tasks())


def numbers(*paths):
    return [json.loads(line)["number"] for path in paths for line in path.read_text().splitlines()]


async def test_all_are_written_once_in_order_for_the_owner_alone(tmp_path, decisions):
    path = tmp_path / "decisions"
    path.write_text("")
    path.chmod(0o644)
    decide(decisions)
    file = made(path, decisions)
    await file.start()
    await eventually(lambda: numbers(path) == [1])
    decide(decisions, 40)
    await eventually(lambda: len(numbers(path)) == 41)
    decide(decisions, 2)
    await file.stop()
    assert numbers(path) == list(range(1, 44))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_restarted_agent_continues_after_a_torn_line(tmp_path, decisions):
    path = tmp_path / "decisions"
    path.write_text('{"number":1}\n{"numb')
    decide(decisions)
    await made(path, decisions).stop()
    assert path.read_text().splitlines()[:2] == ['{"number":1}', '{"numb']
    assert json.loads(path.read_text().splitlines()[2])["kind"] == "image-gc"


@pytest.mark.parametrize("files", [1, 2, 3])
async def test_files_are_bounded_in_size_and_number(tmp_path, decisions, files):
    path = tmp_path / "decisions"
    for number in range(files, 5):
        path.with_name(f"decisions.{number}").write_text("left by other bounds")
    decide(decisions, 200)
    await made(path, decisions, size="1Ki", files=files).stop()
    kept = [path.with_name(f"decisions.{number}") for number in range(files - 1, 0, -1)] + [path]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert all(each.stat().st_size <= 1024 for each in kept)
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}
    written = numbers(*kept)
    assert written == list(range(written[0], 201))
    assert len(written) >= files


async def test_a_line_that_is_longer_than_a_file_has_one_of_its_own(tmp_path, decisions):
    path = tmp_path / "decisions"
    decide(decisions, 2)
    await made(path, decisions, size="1", files=2).stop()
    assert (numbers(path.with_name("decisions.1")), numbers(path)) == ([1], [2])


async def test_a_failed_write_is_reported_once_and_done_later(tmp_path, decisions, caplog):
    caplog.set_level(logging.INFO, "kubengine.decisions")
    path = tmp_path / "later" / "decisions"
    file = made(path, decisions)
    await file.start()
    for _ in range(3):
        decide(decisions)
        await eventually(lambda: caplog.records)
    path.parent.mkdir()
    decide(decisions)
    await eventually(lambda: path.exists() and numbers(path) == [1, 2, 3, 4])
    await file.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert str(path) in caplog.text
    assert "No such file or directory" in caplog.text


async def test_a_full_disk_leaves_no_half_line(tmp_path, decisions):
    path = tmp_path / "decisions"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    decide(decisions)
    file = made(path, decisions)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        await file.stop()
        assert path.read_bytes() == b""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await file.stop()
    assert numbers(path) == [1]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere"), os.mkdir])
async def test_only_a_regular_file_is_written_to(tmp_path, decisions, caplog, make):
    path = tmp_path / "decisions"
    make(path)
    decide(decisions)
    await made(path, decisions).stop()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("size", "files", "field"), [("0", 3, "maxSize"), ("1Ki", 0, "maxFiles")])
def test_bounds_that_bound_nothing_are_refused(tmp_path, decisions, size, files, field):
    with pytest.raises(InvalidInput, match=f"decisions.{field}: expected"):
        made(tmp_path / "decisions", decisions, size, files)
