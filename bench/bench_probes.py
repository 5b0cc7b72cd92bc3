"""What a probe costs beyond its system calls, and what many probes cost.

    pytest bench/bench_probes.py -s

Everything included (timer, state machine, parsing, counters) against the bare system calls in the same
run, each the best of three, at 5,000 probes a second; then the loop's limit, ten thousand slow probes,
commands in containers, the loop beside a busy event loop, and memory. The server is compiled from
`probe_server.c`; for the limit it and the loop have a core each.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine._fast.probing._loop_c import PROBE_BYTES, ProbeLoop
from engine._fast.probing._state_c import ProbeState
from engine._fast.probing._state_py import RUNNING, ProbeObservation
from engine.bench.parts import HollowRuntimeProcess
from engine.cri.client import RuntimeClient
from engine.probes.measure import ProbeMeasurement, first_bytes, measure, watch
from engine.probes.request import exec_request
from engine.wire import cri_v1_pb2 as cri

HERE = Path(__file__).parent
PORT = 18480
PODS = 64
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


@contextmanager
def serving(programs: Path, port: int, threads: int, core: int | None = None) -> Iterator[None]:
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pinned, programs / "probe_server", str(port), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@pytest.fixture(scope="module")
def server(programs: Path) -> Iterator[None]:
    with serving(programs, PORT, 2):
        yield


def bare(programs: Path, kind: str, rate: int) -> float:
    """Return the CPU microseconds a probe that its system calls alone need."""
    number, url, port = TARGETS[kind]
    done = subprocess.run(
        [programs / "probe_bare", str(number), str(port), str(rate), "3"],
        input=first_bytes(url),
        capture_output=True,
        check=True,
    )
    return float(done.stdout) / 1000


def show(text: str, found: ProbeMeasurement) -> None:
    print(
        f"\n{text}: {found.rate:,.0f}/s, {found.cpu_per_probe * 1e6:.1f} µs a probe, "
        f"{100 * found.cpu_seconds / found.seconds:.1f} % of a core, lateness p99 <= "
        f"{found.lateness_p99 * 1000:g} ms, {found.failed} failed, {found.errored} errors, "
        f"{found.entries_into_python} entries into Python"
    )


@pytest.mark.usefixtures("server")
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


@contextmanager
def pods(programs: Path) -> Iterator[list[int]]:
    """Start `PODS` servers, each on the loopback of its own network; yield the namespaces' descriptors."""
    script = 'ip link set lo up; exec "$0" "$@"'
    command = ["unshare", "--net", "sh", "-c", script, programs / "probe_server", str(PORT), "1"]
    with ExitStack() as stack:
        networks = []
        for _ in range(PODS):
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            networks.append(os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, networks[-1])
        yield networks


@pytest.fixture(scope="module")
def as_many_servers(programs: Path) -> Iterator[None]:
    """Run `PODS` servers that share one port in the node's network."""
    with ExitStack() as stack:
        for _ in range(PODS):
            stack.enter_context(serving(programs, PORT, 1))
        yield


@pytest.mark.usefixtures("as_many_servers")
@pytest.mark.parametrize("kind", ["tcp", "http", "grpc"])
def test_from_inside_pods(programs: Path, kind: str) -> None:
    """`network: pod` beside probes of as many servers in the node's network."""
    with pods(programs) as networks:
        ways: dict[str, dict[str, Any]] = {"node": {"spread": PODS}, "pod": {"networks": networks}}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(3):
            for way, options in ways.items():
                found = measure(TARGETS[kind][1], probes=5000, period=1.0, seconds=3.0, **options)
                assert found.failed == found.errored == found.entries_into_python == 0
                spent[way].append(found.cpu_per_probe * 1e6)
    node, pod = min(spent["node"]), min(spent["pod"])
    print(
        f"\n{kind} from inside: {pod:.1f} µs a probe, the node's {node:.1f} µs: {pod / node:.2f} (goal 1.2)"
    )


def test_most_http_probes_a_second(programs: Path) -> None:
    """The loop on one core, the server on another; more probes are due than one core can run."""
    cores = sorted(os.sched_getaffinity(0))
    best: ProbeMeasurement | None = None
    for rate in (15000, 20000):
        with serving(programs, PORT + 10, 1, cores[-1]):
            found = measure(
                f"http://127.0.0.1:{PORT + 10}/healthz",
                probes=rate,
                period=1.0,
                seconds=5.0,
                spread=250,
                timeout=10.0,
                core=cores[0],
            )
        show(f"{rate:,} HTTP probes a second on one core", found)
        assert found.failed == 0
        best = found if best is None or found.cpu_per_probe < best.cpu_per_probe else best
    assert best is not None
    print(f"one core's worth: {1 / best.cpu_per_probe:,.0f} HTTP probes a second of CPU time")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("kind", ["tcp", "http", "grpc"])
def test_ten_thousand_slow_probes(kind: str) -> None:
    found = min(
        (measure(TARGETS[kind][1], probes=10000, period=10.0, seconds=10.0, spread=64) for _ in range(2)),
        key=lambda found: found.cpu_per_probe,
    )
    show(f"10,000 {kind} probes every 10 s", found)


def test_exec_probes(tmp_path: Path) -> None:
    """100 commands a second in a container of a hollow runtime in a process of its own."""
    runtime = HollowRuntimeProcess(tmp_path / "cri.sock", tmp_path)
    try:
        container = asyncio.run(running_container(runtime_socket := tmp_path / "cri.sock"))
        loop = ProbeLoop()
        loop.runtime(bytes(runtime_socket))
        for n in range(100):
            key = loop.add(
                type=0, kind=3, period=1.0, timeout=1.0, failure_threshold=3, success_threshold=1,
                initial_delay=0.0, never_restarts=False, first_in=n / 100,
            )  # fmt: skip
            loop.target_container(key, container.encode(), *exec_request(["cat", "/tmp/healthy"], 1.0))
            loop.observe(key, ProbeObservation(container=1, state=RUNNING, started=True))
        found = watch(loop, warm_up=1.0, seconds=5.0)
    finally:
        runtime.stop()
    show("100 exec probes a second", found)
    assert found.failed == found.errored == 0


async def running_container(socket: Path) -> str:
    client = RuntimeClient(str(socket))
    config = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p", uid="u", namespace="n"))
    image = "docker.io/library/busybox:latest"
    await client.pull_image(image)
    sandbox = await client.run_pod_sandbox(config)
    metadata, spec = cri.ContainerMetadata(name="app"), cri.ImageSpec(image=image)
    container = await client.create_container(
        sandbox, cri.ContainerConfig(metadata=metadata, image=spec), config
    )
    await client.start_container(container)
    await client.close()
    return container


@pytest.mark.usefixtures("server")
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


@pytest.mark.parametrize(("pods", "probes"), [(10_000, 1), (5_000, 2), (50_000, 1), (25_000, 2)])
def test_memory_of_a_probe(pods: int, probes: int) -> None:
    """Everything that the agent keeps because of the probes, natively and in Python."""
    command = [sys.executable, HERE / "probe_memory.py", str(pods), str(probes)]
    done = subprocess.run(command, capture_output=True, check=True, cwd=HERE.parent)
    kept = json.loads(done.stdout)["bytes_per_probe"]
    total = f"{kept:.0f} bytes each, {PROBE_BYTES} of them its native row"
    print(f"\n{pods * probes:,} probes, {probes} a pod: {total}; goal 1024")


def test_state_machine(benchmark: object) -> None:
    state = ProbeState(0)
    benchmark(state.finish, 0)  # type: ignore[operator]
