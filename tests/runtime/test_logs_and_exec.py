"""Log files and commands in containers, on the embedded runtime and on containerd alike."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from engine.api.errors import Refused, Unavailable
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods
from tests.waiting import eventually

LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}(Z|[+-]\d\d:\d\d) (stdout|stderr) [FP] .*")


async def test_every_line_has_time_stream_and_tag(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("echo one; echo two >&2; echo; printf last"))
    raw = Path(status.log_path).read_bytes()
    assert raw.endswith(b"\n")
    assert all(LINE.fullmatch(line) for line in raw.splitlines()), raw
    lines = pods.log(status)
    assert [line for line in lines if line[0] == "stderr"] == [("stderr", "F", "two")]
    out = [(tag, text) for stream, tag, text in lines if stream == "stdout"]
    assert out[:2] == [("F", "one"), ("F", "")]
    assert out[2][1] == "last"


async def test_long_lines_are_split_into_partial_ones(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("head -c 50000 /dev/zero | tr '\\0' x; echo; echo end"))
    lines = pods.log(status)
    assert lines[-1] == ("stdout", "F", "end")
    assert all(tag == "P" for _, tag, _ in lines[:-2])
    assert lines[-2][1] == "F"
    assert all(len(text) <= 16384 for _, _, text in lines)
    assert "".join(text for _, _, text in lines[:-1]) == "x" * 50_000


async def test_binary_output_is_kept(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("printf '\\001\\377\\n'"))
    assert Path(status.log_path).read_bytes().endswith(b" stdout F \x01\xff\n")


async def test_without_a_log_path_nothing_is_written(pods: Pods) -> None:
    sandbox = await pods.pod()
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="quiet"),
        image=cri.ImageSpec(image="busybox"),
        command=["/bin/sh", "-c", "echo lost; exit 4"],
    )
    container = await pods.client.create_container(sandbox, config, pods.configs[sandbox])
    await pods.client.start_container(container)
    status = await pods.ended(container)
    assert (status.exit_code, status.log_path) == (4, "")
    assert list(Path(pods.configs[sandbox].log_directory).iterdir()) == []


async def test_reopened_log_continues_in_a_new_file(pods: Pods) -> None:
    container = await pods.shell("i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done")
    path = Path((await pods.status(container)).log_path)

    async def has_lines() -> bool:
        return path.exists() and path.stat().st_size > 0

    await eventually(has_lines)
    rotated = path.rename(path.with_suffix(".old"))
    await pods.client.reopen_container_log(container)
    assert path.exists()
    await eventually(has_lines)
    await pods.client.stop_container(container, 0)
    numbers = [
        int(line.split(b" ", 3)[3]) for file in (rotated, path) for line in file.read_bytes().splitlines()
    ]
    assert numbers == list(range(len(numbers)))


async def test_reopening_needs_a_running_container(pods: Pods) -> None:
    container = await pods.create(await pods.pod(), "true")
    with pytest.raises(Refused):
        await pods.client.reopen_container_log(container)


async def test_terminal_goes_to_standard_output(pods: Pods) -> None:
    status = await pods.ended(await pods.shell("test -t 1 && echo terminal >&2", tty=True))
    assert [(stream, text.rstrip("\r")) for stream, _, text in pods.log(status)] == [("stdout", "terminal")]


async def test_command_answers_output_and_exit_code(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "sleep", "1000")
    answer = await pods.client.exec_sync(container, ["sh", "-c", "echo out; echo err >&2; exit 5"], 10)
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"out\n", b"err\n", 5)
    answer = await pods.client.exec_sync(container, ["true"], 10)
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"", b"", 0)
    answer = await pods.client.exec_sync(container, ["sh", "-c", "kill -KILL $$"], 10)
    assert answer.exit_code == 137


async def test_command_sees_what_the_container_sees(pods: Pods) -> None:
    container = await pods.start(
        await pods.pod(),
        "sleep",
        "1000",
        envs=[cri.KeyValue(key="GREETING", value=b"hello")],
        working_dir="/tmp",
        linux=cri.LinuxContainerConfig(
            security_context=cri.LinuxContainerSecurityContext(
                run_as_user=cri.Int64Value(value=1000), run_as_group=cri.Int64Value(value=2000)
            )
        ),
    )
    script = "echo $GREETING; pwd; id -u; id -g; grep CapEff /proc/self/status; cat /proc/1/comm; hostname"
    answer = await pods.client.exec_sync(container, ["sh", "-c", script], 10)
    lines = answer.stdout.decode().split("\n")
    assert lines[:4] == ["hello", "/tmp", "1000", "2000"]
    assert lines[4].split() == ["CapEff:", "0000000000000000"]
    assert lines[5] == "sleep"
    assert lines[6].startswith("pod-")
    mine = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":")[2]
    group = await pods.client.exec_sync(container, ["cat", "/proc/self/cgroup"], 10)
    assert pods.cgroup_root in group.stdout.decode()
    assert pods.cgroup_root not in mine


async def test_command_that_takes_too_long_is_killed(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "sleep", "1000")
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await pods.client.exec_sync(container, ["sh", "-c", "sleep 234 & sleep 234"], 1)
    assert time.monotonic() - began > 0.9

    async def gone() -> bool:
        answer = await pods.client.exec_sync(container, ["ps", "-o", "args"], 10)
        return b"sleep 234" not in answer.stdout

    if pods.kind == "embedded":  # containerd 1.6 leaves the command's children
        await eventually(gone)


async def test_command_needs_a_running_container_and_a_program(pods: Pods) -> None:
    sandbox = await pods.pod()
    created = await pods.create(sandbox, "true")
    with pytest.raises(Refused):
        await pods.client.exec_sync(created, ["true"], 5)
    running = await pods.start(sandbox, "sleep", "1000")
    with pytest.raises(Refused, match="no-such-program"):
        await pods.client.exec_sync(running, ["no-such-program"], 5)


async def test_many_commands_at_once(pods: Pods) -> None:
    container = await pods.start(await pods.pod(), "sleep", "1000")
    answers = await asyncio.gather(
        *(pods.client.exec_sync(container, ["echo", str(number)], 30) for number in range(20))
    )
    assert [answer.stdout for answer in answers] == [b"%d\n" % number for number in range(20)]


@pytest.mark.root
async def test_output_of_a_command_is_bounded(embedded: Pods) -> None:
    container = await embedded.start(await embedded.pod(), "sleep", "1000")
    answer = await embedded.client.exec_sync(container, ["head", "-c", "20000000", "/dev/zero"], 30)
    assert 1 << 20 < len(answer.stdout) < 8 << 20
    assert answer.exit_code == 0
