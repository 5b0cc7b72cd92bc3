from typing import TypedDict

from engine._fast.probing._state_py import ProbeObservation

BOUNDS: tuple[float, ...]
LATENESS: tuple[float, ...]
PROBE_BYTES: int
CONNECTION_BYTES: int

News = tuple[int, int, int, int, int, int, int, int, bytes]
"""key, generation, news, published, container, outcome, reason, detail, excerpt"""
Counters = tuple[int, tuple[int, int, int, int, int], list[int], float]
"""key, outcomes (success, failure, warning, unknown, error), duration buckets, sum of durations"""

class ProbeInfo(TypedDict):
    container: int
    published: int
    last: int
    run: int
    on_hold: bool
    running: bool
    ended: bool
    duration: float
    lateness: float
    late: int
    cpu: float
    elapsed: float
    next: float
    outcomes: tuple[int, int, int, int, int]
    outcome: int
    reason: int
    detail: int

class LoopStats(TypedDict):
    registered: int
    begun: int
    outcomes: tuple[int, int, int, int, int]
    late: int
    lateness_buckets: list[int]
    lateness_sum: float
    redirects: int
    handed_over: int
    queued: int
    open_connections: int
    most_open_connections: int
    max_connections: int
    open_execs: int
    stored_texts: int
    allocated_connections: int
    notifications: int
    wakeups: int
    networks_entered: int
    early_failures: int
    kept_waiting: float

class ProbeLoop:
    def __init__(self, *, max_connections: int = 1024, max_execs: int = 32) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def add(
        self,
        *,
        type: int,
        kind: int,
        period: float,
        timeout: float,
        failure_threshold: int,
        success_threshold: int,
        initial_delay: float,
        never_restarts: bool,
        first_in: float,
        start_period: float = 0.0,
    ) -> int: ...
    def runtime(self, path: bytes) -> None: ...
    def target(
        self,
        key: int,
        address: str,
        port: int,
        head: bytes = b"",
        name: bytes = b"",
        tail: bytes = b"",
        *,
        url_host: bytes = b"",
        network: int = -1,
    ) -> None: ...
    def target_container(self, key: int, container_id: bytes, head: bytes, tail: bytes) -> None: ...
    def request(self, key: int) -> bytes: ...
    def untarget(self, key: int) -> None: ...
    def observe(self, key: int, seen: ProbeObservation, *, initial: int = 0) -> None: ...
    def trigger(self, key: int) -> None: ...
    def finish(self, key: int, generation: int, outcome: int, reason: int = 0, detail: int = 0) -> bool: ...
    def remove(self, key: int) -> None: ...
    def drain(self, most: int = 1024) -> list[News]: ...
    def info(self, key: int) -> ProbeInfo: ...
    def counters(self) -> list[Counters]: ...
    def stats(self) -> LoopStats: ...
