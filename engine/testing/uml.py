"""A test body inside a real cgroup v2 kernel: User-Mode Linux, booted as an ordinary process.

    answer = run_in_uml('report(open(CGROUPS + "/cgroup.controllers").read().split())')

The kernel has this machine's file system as its read-only root, a tmpfs on `SCRATCH` (which hides what
is there), and cgroup2 at its usual place, `CGROUPS`, with cpu, io, memory and pids (no cpuset, no
hugetlb). The body is Python source, run by this interpreter as the only program there, as root; what it
passes to `report` comes back.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from engine.api.errors import Refused, Unavailable

KERNEL = "linux.uml"
SCRATCH = "/mnt"
CGROUPS = "/sys/fs/cgroup"
_MARK = "UML-REPORT "
_ENDED = "UML-ENDED"

_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs {scratch}
mount -t sysfs sysfs /sys
mount -t cgroup2 none {cgroups}
export HOME={scratch} TMPDIR={scratch} PATH={path} PYTHONPATH={python_path}
export PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
{python} {body} 2>&1
echo {ended}
echo o > /proc/sysrq-trigger
sleep 60
"""

_PRELUDE = f"""
import json, os, sys
SCRATCH, CGROUPS = {SCRATCH!r}, {CGROUPS!r}
def report(value):
    os.write(1, ("\\n{_MARK}" + json.dumps(value) + "\\n").encode())
"""


def available() -> bool:
    """Whether the kernel is installed (Debian: user-mode-linux)."""
    return shutil.which(KERNEL) is not None


def run_in_uml(body: str, *, memory: str = "512M", timeout: float = 120.0) -> Any:
    """Boot, run `body`, power off; what the body's last `report(value)` was given (JSON).

    Raises `Unavailable` without the kernel, `Refused` with the console's last lines if the body raised,
    reported nothing, or took longer than `timeout` seconds.
    """
    kernel = shutil.which(KERNEL)
    if kernel is None:
        raise Unavailable("not installed (Debian: user-mode-linux)", subject=KERNEL)
    directory = Path(tempfile.mkdtemp(prefix="kubengine-uml-", dir="/var/tmp"))
    try:
        source = directory / "body.py"
        source.write_text(_PRELUDE + textwrap.dedent(body))
        init = directory / "init"
        init.write_text(
            _INIT.format(
                cgroups=CGROUPS,
                scratch=SCRATCH,
                path=os.environ.get("PATH", "/usr/bin:/bin"),
                python_path=os.pathsep.join(entry for entry in sys.path if entry),
                python=sys.executable,
                body=source,
                ended=_ENDED,
            )
        )
        init.chmod(0o755)
        return _boot(kernel, init, directory, memory, timeout)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _boot(kernel: str, init: Path, directory: Path, memory: str, timeout: float) -> Any:
    command = [
        kernel,
        *(f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"),
        f"umid={directory.name}",
        *("con=null", "con0=null,fd:1", "ssl=null", "quiet", f"uml_dir={directory}/"),
    ]
    environment = dict(os.environ, TMPDIR=str(directory), HOME=str(directory))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        output, _ = process.communicate()
        raise Refused(
            f"no answer in {timeout:g} s; its console ended with:\n{_tail(output)}", subject=KERNEL
        ) from None
    finally:
        _end(process)
    return _answer(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The kernel runs its processes as its children, in its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _answer(output: bytes) -> Any:
    lines = output.decode(errors="replace").splitlines()
    reports = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    failed = any(line.startswith("Traceback ") for line in lines)
    if failed or not reports:
        raise Refused(f"the body failed; its console ended with:\n{_tail(output)}", subject=KERNEL)
    return json.loads(reports[-1])


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").splitlines()[-40:])
