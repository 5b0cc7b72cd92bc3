"""Another name for a process, in a Python of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import sys
from pathlib import Path
from engine.cli.kubelet import name_process
name_process("kubelet", sys.argv[1:])
sys.stdout.write(Path("/proc/self/comm").read_text())
sys.stdout.flush()
sys.stdout.buffer.write(Path("/proc/self/cmdline").read_bytes())
"""


@pytest.mark.parametrize("arguments", [["--v=2", "--node-ip", "10.0.0.1"], [], ["ä", ""]])
def test_tools_see_the_name_and_the_arguments(arguments: list[str]):
    command, _, line = run(*arguments).partition(b"\n")
    assert command == b"kubelet"
    words = line.rstrip(b"\0").decode().split("\0")
    assert words[: 1 + len(arguments)] == ["kubelet", *arguments][: len(words)]
    assert line.endswith(b"\0")


def test_a_process_name_that_is_too_long_is_truncated():
    """The memory holds the old command line and nothing more."""
    tight = SHOW.replace("sys.argv[1:]", "['a' * 100_000]")
    line = run(script=tight).partition(b"\n")[2]
    assert line.startswith(b"kubelet\0aaa")
    assert len(line) == len(b"\0".join([sys.executable.encode(), b"-c", tight.encode(), b""]))


def run(*arguments: str, script: str = SHOW) -> bytes:
    return subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True).stdout
