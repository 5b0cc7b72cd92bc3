"""A container's log as a reader asks for it: how much, from when, in which form; followed over rotations."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.api.errors import InvalidInput
from engine.api.meta import ObjectMeta
from engine.api.pod import Pod, PodSpec
from engine.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from engine.node.logs import log_reader
from engine.node.logs.container_logs import (
    LogOptions,
    LogText,
    OutOfRange,
    log_options,
    logged_container,
    nanoseconds,
)
from engine.node.logs.log_reader import LogWatch, read_log
from tests.waiting import eventually

LINES = [
    b"2024-05-01T10:00:00.000000001Z stdout F one\n",
    b"2024-05-01T10:00:01.5Z stderr P tw\n",
    b"2024-05-01T10:00:01.6Z stderr F o\n",
    b"nonsense\n",
    b"2024-05-01T12:00:02+02:00 stdout F three\n",
    b"2024-05-01T10:00:03Z stdout F:x \n",
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), b"one\ntwo\nthree\n\n"),
        (LogOptions(since=nanoseconds("2024-05-01T10:00:01.6Z")), b"o\nthree\n\n"),
        (LogOptions(limit=6), b"one\ntw"),
        (LogOptions(tail=0), b""),
        (LogOptions(tail=2), b"one\ntw"),
        (LogOptions(streams=(b"stderr",)), b"two\n"),
        (LogOptions(streams=(b"stdout",), limit=6), b"one\nth"),
        (
            LogOptions(timestamps=True, limit=100),
            b"2024-05-01T10:00:00.000000001Z one\n2024-05-01T10:00:01.500000000Z two\n"
            b"2024-05-01T12:00:02.000000000+02:00 three\n"[:100],
        ),
    ],
    ids=["all", "since", "limit", "none", "so-many", "stderr", "stdout", "timestamps"],
)
def test_how_log_lines_are_formatted(options: LogOptions, expected: bytes) -> None:
    assert LogText(options).take_all(LINES) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogOptions()),
        ({"follow": "true", "previous": "0", "timestamps": ""}, LogOptions(follow=True, timestamps=True)),
        ({"tailLines": "0"}, LogOptions(tail=0)),
        ({"tail": "7", "tailLines": "9"}, LogOptions(tail=7)),
        ({"tail": "all", "tailLines": "9"}, LogOptions()),
        ({"sinceSeconds": "10", "limitBytes": "5"}, LogOptions(limit=5, since=90 * 10**9)),
        ({"sinceTime": "1970-01-01T00:00:01.5Z"}, LogOptions(since=1_500_000_000)),
        ({"stream": "All", "unknown": "x", "tailLines": "1"}, LogOptions(tail=1)),
        ({"stream": "Stdout"}, LogOptions(streams=(b"stdout",))),
        ({"stream": "Stderr", "tail": "all"}, LogOptions(streams=(b"stderr",))),
    ],
)
def test_options(query: dict[str, str], expected: LogOptions) -> None:
    assert log_options(query, 100.0) == expected


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"tailLines": "x"}, InvalidInput),
        ({"tailLines": "9" * 30}, InvalidInput),
        ({"follow": "maybe"}, InvalidInput),
        ({"sinceTime": "yesterday"}, InvalidInput),
        ({"sinceTime": "2024-05-01"}, InvalidInput),
        ({"tailLines": "-1"}, OutOfRange),
        ({"limitBytes": "0"}, OutOfRange),
        ({"sinceSeconds": "0"}, OutOfRange),
        ({"sinceSeconds": "1", "sinceTime": "2024-05-01T10:00:00Z"}, OutOfRange),
        ({"stream": "stdout"}, OutOfRange),
        ({"stream": "Stdout", "tailLines": "1"}, OutOfRange),
    ],
)
def test_unknown_options_are_refused(query: dict[str, str], error: type[InvalidInput]) -> None:
    with pytest.raises(InvalidInput) as raised:
        log_options(query, 100.0)
    assert type(raised.value) is error


RUNS = ContainerState(running=ContainerStateRunning())
ENDED = ContainerState(terminated=ContainerStateTerminated(exit_code=1, container_id="x://ended"))
LOST = ContainerState(terminated=ContainerStateTerminated(exit_code=137))


def waits(reason: str) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason))


@pytest.mark.parametrize(
    ("state", "last", "previous", "expected"),
    [
        (RUNS, ContainerState(), False, "now"),
        (RUNS, ENDED, True, "ended"),
        (ENDED, ContainerState(), False, "ended"),
        (LOST, ENDED, False, "ended"),
        (waits("CrashLoopBackOff"), ENDED, False, "ended"),
        (RUNS, ContainerState(), True, 'previous terminated container "c" in pod "p" not found'),
        (LOST, ContainerState(), False, 'container "c" in pod "p" is terminated'),
        (
            waits("ErrImagePull"),
            ContainerState(),
            False,
            'container "c" in pod "p" is waiting to start: image can\'t be pulled',
        ),
        (
            waits("PodInitializing"),
            ContainerState(),
            False,
            'container "c" in pod "p" is waiting to start: PodInitializing',
        ),
        (
            ContainerState(),
            ContainerState(),
            False,
            'container "c" in pod "p" is waiting to start - no logs yet',
        ),
    ],
)
def test_a_log_request_selects_the_current_or_previous_run(
    state: ContainerState, last: ContainerState, previous: bool, expected: str
) -> None:
    status = ContainerStatus(
        name="c", ready=False, restart_count=0, image="", image_id="", state=state, last_state=last,
        container_id="containerd://now",
    )  # fmt: skip
    pod = Pod(
        metadata=ObjectMeta(name="p"), spec=PodSpec(), status=PodStatus(init_container_statuses=[status])
    )
    if " " in expected:
        with pytest.raises(InvalidInput, match=f"^{re.escape(expected)}$"):
            logged_container(pod, "c", previous=previous)
    else:
        assert logged_container(pod, "c", previous=previous) == expected
    with pytest.raises(InvalidInput, match='container "d" in pod "p" is not available'):
        logged_container(pod, "d", previous=previous)


def line(number: int) -> bytes:
    return b"2024-05-01T10:00:00Z stdout F %d\n" % number


async def opened(
    path: Path, options: LogOptions, running: Callable[[], bool] = lambda: False
) -> AsyncGenerator[bytes, None]:
    pieces = read_log(path, path.parent, options, running=running, watch=LogWatch())
    assert await anext(pieces) == b""
    return pieces


@pytest.mark.parametrize("piece", [7, 64, 1 << 18])
@pytest.mark.parametrize("tail", [0, 1, 3, 99, 100, 101])
async def test_the_end_of_a_log(
    tmp_path: Path, tail: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "PIECE", piece)
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(map(line, range(100))) + b"2024-05-01T10:00:00Z stdout P rest")
    pieces = [piece async for piece in await opened(path, LogOptions(tail=tail))]
    kept = [b"%d\n" % number for number in range(100)][100 - min(tail, 100) :]
    rest = [b"rest"] if tail > 100 else []
    assert b"".join(pieces) == b"".join([*kept, *rest])


async def test_following_over_rotations_until_the_container_ends(tmp_path: Path) -> None:
    path, alive, seen = tmp_path / "0.log", [True], bytearray()
    path.write_bytes(line(0))
    following = await opened(path, LogOptions(follow=True), lambda: alive[0])

    async def follow() -> None:
        async for piece in following:
            seen.extend(piece)

    reader = asyncio.create_task(follow())
    for number in range(1, 30):
        with path.open("ab") as log:
            log.write(line(number)[:9])
            log.flush()
            log.write(line(number)[9:])
        if number % 10 == 5:
            await eventually(lambda number=number: b"%d\n" % (number - 1) in seen)
            path.rename(tmp_path / f"0.log.{number}")
            await asyncio.sleep(0)
            path.touch()
    alive[0] = False
    with path.open("ab") as log:
        log.write(line(30))
    await reader
    assert bytes(seen) == b"".join(b"%d\n" % number for number in range(31))


async def test_a_reader_that_disconnects_leaves_nothing_behind(tmp_path: Path) -> None:
    path, watch = tmp_path / "0.log", LogWatch()
    path.write_bytes(line(0))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        following = read_log(path, tmp_path, LogOptions(follow=True), running=lambda: True, watch=watch)
        assert await anext(following) == b""
        assert await anext(following) == b"0\n"
        await following.aclose()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert watch._watch is None


async def test_a_link_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "0.log").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match=r"failed to open log file .*0\.log"):
        await opened(tmp_path / "0.log", LogOptions())


async def test_a_log_of_which_nothing_is_read_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(line(0))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await (await opened(path, LogOptions(follow=True))).aclose()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_search_that_outlives_its_reader_touches_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other, pread = tmp_path / "0.log", tmp_path / "other", os.pread
    for file in (path, other):
        file.write_bytes(b"".join(map(line, range(9))))
    searching, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int, size: int, at: int) -> bytes:
        searching.set()
        go_on.wait()
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", slow)
    reading = asyncio.create_task(anext(await opened(path, LogOptions(tail=1))))
    await eventually(searching.is_set)
    reading.cancel()
    await asyncio.wait({reading})
    with ExitStack() as stack:
        others = [stack.enter_context(other.open("rb", buffering=0)) for _ in range(9)]
        go_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert [each.tell() for each in others] == [0] * 9
