"""The checkout's own tests under systemd and cgroup v2, in User-Mode Linux: `make try-uml`.

They run on the host's own processor, which takes minutes where an emulated machine takes hours. What this
kernel lacks (several CPUs, cpuset, hugetlb, PSI) is left to `make try-vm`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.testing.uml import run_in_uml, systemd_available

ROOT = Path(__file__).parents[2]
LONGEST = 3 * 3600.0
OPTIONS = "-p no:cacheprovider -q -rfEs --tb=short --timeout 0 --basetemp=/mnt/tests"

# The root file system is the host's, read only, so a layer in memory takes what tests write into these
# directories. Modules are loaded on first use, as on a machine that has them in /lib/modules.
BODY = """
import os
import subprocess
from pathlib import Path

loader = Path(SCRATCH, "modprobe")
loader.write_text("#!/bin/sh\\nexec modprobe --dirname " + SCRATCH + ' "$@"\\n')
loader.chmod(0o755)
Path("/proc/sys/kernel/modprobe").write_text(str(loader))
modules = Path(SCRATCH, "lib/modules")
modules.mkdir(parents=True)
subprocess.run(["mount", "--bind", "/usr/lib/uml/modules", modules], check=True)
subprocess.run([loader, "loop"], check=True)  # its devices exist only once it is loaded
for path in ("/etc", "/tmp", "/var"):
    upper, work = Path(SCRATCH, "upper" + path), Path(SCRATCH, "work" + path)
    upper.mkdir(parents=True)
    upper.chmod(Path(path).stat().st_mode)  # any user may write to /tmp
    work.mkdir(parents=True)
    layers = f"lowerdir={path},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", path], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "route", "add", "default", "dev", "lo"], check=True)
resolver = Path("/etc/resolv.conf")
resolver.unlink(missing_ok=True)
resolver.write_text("nameserver 127.0.0.1\\n")  # refuses at once; others would never answer
command = [sys.executable, "-m", "pytest", *OPTIONS.split(), "-m", "not uml", SUITE]
# In CI hypothesis keeps no database, for which the read-only checkout has no place.
report(subprocess.run(command, cwd=ROOT, env={**os.environ, "CI": "1"}).returncode)
"""


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.slow
@pytest.mark.skipif("KUBENGINE_UML" not in os.environ, reason="takes half an hour: `make try-uml`")
@pytest.mark.skipif(not systemd_available(), reason="needs systemd and its bus (Debian: systemd, dbus)")
@pytest.mark.parametrize("suite", ["cgroups", "eviction", "node"])
def test_own_tests(suite: str) -> None:
    names = {"ROOT": str(ROOT), "OPTIONS": OPTIONS, "SUITE": f"tests/{suite}"}
    body = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + BODY
    assert run_in_uml(body, memory="3G", timeout=LONGEST, systemd=True, show=_write) == 0


def _write(text: bytes) -> None:
    os.write(2, text)
