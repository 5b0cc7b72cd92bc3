"""An agent at rest gives back the pages of libraries that only its start used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.scripts import output_of
from tests.cli.test_logging import KUBELET, UP
from tests.waiting import PATIENCE, wait_until

MEGABYTE = 1024
"""In kB, the unit of /proc/PID/status."""

RESTS_SOON = """
import engine.cli.agent.process
engine.cli.agent.process.REST_SECONDS = 1.0
from engine.cli import main
main()
"""

LIBRARIES_AFTERWARDS = """
import re
import msgspec, numpy, ssl, zlib
from engine.cli.agent.library_pages import unmap_unused_library_pages

def resident():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

packed, squares = zlib.compress(b"pages" * 1000), numpy.arange(1000) ** 2
before = resident()
unmap_unused_library_pages()
assert resident() < before / 2, (before, resident())
assert zlib.decompress(packed) == b"pages" * 1000
assert squares.sum() == sum(number * number for number in range(1000))
assert msgspec.json.decode(msgspec.json.encode({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
ssl.create_default_context()
unmap_unused_library_pages()
"""

RELOCATED_CODE = """
extern int puts(const char *);
int written(void) { return puts("relocated"); }
"""

RELOCATED_CODE_AFTERWARDS = """
import ctypes, sys
from engine.cli.agent.library_pages import unmap_unused_library_pages
library = ctypes.CDLL(sys.argv[1])
unmap_unused_library_pages()
library.written()
"""


def test_libraries_work_after_their_pages_were_unmapped() -> None:
    output_of(LIBRARIES_AFTERWARDS)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other linkers refuse to relocate code")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (Debian: gcc)")
def test_a_library_whose_code_was_relocated_keeps_it(tmp_path: Path) -> None:
    source, library = tmp_path / "relocated.c", tmp_path / "relocated.so"
    source.write_text(RELOCATED_CODE)
    options = ("-shared", "-fno-pic", "-mcmodel=large", "-Wl,-z,notext,-z,lazy")
    subprocess.run(["cc", *options, "-o", library, source], check=True, capture_output=True)
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True)
    assert "TEXTREL" in dynamic.stdout
    assert output_of(RELOCATED_CODE_AFTERWARDS, str(library)) == "relocated"


def test_an_agent_at_rest_unmaps_what_only_its_start_used(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", RESTS_SOON, "kubelet", *KUBELET, f"--root-dir={tmp_path}/r"]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            wait_until(lambda: UP in log.read_text())
            wait_until(lambda: _given_back(process.pid) > 2 * MEGABYTE)
            process.terminate()
            assert process.wait(PATIENCE) == 0, "it still works"
        finally:
            process.kill()


def _given_back(pid: int) -> int:
    """Return by how much the resident memory of a process is below its peak, in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    peak, now = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) for name in ("VmHWM", "VmRSS"))
    return peak - now
