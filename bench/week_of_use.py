"""Measure `rightsize` over a week of recorded use: `python bench/week_of_use.py DIRECTORY [NODES]`.

Writes a made-up cluster of NODES (10,000) with 30 pods each, and a value of CPU and memory of every container
and node for every 5 minutes of 7 days, unless DIRECTORY has them already. Prints the size of the history, and
the processor time and peak memory of the command that reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.plan import synthesize
from engine.plan.history.codes import Codes, encode
from engine.plan.history.history import BLOCK, INDEX, History, Times
from engine.plan.history.history_file import write_history
from engine.plan.snapshot.columnar_file import write_snapshot
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.objects import decoded_spec

STEP, DAYS = 300, 7
TIMES = Times(1_790_000_000 // STEP * STEP, STEP, DAYS * 86_400 // STEP)
MEASURES = ("memory", "cpu")
MEASURED = """
import atexit, re, sys, time
from engine.cli import main

def report():
    peak = int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1]) / 2**20
    print(f"{time.process_time():.0f} s of CPU, {peak:.2f} GiB at most", file=sys.stderr)

atexit.register(report)
main()
"""


@dataclass(frozen=True)
class MadeBlock:
    """Make the codes of a block of series when they are written: each goes up and down every day, with
    noise.
    """

    number: int
    usual: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.usual)

    def __getitem__(self, rows: NDArray[np.int64]) -> Codes:
        draw = np.random.default_rng(self.number)
        moments = np.arange(TIMES.count) * STEP / 86_400
        noise = draw.normal(1, 0.1, (len(self), TIMES.count))
        day = 1 + 0.3 * np.sin(2 * np.pi * (moments + draw.random((len(self), 1))))
        return encode(np.maximum(self.usual[:, None] * day * noise, 1))[rows]


def history_of(cluster: Snapshot) -> History:
    """Return series of all containers and nodes: half of what containers request, and the sums of nodes."""
    containers = [
        [(one.name, one.requests) for one in decoded_spec(spec).spec.containers]
        for spec in cluster.templates["spec"].to_pylist()
    ]
    rows: list[tuple[str, str, str, str, str]] = []
    usual: list[float] = []
    pods = cluster.pods.select(["namespace", "name"]).to_pylist()
    template, offsets = cluster.column("template").tolist(), cluster.offsets.tolist()
    for node, name in enumerate(cluster.node_names):
        sums = dict.fromkeys(MEASURES, 0.0)
        first = len(rows)
        for row in range(offsets[node], offsets[node + 1]):
            for container, requests in containers[template[row]]:
                for measure in MEASURES:
                    asked = requests[measure].nano / 1e9 if measure in requests else 0.0
                    amount = asked / 2 * (1 if measure == "memory" else 1e6)
                    rows.append((measure, name, pods[row]["namespace"], pods[row]["name"], container))
                    usual.append(amount)
                    sums[measure] += amount
        rows[first:first] = [(f"node-{measure}", name, "", "", "") for measure in MEASURES]
        usual[first:first] = [sums[measure] * 1.1 for measure in MEASURES]
    index = pa.table(
        {
            field.name: pa.array(texts, pa.string()).dictionary_encode()
            for field, texts in zip(INDEX, zip(*rows, strict=True), strict=True)
        },
        INDEX,
    )
    amounts = np.array(usual)
    blocks = [
        MadeBlock(number, amounts[start : start + BLOCK])
        for number, start in enumerate(range(0, len(amounts), BLOCK))
    ]
    return History(TIMES, index, blocks, np.arange(len(amounts)))  # type: ignore[arg-type]


def main() -> None:
    directory, nodes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    cluster_file, history_file = directory / f"cluster-{nodes}.kes", directory / f"use-{nodes}.arrow"
    if not history_file.exists():
        cluster = synthesize(nodes, 30, images=False)
        write_snapshot(cluster, cluster_file)
        history = history_of(cluster)
        write_history(history, history_file)
        print(f"{len(history):,} series")
    print(f"{history_file.stat().st_size / 2**30:.2f} GiB in {history_file}")
    command = [sys.executable, "-c", MEASURED, "plan", "rightsize", "--history", str(history_file)]
    done = subprocess.run([*command, str(cluster_file)], capture_output=True, text=True, check=False)
    print(done.stdout.partition("\n")[0])
    print(f"exit status {done.returncode}, {done.stderr.strip()}; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
