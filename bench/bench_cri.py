"""What a call to the runtime costs the agent: `pytest bench/bench_cri.py`.

Processor time of the caller alone: the runtime, which is another process, does not count.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from engine.cri.client import RuntimeClient
from engine.testing.containerd import Containerd
from engine.transport.grpc_channel import Channel
from engine.wire import cri_v1_pb2 as cri

CALLS = 200
METHOD = "/runtime.v1.RuntimeService/Version"
Benchmark = Any


@pytest.fixture
def hollow(tmp_path: Path) -> Iterator[str]:
    socket = tmp_path / "r.sock"
    command = [sys.executable, "-m", "engine.cli", "runtime", "--hollow", "--socket", str(socket)]
    with subprocess.Popen(command) as runtime:
        while not socket.exists():
            assert runtime.poll() is None
            time.sleep(0.02)
        yield str(socket)
        runtime.terminate()


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[str]:
    if os.geteuid() != 0 or not shutil.which("containerd"):
        pytest.skip("needs root and containerd")
    with Containerd(tmp_path) as runtime:
        yield str(runtime.socket)


def run(benchmark: Benchmark, opened: Callable[[], tuple[Callable[[], Awaitable[Any]], Any]]) -> None:
    """Time `CALLS` calls at a time, one after another."""
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[Callable[[], Awaitable[Any]], Any]:
        return opened()

    async def calls() -> None:
        for _ in range(CALLS):
            await call()

    call, close = loop.run_until_complete(begin())
    benchmark.pedantic(lambda: loop.run_until_complete(calls()), rounds=20, warmup_rounds=2)
    benchmark.extra_info["calls"] = CALLS

    async def end() -> None:
        done = close()
        if done is not None:
            await done

    loop.run_until_complete(end())
    loop.close()


def agent(socket: str) -> tuple[Callable[[], Awaitable[Any]], Any]:
    client = RuntimeClient(socket)
    return client.version, client.close


def native(socket: str) -> tuple[Callable[[], Awaitable[Any]], Any]:
    channel = Channel(socket, limit=1 << 24)
    request = cri.VersionRequest(version="v1").SerializeToString()
    return lambda: channel.unary(METHOD, request, 120.0), channel.close


def grpcio(socket: str) -> tuple[Callable[[], Awaitable[Any]], Any]:
    channel = grpc.aio.insecure_channel(f"unix:{socket}")
    call = channel.unary_unary(
        METHOD,
        request_serializer=cri.VersionRequest.SerializeToString,
        response_deserializer=cri.VersionResponse.FromString,
    )
    return lambda: call(cri.VersionRequest(version="v1"), timeout=120.0), channel.close


KINDS = pytest.mark.parametrize("kind", [agent, native, grpcio], ids=["/agent", "/channel", "/grpcio"])


@KINDS
@pytest.mark.benchmark(group=f"cri: {CALLS} calls to containerd, processor time", timer=time.process_time)
def test_calls_to_containerd(benchmark: Benchmark, containerd: str, kind: Any) -> None:
    run(benchmark, lambda: kind(containerd))


@KINDS
@pytest.mark.benchmark(
    group=f"cri: {CALLS} calls to the hollow runtime, processor time", timer=time.process_time
)
def test_calls_to_the_hollow_runtime(benchmark: Benchmark, hollow: str, kind: Any) -> None:
    run(benchmark, lambda: kind(hollow))
