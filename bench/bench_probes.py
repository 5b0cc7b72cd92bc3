"""What a probe costs beyond its system calls, and what many probes cost.

    pytest bench/bench_probes.py -s

Everything included (timer, state machine, parsing, counters) against the bare system calls in the same
run, each the best of three, at 5,000 probes a second; then the loop's limit, ten thousand slow probes, and
the loop beside a busy event loop. The server is compiled from `probe_server.c` and has no part in the
figures but sharing the machine.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine._fast._probe_loop_c import PROBE_BYTES
from engine._fast.probe_state import ProbeState
from engine.probes.measure import Measured, measure
from engine.probes.request import grpc_request, http_request

HERE = Path(__file__).parent
PORT = 18480
TARGETS = {
    "tcp": (0, f"tcp://127.0.0.1:{PORT + 2}", PORT + 2),
    "http": (1, f"http://127.0.0.1:{PORT}/healthz", PORT),
    "grpc": (2, f"grpc://127.0.0.1:{PORT + 1}", PORT + 1),
}
GOALS_MICROSECONDS = {"tcp": 38, "http": 45, "grpc": 100}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("probes")
    for name in ("probe_server", "probe_bare"):
        subprocess.run(["cc", "-O2", "-pthread", "-o", where / name, HERE / f"{name}.c"], check=True)
    return where


@pytest.fixture(scope="module", autouse=True)
def server(programs: Path) -> Iterator[None]:
    with subprocess.Popen([programs / "probe_server", str(PORT), "2"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def bare(programs: Path, kind: str, rate: int) -> float:
    """CPU microseconds a probe of the system calls alone."""
    number, _, port = TARGETS[kind]
    request = b""
    if kind == "http":
        path, host, rest = http_request("127.0.0.1", port, "/healthz")
        request = b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + rest
    elif kind == "grpc":
        request = grpc_request("127.0.0.1", port, "")
    done = subprocess.run(
        [programs / "probe_bare", str(number), str(port), str(rate), "3"],
        input=request,
        capture_output=True,
        check=True,
    )
    return float(done.stdout) / 1000


def show(text: str, found: Measured) -> None:
    print(
        f"\n{text}: {found.rate:,.0f}/s, {found.cpu_per_probe * 1e6:.1f} µs a probe, "
        f"{100 * found.cpu_seconds / found.seconds:.1f} % of a core, lateness p99 <= "
        f"{found.lateness_p99 * 1000:g} ms, {found.failed} failed, {found.errored} errors, "
        f"{found.entries_into_python} entries into Python"
    )


@pytest.mark.parametrize("kind", ["tcp", "http", "grpc"])
def test_beyond_the_system_calls(programs: Path, kind: str) -> None:
    ours, calls = [], []
    for _ in range(3):
        calls.append(bare(programs, kind, 5000))
        found = measure(TARGETS[kind][1], probes=5000, period=1.0, seconds=3.0, spread=64)
        assert found.failed == found.errored == found.entries_into_python == 0
        ours.append(found.cpu_per_probe * 1e6)
    print(
        f"\n{kind}: {min(ours):.1f} µs a probe, bare calls {min(calls):.1f} µs, ratio "
        f"{min(ours) / min(calls):.2f} (goal 1.3); goal {GOALS_MICROSECONDS[kind]} µs"
    )


def test_most_http_probes_a_second(programs: Path) -> None:
    found = measure(TARGETS["http"][1], probes=15000, period=1.0, seconds=5.0, spread=250)
    show("15,000 HTTP probes a second", found)
    assert found.failed == 0


@pytest.mark.parametrize("kind", ["tcp", "http", "grpc"])
def test_ten_thousand_slow_probes(kind: str) -> None:
    found = measure(TARGETS[kind][1], probes=10000, period=10.0, seconds=10.0, spread=64)
    show(f"10,000 {kind} probes every 10 s", found)


def test_lateness_beside_a_busy_event_loop() -> None:
    """Python spins and holds its lock all the while; the loop doesn't need it."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(10000))

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        found = measure(TARGETS["http"][1], probes=5000, period=1.0, seconds=5.0, spread=64)
    finally:
        stop.set()
        busy.join()
    show("5,000 HTTP probes a second beside busy Python", found)


def test_memory_of_a_probe() -> None:
    request = sum(map(len, http_request("10.10.10.10", 8080, "/healthz"))) + 40
    print(f"\na probe: {PROBE_BYTES} bytes and its request of about {request}; limit 1024")
    assert PROBE_BYTES + request < 1024


def test_state_machine(benchmark: object) -> None:
    state = ProbeState(0)
    benchmark(state.finish, 0)  # type: ignore[operator]
