"""Profiles of the agent and its verbosity, read and set over its own port."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.server.http.exchange import Request, Response
from engine.server.port import profiling
from engine.server.port.profiling import Profiling, sampled_stacks
from engine.server.port.server import SecurePort
from engine.testing.apiserver import Authority
from tests.ports import free_port
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.waiting import eventually


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "authority")
    config = configured()
    config.authentication.webhook.enabled = False
    config.authentication.anonymous.enabled = True
    config.authorization.mode = "AlwaysAllow"
    view = SecuredView(config=config, logs=tmp_path)
    view.serving_certificate = Shown(authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, authority)
    await own.stop()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("kubengine")
    level = logger.level
    yield logger
    logger.setLevel(level)


async def put(port: Secured, path: str, body: str) -> tuple[int, str]:
    head = f"PUT {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = (await port.raw((head + body).encode())).decode()
    return int(answer.split(" ", 2)[1]), answer.partition("\r\n\r\n")[2]


async def test_each_profile_is_served(port: Secured) -> None:
    found = {}
    for name in ("", "cmdline", "goroutine", "heap", "symbol", "profile?seconds=1"):
        answer = await port.ask("GET", f"/debug/pprof/{name}")
        assert answer.status == 200, name
        found[name] = answer.body.decode()
    assert "profile" in found[""]
    assert found["cmdline"].split("\0")[0]
    assert "task port connection:" in found["goroutine"]
    assert "SecurePort._converse" in found["goroutine"]
    assert "thread MainThread:" in found["goroutine"]
    assert "builtins.dict" in found["heap"]
    stacks = [line.rpartition(" ") for line in found["profile?seconds=1"].splitlines()]
    assert all(count.isdigit() for _, _, count in stacks)
    assert any(stack.startswith("MainThread;") for stack, _, _ in stacks)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("profile?seconds=0", 400, "seconds: expected a whole number from 1 to 60\n"),
        ("profile?seconds=61", 400, "seconds: expected a whole number from 1 to 60\n"),
        ("profile?seconds=x", 400, "seconds: expected a whole number from 1 to 60\n"),
        ("mutex", 404, "mutex: a profile of Go's runtime, which this agent does not have; there are "),
        ("no/such", 404, "no/such: no profile; there are cmdline, goroutine, heap, profile, symbol\n"),
    ],
)
async def test_what_does_not_exist_is_reported(port: Secured, path: str, status: int, text: str) -> None:
    answer = await port.ask("GET", f"/debug/pprof/{path}")
    assert answer.status == status
    assert answer.body.decode().startswith(text)


async def test_one_profile_is_taken_at_a_time_and_ends_with_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def sampled(seconds: float, stop: threading.Event) -> str:
        begun.set()
        stop.wait()
        ended.set()
        return ""

    monkeypatch.setattr(profiling, "sampled_stacks", sampled)
    profiles, request = Profiling(), Request("GET", "/debug/pprof/profile", {"seconds": "60"})
    first = asyncio.create_task(profiles.answer(request, "profile"))
    await eventually(begun.is_set)
    second: Response = await profiles.answer(request, "profile")
    assert (second.status, second.body) == (500, profiling.BUSY.encode())
    first.cancel()
    await eventually(ended.is_set)
    await asyncio.gather(first, return_exceptions=True)
    assert not profiles._sampling


def test_the_number_of_stacks_and_their_depth_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    begun = threading.Event()

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            begun.set()
            ended.wait()

    thread = threading.Thread(target=deep, args=(300,), name="a;b")
    thread.start()
    begun.wait()
    monkeypatch.setattr(profiling, "MOST_STACKS", 1)
    text = sampled_stacks(0.2, threading.Event())
    ended.set()
    thread.join()
    stacks = {line.rpartition(" ")[0] for line in text.splitlines()}
    assert len(stacks) <= 2
    assert all(stack.count(";") <= profiling.MOST_DEPTH for stack in stacks)


async def test_the_verbosity_of_the_log_is_changed(port: Secured, logger: logging.Logger) -> None:
    logger.setLevel(logging.INFO)
    assert await put(port, "/debug/flags/v", "4") == (200, "successfully set klog.logging.verbosity to 4")
    assert logger.level == logging.DEBUG
    assert (await put(port, "/debug/flags/v", "2"))[0] == 200
    assert logger.level == logging.INFO
    for wrong in ("", "-1", "x", "9" * 12, "9" * 5000):
        status, text = await put(port, "/debug/flags/v", wrong)
        assert (status, text.partition(":")[0]) == (400, "error"), wrong
    assert (await port.ask("GET", "/debug/flags/v")).status == 406
    assert (await put(port, "/debug/flags/w", "4"))[0] == 404
    assert (await port.ask("GET", "/debug")).status == 404


async def test_each_can_be_off(port: Secured, logger: logging.Logger) -> None:
    view: Any = port.view
    view.config.enable_profiling_handler = False
    view.config.enable_debug_flags_handler = False
    answer = await port.ask("GET", "/debug/pprof/heap")
    assert (answer.status, answer.body) == (405, b"profiling endpoint is disabled.\n")
    assert await put(port, "/debug/flags/v", "4") == (405, "flags endpoint is disabled.\n")
