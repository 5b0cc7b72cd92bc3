"""Log queries of `/logs/`: services' logs from a journal, from files, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from engine.server.http.exchange import Request, Response
from engine.server.port.system_logs import query_logs
from tests.waiting import eventually

JOURNALCTL = """#!/bin/sh
if [ "$1" = --field ]; then printf 'kubelet.service\\ncontainerd.service\\n'; exit; fi
case "$*" in *endless*) echo $$ >"PID"; while :; do echo line; done;; esac
for argument; do echo "$argument"; done
"""
FIXED = ["--utc", "--no-pager", "--output=short-precise"]


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that stands for /var/log, and put a journalctl that prints its arguments on PATH."""
    programs, top = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    top.mkdir()
    program = programs / "journalctl"
    program.write_text(JOURNALCTL.replace("PID", f"{tmp_path}/pid"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return top


async def _ask(top: Path, at: str = "/logs/", **query: Any) -> tuple[int, str]:
    target = f"{at}?{urlencode(query, doseq=True)}"
    answer = await query_logs(Request.parse("GET", target, trusted=False), top)
    return answer.status, await _text(answer)


async def _text(answer: Response) -> str:
    if isinstance(answer.body, bytes):
        return answer.body.decode()
    assert isinstance(answer.body, AsyncGenerator)
    return b"".join([data async for data in answer.body]).decode()


async def test_a_service_of_the_journal_is_read_from_it(top: Path) -> None:
    status, text = await _ask(top, query="kubelet")
    assert (status, text.splitlines()) == (200, [*FIXED, "--unit=kubelet"])
    query: dict[str, Any] = {
        "query": ["kubelet", "containerd"], "sinceTime": "2024-05-01T12:00:00+02:00", "boot": "-1",
        "untilTime": "2024-05-01T10:00:01.5Z", "tailLines": "20", "pattern": "a|b",
    }  # fmt: skip
    assert (await _ask(top, **query))[1].splitlines() == [
        *FIXED, "--since=2024-05-01 10:00:00 UTC", "--until=2024-05-01 10:00:01 UTC", "--pager-end",
        "--lines=20", "--unit=kubelet", "--unit=containerd", "--grep=a|b", "--case-sensitive=false",
        "--boot", "-1",
    ]  # fmt: skip


async def test_a_service_that_is_not_in_the_journal_is_read_from_files(top: Path) -> None:
    (top / "one").write_text("1")
    (top / "two.log").write_text("2")
    (top / "three").mkdir()
    (top / "three/three.log").write_text("3")
    (top / "link").symlink_to("/etc/passwd")
    assert (await _ask(top, query=["one", "two", "three", "none"]))[1] == "123\nlog not found for none\n"
    assert "root:" not in (await _ask(top, query="link"))[1]
    assert (await _ask(top, query="one", tailLines="1"))[1] == (
        "\noptions present and query resolved to log files for [one]\ntry without specifying options\n"
    )
    assert await _ask(top, query="/three/three.log") == (200, "3")
    assert await _ask(top, "/logs/one") == (200, "1")
    assert (await _ask(top, query="/../../etc/passwd"))[0] in (403, 404)


async def test_without_a_journal_there_are_files(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "kubelet.log").write_text("from the file")
    monkeypatch.setenv("PATH", str(top))
    assert await _ask(top, query="kubelet") == (200, "from the file")


async def test_journalctl_ends_with_the_request(top: Path) -> None:
    request = Request.parse("GET", "/logs/?query=kubelet&pattern=endless", trusted=False)
    body = (await query_logs(request, top)).body
    assert isinstance(body, AsyncGenerator)
    assert (await anext(body)).startswith(b"line\n")
    process = Path("/proc") / (top.parent / "pid").read_text().strip()
    assert process.exists()
    await body.aclose()
    await eventually(lambda: not process.exists())


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"query": " "}, 400, 'query: Invalid value: [" "]: query cannot be empty'),
        ({"query": "a", "sinceTime": "now"}, 400, 'sinceTime: Invalid value: "now": invalid time format'),
        (
            {"query": "a", "untilTime": "0001-01-01T00:00:00+01:00"},
            400,
            'untilTime: Invalid value: "0001-01-01T00:00:00+01:00": invalid time format',
        ),
        (
            {"query": "a", "boot": "x"},
            400,
            'boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax',
        ),
        (
            {"query": "a", "boot": "x", "untilTime": "y"},
            400,
            '[untilTime: Invalid value: "y": invalid time format, '
            'boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax]',
        ),
        ({"tailLines": "1"}, 406, "query: Required value: cannot be empty with options"),
        ({"query": "a b"}, 406, 'query: Invalid value: "a b": input contains unsupported characters'),
        ({"query": "a" * 257}, 406, f'query: Invalid value: "{"a" * 257}": length must be less than 256'),
        ({"query": [*"abcde"]}, 406, "query: Too many: 5: must have at most 4 items"),
        ({"query": ["a", "/b"]}, 406, 'query: Invalid value: "[/b], [a]": cannot specify a file and service'),
        (
            {"query": ["/a", "/b"]},
            406,
            'query: Invalid value: ["/a","/b"]: cannot specify more than one file',
        ),
        (
            {"query": "/a", "boot": "0"},
            406,
            'query: Invalid value: ["/a"]: cannot specify file with options',
        ),
        ({"query": "a", "boot": "1"}, 406, "boot: Invalid value: 1: must be less than 1"),
        (
            {"query": "a", "tailLines": "100001"},
            406,
            "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
        ),
        (
            {"query": "a", "sinceTime": "2024-05-02T00:00:00Z", "untilTime": "2024-05-01T00:00:00Z"},
            406,
            'untilTime: Invalid value: "2024-05-01T00:00:00Z": must be after `sinceTime`',
        ),
    ],
)
async def test_a_wrong_query_is_refused_with_the_kubelets_message(
    top: Path, query: dict[str, Any], status: int, text: str
) -> None:
    assert await _ask(top, **query) == (status, text + "\n")


async def test_invalid_patterns_and_paths_with_a_query_are_refused(top: Path) -> None:
    status, text = await _ask(top, query="a", pattern="(")
    assert (status, text.startswith('pattern: Invalid value: "(": error parsing regexp: ')) == (406, True)
    assert await _ask(top, "/logs/x", query="a") == (406, "path not allowed in query mode\n")
