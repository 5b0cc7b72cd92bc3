"""Events of a process tree, counted by the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.bench.kernel_counters import EVENTS, KernelCounter, count_all, system_calls
from tests.waiting import PATIENCE

DESCRIPTORS = Path("/proc/self/fd")
TREE = """
import os, sys, threading

def calls():
    for _ in range(1000):
        os.getppid()

sys.stdin.readline()
thread = threading.Thread(target=calls)
thread.start()
thread.join()
if os.fork() == 0:
    calls()
    os._exit(0)
os.wait()
"""


@pytest.mark.root
def test_threads_and_children_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE) as process:
        try:
            counter = KernelCounter(system_calls(), process.pid)
        except Refused as refusal:
            process.kill()
            pytest.skip(str(refusal))
        process.communicate(b"go\n", timeout=PATIENCE)
    assert 2000 <= counter.read() < 10_000
    counter.close()
    assert counter.read() == 0


@pytest.mark.root
def test_each_event_is_counted_or_its_absence_explained() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE) as process:
        counters, refused = count_all(process.pid)
        process.communicate(b"go\n", timeout=PATIENCE)
    absent = {reason.partition(": ")[0].replace(" ", "_"): reason.partition(": ")[2] for reason in refused}
    assert counters.keys() | absent.keys() == EVENTS.keys()
    assert not counters.keys() & absent.keys()
    assert all(counter.read() > 2000 for counter in counters.values())
    assert all(absent.values())
    for counter in counters.values():
        counter.close()


def test_a_process_that_is_gone_is_no_counter() -> None:
    before = len(list(DESCRIPTORS.iterdir()))
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises((Refused, OSError)):
        KernelCounter(system_calls(), process.pid)
    assert len(list(DESCRIPTORS.iterdir())) == before
