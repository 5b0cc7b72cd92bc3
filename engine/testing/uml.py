"""A test body inside a real cgroup v2 kernel: User-Mode Linux, booted as an ordinary process.

    answer = run_in_uml('report(open(CGROUPS + "/cgroup.controllers").read().split())')

The kernel has this machine's file system as its read-only root, a tmpfs on `SCRATCH` (which hides what
is there), and cgroup2 at its usual place, `CGROUPS`, with cpu, io, memory and pids (no cpuset, no
hugetlb). The body is Python source, run by this interpreter as the only program there, as root; what it
passes to `report` comes back.

With `systemd`, systemd is the first program instead: it has mounted cgroup2 itself and answers on the
system bus, and the body is a service of it.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api.errors import Refused, Unavailable

KERNEL = "linux.uml"
_WIDE_REGISTERS = Path(__file__).parent / "uml_registers.c"
_OWN_CLOCK = Path(__file__).parent / "uml_clock.c"
SCRATCH = "/mnt"
CGROUPS = "/sys/fs/cgroup"
_MARK = "UML-REPORT "
_ENDED = "UML-ENDED"

SYSTEMD = "/lib/systemd/systemd"
BUS_DAEMON = "/usr/bin/dbus-daemon"

_RUN = """#!/bin/sh
export HOME={scratch} TMPDIR={scratch} PATH={path} PYTHONPATH={python_path}
export PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
{python} {body} > /dev/console 2>&1
echo {ended} > /dev/console
echo o > /proc/sysrq-trigger
sleep 60
"""

_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs {scratch}
mount -t sysfs sysfs /sys
mount -t cgroup2 none {cgroups}
exec {run}
"""

_SYSTEMD_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs {scratch}
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
cd /run/systemd/system
cat > dbus.socket <<END
[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
END
cat > dbus.service <<END
[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
Type=notify
NotifyAccess=main
ExecStart={bus} --system --address=systemd: --nofork --nopidfile --systemd-activation --syslog-only
END
cat > body.service <<END
[Unit]
DefaultDependencies=no
Wants=dbus.service
After=dbus.service
[Service]
ExecStart={run}
END
exec {systemd} --unit=body.service --log-target=console --log-level=warning --show-status=no
"""

_PRELUDE = f"""
import json, os, sys
SCRATCH, CGROUPS = {SCRATCH!r}, {CGROUPS!r}
def report(value):
    os.write(1, ("\\n{_MARK}" + json.dumps(value) + "\\n").encode())
"""


def available() -> bool:
    """Tell whether the kernel is installed (Debian: user-mode-linux)."""
    return shutil.which(KERNEL) is not None


def systemd_available() -> bool:
    """Tell whether systemd and a bus are installed (Debian: systemd, dbus)."""
    return os.access(SYSTEMD, os.X_OK) and os.access(BUS_DAEMON, os.X_OK)


def run_in_uml(
    body: str,
    *,
    memory: str = "512M",
    timeout: float = 600.0,
    systemd: bool = False,
    disk: Path | None = None,
    own_clock: bool = False,
    show: Callable[[bytes], None] | None = None,
) -> Any:
    """Boot, run `body`, power off; return the value (JSON) of the body's last `report(value)`.

    `disk` is a file that the kernel has as a block device, number 98:0; the body creates a node for it.
    With `own_clock` the machine's time runs slower than the host's while it works, so that a busy host breaks
    no deadline, and jumps to the next timer while the machine is idle; `timeout` is the host's time.
    `show` gets what the console prints, as it appears.
    Raise `Unavailable` without the kernel (or systemd, if asked for), `Refused` with the console's last
    lines if the body raised, reported nothing, or took longer than `timeout` seconds.
    """
    kernel = shutil.which(KERNEL)
    if kernel is None:
        raise Unavailable("not installed (Debian: user-mode-linux)", subject=KERNEL)
    if systemd and not systemd_available():
        raise Unavailable("not installed (Debian: systemd, dbus)", subject=SYSTEMD)
    directory = Path(tempfile.mkdtemp(prefix="kubengine-uml-", dir="/var/tmp"))
    try:
        source = directory / "body.py"
        source.write_text(_PRELUDE + textwrap.dedent(body))
        run = _script(
            directory / "run",
            _RUN,
            scratch=SCRATCH,
            path=os.environ.get("PATH", "/usr/bin:/bin"),
            python_path=os.pathsep.join(entry for entry in sys.path if entry),
            python=sys.executable,
            body=source,
            ended=_ENDED,
        )
        init = _script(
            directory / "init",
            _SYSTEMD_INIT if systemd else _INIT,
            scratch=SCRATCH,
            cgroups=CGROUPS,
            run=run,
            systemd=SYSTEMD,
            bus=BUS_DAEMON,
        )
        libraries = _libraries(directory, own_clock)
        return _boot(kernel, init, directory, memory, timeout, disk, libraries, show)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _script(path: Path, text: str, /, **values: object) -> Path:
    path.write_text(text.format(**values))
    path.chmod(0o755)
    return path


def _boot(
    kernel: str,
    init: Path,
    directory: Path,
    memory: str,
    timeout: float,
    disk: Path | None,
    libraries: list[str],
    show: Callable[[bytes], None] | None,
) -> Any:
    command = [
        kernel,
        *(f"mem={memory}", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"),
        f"umid={directory.name}",
        *([f"ubd0={disk}"] if disk is not None else []),
        *("con=null", "con0=null,fd:1", "ssl=null", "quiet", f"uml_dir={directory}/"),
    ]
    environment = dict(os.environ, TMPDIR=str(directory), HOME=str(directory))
    if libraries:
        environment["LD_PRELOAD"] = " ".join(libraries)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    try:
        output, ended = _console(process, time.monotonic() + timeout, show)
    finally:
        _end(process)
        process.wait()
    if not ended:
        raise Refused(f"no answer in {timeout:g} s; its console ended with:\n{_tail(output)}", subject=KERNEL)
    return _answer(output)


def _console(
    process: subprocess.Popen[bytes], deadline: float, show: Callable[[bytes], None] | None
) -> tuple[bytes, bool]:
    """Return what the console printed until the kernel ended, or until the deadline, and whether it ended."""
    output, pipe = bytearray(), process.stdout
    assert pipe is not None
    with pipe:
        while select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            text = os.read(pipe.fileno(), 1 << 16)
            if not text:
                return bytes(output), True
            output += text
            if show is not None:
                show(text)
    return bytes(output), False


def _libraries(directory: Path, own_clock: bool) -> list[str]:
    """Return the libraries that the kernel preloads: on a processor with AMX it otherwise dies at once."""
    wide = re.search(r"^flags\b.*\bamx_tile\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    sources = [_WIDE_REGISTERS] if wide else []
    if own_clock:
        sources.append(_OWN_CLOCK)
    return [_compiled(source, directory) for source in sources]


def _compiled(source: Path, directory: Path) -> str:
    library = directory / f"{source.stem}.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("not installed (Debian: gcc)", subject="cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return str(library)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the kernel, whose processes are its children in its own session."""
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
