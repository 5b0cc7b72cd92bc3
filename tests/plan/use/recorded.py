"""A real Prometheus that serves made-up use, written as blocks by promtool."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

from tests.waiting import PATIENCE

MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
SCRAPE = 60
MEMORY, CPU = "container_memory_working_set_bytes", "container_cpu_usage_seconds_total"


@dataclass
class Recording:
    """Hold samples of series for OpenMetrics text: (metric, labels) to (Unix seconds, value)."""

    samples: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, metric: str, labels: Mapping[str, str], samples: Sequence[tuple[int, float]]) -> None:
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        self.samples[metric, text] = list(samples)

    def container(
        self,
        pod: str,
        name: str,
        times: Sequence[int],
        memory: Sequence[float],
        cpu: Sequence[float],
        **labels: str,
    ) -> None:
        """Add the memory in bytes and the CPU in cores of one container at these times."""
        namespace, _, short = pod.rpartition("/")
        labels = {"namespace": namespace, "pod": short, "container": name} | labels
        self.add(MEMORY, labels, list(zip(times, memory, strict=True)))
        seconds, total = [], 0.0
        for before, now, cores in zip([times[0], *times], times, cpu, strict=False):
            total += cores * (now - before)
            seconds.append((now, total))
        self.add(CPU, labels, seconds)

    def node(self, name: str, times: Sequence[int], memory: Sequence[float]) -> None:
        self.add(MEMORY, {"id": "/", "node": name}, list(zip(times, memory, strict=True)))

    def text(self) -> Iterator[str]:
        """Yield OpenMetrics, in which the samples of one metric stand together."""
        for metric in dict.fromkeys(metric for metric, _ in self.samples):
            kind = "counter" if metric.endswith("_total") else "gauge"
            yield f"# TYPE {metric.removesuffix('_total')} {kind}\n"
            for (name, labels), samples in self.samples.items():
                if name == metric:
                    yield from (f"{metric}{{{labels}}} {value!r} {at}\n" for at, value in samples)
        yield "# EOF\n"


def free_address() -> str:
    """Return an address of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def prometheus(directory: Path, recording: Recording, *options: str, settings: str = "") -> Iterator[str]:
    """Serve a recording; yield the address of the server. `settings` are lines of its configuration."""
    metrics, data = directory / "use.om", directory / "data"
    with metrics.open("w") as file:
        file.writelines(recording.text())
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(metrics), str(data)]
    subprocess.run(made, check=True, capture_output=True)
    configuration = directory / "prometheus.yml"
    configuration.write_text(f"scrape_configs: []\n{settings}")
    address = free_address()
    command = [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=10y",
        *options,
    ]
    with running(command, directory / "log", f"http://{address}/-/ready"):
        yield f"http://{address}"


@contextmanager
def running(command: Sequence[str], log: Path, ready: str) -> Iterator[None]:
    """Run a server that logs to a file; yield once the URL `ready` answers, and end the server afterwards."""
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until = time.monotonic() + PATIENCE
        while not answers(ready):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE)


def answers(request: str | Request) -> bool:
    """Tell whether a server answers a request without an error."""
    try:
        with urlopen(request, timeout=30) as answer:
            return 200 <= answer.status < 300
    except OSError:
        return False
