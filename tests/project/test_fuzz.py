"""The fuzzing harnesses build, run and find nothing in a moment; `make fuzz` gives them their time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PARSERS = {
    "checkpoint", "config", "device_list", "grpc_answer", "hpack", "http2_client", "http_location",
    "http_response", "json_split", "layer", "manifests", "message_fields", "snapshot", "spdy", "websocket",
}  # fmt: skip


def test_every_parser_of_outside_bytes_has_a_harness() -> None:
    command = [sys.executable, ROOT / "fuzz" / "run.py", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert set(re.findall(r"\w+", printed.stdout)) >= PARSERS


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
def test_every_harness_runs(tmp_path: Path) -> None:
    program = ROOT / "fuzz" / "run.py"
    done = subprocess.run(
        [sys.executable, program, "--seconds", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
    harnesses = {path.stem.removeprefix("fuzz_") for path in (ROOT / "fuzz").glob("fuzz_*.c")}
    assert harnesses < {line.split(":")[0] for line in done.stdout.splitlines()}
