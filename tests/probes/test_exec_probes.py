"""Exec probes of the native loop: the requests to the runtime, and the outcomes of its answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from engine._fast.probing import _grpc_c as compiled
from engine._fast.probing import grpc as rule
from engine._fast.probing._loop_c import ProbeLoop
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import ProbesSection
from engine.probes.request import MAX_COMMAND, exec_request
from engine.wire import cri_v1_pb2 as cri
from engine.wire import cri_v1_pb2_grpc
from tests.fast.probing import grpc_twin as twin
from tests.probes.probed_pods import Rig, pod_with
from tests.waiting import eventually

Answer = Callable[[cri.ExecSyncRequest, grpc.ServicerContext], cri.ExecSyncResponse]


class Runtime(cri_v1_pb2_grpc.RuntimeServiceServicer):
    """Answer ExecSync as the test sets it, and count the requests."""

    def __init__(self) -> None:
        self.answer: Answer = lambda request, context: cri.ExecSyncResponse()
        self.requests: list[cri.ExecSyncRequest] = []
        self.release = threading.Event()
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def ExecSync(self, request, context):
        with self._lock:
            self.requests.append(request)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.answer(request, context)
        finally:
            with self._lock:
                self.at_once -= 1


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Runtime]:
    runtime = Runtime()
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", 64 << 20)])
    cri_v1_pb2_grpc.add_RuntimeServiceServicer_to_server(runtime, server)
    server.add_insecure_port(f"unix:{directory}/cri.sock")
    server.start()
    await eventually((directory / "cri.sock").exists)
    try:
        yield runtime
    finally:
        runtime.release.set()
        server.stop(0).wait()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with serving(tmp_path) as runtime:
        yield runtime


@pytest.fixture
async def execs(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(ProbesSection(library_concurrency=2), runtime_socket=tmp_path / "cri.sock")
    await rig.manager.start()
    yield rig
    await rig.manager.stop()


def command(*words: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": list(words)}, "failureThreshold": 1, **more}


async def test_the_runtime_is_asked_as_by_a_grpc_client(execs, runtime):
    long = "x" * 40_000
    execs.run(pod_with(readiness=command("cat", long, "", "ü")), "containerd://c0ffee")
    await eventually(lambda: execs.manager.is_ready("u1", "app"))
    assert runtime.requests[0] == cri.ExecSyncRequest(
        container_id="c0ffee", cmd=["cat", long, "", "ü"], timeout=2
    )
    execs.running(execs.manager._pods["u1"].pod, "containerd://beef")
    await eventually(lambda: runtime.requests[-1].container_id == "beef")


async def test_commands_have_their_cost_by_pod(execs, runtime):
    execs.run(pod_with("asks", liveness=command("true"), readiness=command("/check")))
    probes = execs.manager.describe
    await eventually(lambda: all(sum(probe["outcomes"].values()) for probe in probes()["probes"]))
    assert all(probe["cpu_seconds"] > 0 for probe in probes()["probes"])
    (described,) = execs.manager.commands("pod-asks")
    assert (described["pod"], described["runs"] >= 2) == ("default/pod-asks", True)
    assert described["seconds"] > described["cpu_seconds"] > 0
    assert execs.manager.commands("another") == []


@pytest.mark.parametrize(
    ("stdout", "stderr", "output"),
    [
        (b"out\xff", b"err", "out\N{REPLACEMENT CHARACTER}err"),
        (b"", b"", ""),
        (b"a" * 10_000, b"b" * 1000, "a" * 10_000 + "b" * 240),
        (b"c" * (15 << 20), b"d", "c" * 10_240),
    ],
    ids=["both", "none", "both-cut", "huge"],
)
async def test_a_command_that_fails_fails_the_probe_with_its_output(execs, runtime, stdout, stderr, output):
    runtime.answer = lambda *_: cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=3)
    execs.run(pod_with(liveness=command("false")))
    await eventually(lambda: execs.manager.failed("u1", "app", "c1") == "liveness")
    assert execs.messages("Unhealthy")[0] == f"Liveness probe failed: {output}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.UNKNOWN, 'code = Unknown desc = exec: "nö such": 100 % gone'),
        (grpc.StatusCode.NOT_FOUND, 'code = NotFound desc = exec: "nö such": 100 % gone'),
        (grpc.StatusCode.UNIMPLEMENTED, "code = Unimplemented"),
    ],
)
async def test_an_unsupported_call_of_the_runtime_is_an_error(execs, runtime, code, words):
    runtime.answer = lambda _, context: context.abort(code, 'exec: "nö such": 100 % gone')
    execs.run(pod_with(liveness=command("no such")))
    await eventually(lambda: execs.probe("liveness")["outcomes"]["error"] > 1)
    assert words in execs.messages("Unhealthy")[0]
    assert execs.manager.failed("u1", "app", "c1") == ""


async def test_more_output_than_a_message_may_have_is_an_error(execs, runtime):
    runtime.answer = lambda *_: cri.ExecSyncResponse(stdout=bytes(17 << 20))
    execs.run(pod_with(liveness=command("yes", timeoutSeconds=200)))
    await eventually(lambda: any("code = ResourceExhausted" in each for each in execs.messages("Unhealthy")))
    assert execs.probe("liveness")["outcomes"]["error"]


async def test_the_runtimes_time_out_is_a_failure(execs, runtime):
    runtime.answer = lambda _, context: context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "1s exceeded")
    execs.run(pod_with(liveness=command("sleep", "9")))
    await eventually(lambda: execs.manager.failed("u1", "app", "c1") == "liveness")
    assert execs.messages("Unhealthy")[0] == (
        'Liveness probe failed: command timed out: "sleep 9" timed out after 2s'
    )


async def test_part_of_a_second_is_cut_off_from_here(execs, runtime):
    runtime.answer = lambda *_: runtime.release.wait(60) and cri.ExecSyncResponse()
    execs.run(pod_with(liveness=command("sleep", "9", ms={"timeoutMilliseconds": 100})))
    await eventually(lambda: execs.manager.failed("u1", "app", "c1") == "liveness")
    assert "timed out after 0.1s" in execs.messages("Unhealthy")[0]


async def test_commands_at_once_are_bounded_and_delay_no_other_probe(execs, runtime):
    runtime.answer = lambda *_: runtime.release.wait(60) and cri.ExecSyncResponse()
    for n in range(6):
        execs.run(pod_with(f"u{n}", readiness=command("slow", ms={"timeoutMilliseconds": 60_000})))
    execs.run(pod_with("quick", liveness={"tcpSocket": {"port": 1}, "failureThreshold": 5}))
    await eventually(lambda: runtime.at_once == 2)
    await eventually(lambda: execs.manager.failed("quick", "app", "c1"))
    assert execs.manager.describe()["loop"]["open_execs"] == 2
    runtime.release.set()
    await eventually(lambda: all(execs.manager.is_ready(f"u{n}", "app") for n in range(6)))
    assert runtime.most_at_once == 2


async def test_an_unavailable_runtime_fails_no_pod(execs, tmp_path):
    execs.run(pod_with(liveness=command("true"), readiness=command("true")))
    await eventually(lambda: execs.probe("liveness")["outcomes"]["error"] > 1)
    assert "the runtime's socket: no such file or directory" in execs.messages("Unhealthy")[0]
    assert execs.manager.failed("u1", "app", "c1") == ""
    async with serving(tmp_path):
        await eventually(lambda: execs.manager.is_ready("u1", "app"))


async def test_commands_of_a_removed_container_are_forgotten(execs, runtime):
    runtime.answer = lambda *_: runtime.release.wait(60) and cri.ExecSyncResponse(exit_code=1)
    pod = pod_with(liveness=command("slow", ms={"timeoutMilliseconds": 60_000}))
    execs.run(pod)
    await eventually(lambda: runtime.at_once == 1)
    execs.manager.update_container("u1", "app", container_id="c1", state="terminated")
    await eventually(lambda: execs.manager.describe()["loop"]["open_execs"] == 0)
    execs.manager.remove_pod("u1")
    assert execs.messages("Unhealthy") == []


def test_a_command_has_a_bound():
    exec_request(["x" * (MAX_COMMAND - 100)], 1)
    with pytest.raises(InvalidInput, match="longer than"):
        exec_request(["x" * MAX_COMMAND], 1)


def test_equal_results_are_stored_once():
    loop = ProbeLoop()
    loop.runtime(b"/run/cri.sock")
    head, tail = exec_request(["cat", "/healthy"], 1)
    more = {"type": 0, "period": 1, "timeout": 1, "failure_threshold": 3, "success_threshold": 1}
    keys = [loop.add(kind=3, initial_delay=0, never_restarts=False, first_in=1, **more) for _ in range(100)]
    for key in keys:
        loop.target_container(key, f"c{key}".encode(), head, tail)
    assert loop.stats()["stored_texts"] == 1
    assert loop.request(keys[7]).endswith(b"\x0a\x02c7" + tail)
    assert loop.request(keys[42]).startswith(head)
    for key in keys:
        loop.remove(key)
    assert loop.stats()["stored_texts"] == 0
    loop.close()


FORMS = pytest.mark.parametrize("form", [twin, compiled], ids=["twin", "compiled"])


def answered(message: bytes, status: bytes = b"0") -> bytes:
    """Return the bytes that an HTTP/2 server sends to answer a call with `message`."""
    data = b"\0" + len(message).to_bytes(4, "big") + message
    frames = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    return (
        b"\0\0\0\4\0\0\0\0\0"
        b"\0\0\1\1\4\0\0\0\1\x88"
        + b"".join(len(f).to_bytes(3, "big") + b"\0\0\0\0\0\1" + f for f in frames)
        + b"\0\0\x0f\1\5\0\0\0\1\x40\x0bgrpc-status\1"
        + status
    )


@FORMS
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (cri.ExecSyncResponse(stdout=b"a", stderr=b"b", exit_code=7).SerializeToString(), (1, 7, b"ab")),
        (cri.ExecSyncResponse(exit_code=-1).SerializeToString(), (1, -1, b"")),
        (cri.ExecSyncResponse(stdout=b"x" * 20_000).SerializeToString(), (1, 0, b"x" * 10_240)),
        (b"", (1, 0, b"")),
        (b"\x0a\x05ab", (2, 13, b"")),
        (b"\x0b", (2, 13, b"")),
        (b"\x18" + b"\xff" * 10 + b"\1", (2, 13, b"")),
        (b"\x1a\1x\x20\1\x25abcd\x29abcdefgh\x18\2", (1, 2, b"")),
    ],
)
def test_answers(form, message, expected):
    assert form.parse(answered(message), rule.EXEC) == expected


@FORMS
def test_the_runtimes_message_is_kept(form):
    reply = (
        b"\0\0\0\4\0\0\0\0\0" + (1 + 15 + 18).to_bytes(3, "big") + b"\1\5\0\0\0\1\x88"
        b"\x00\x0bgrpc-status\x015\x00\x0cgrpc-message\x03a%2"
    )
    assert form.parse(reply, rule.EXEC) == (rule.STATUS, 5, b"a%2")
