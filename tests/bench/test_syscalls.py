"""System calls counted by the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.bench.syscalls import SyscallCounter
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
            counter = SyscallCounter(process.pid)
        except Refused as refusal:
            process.kill()
            pytest.skip(str(refusal))
        process.communicate(b"go\n", timeout=PATIENCE)
    assert 2000 <= counter.read() < 10_000
    counter.close()
    assert counter.read() == 0


def test_a_process_that_is_gone_is_no_counter() -> None:
    before = len(list(DESCRIPTORS.iterdir()))
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises((Refused, OSError)):
        SyscallCounter(process.pid)
    assert len(list(DESCRIPTORS.iterdir())) == before
