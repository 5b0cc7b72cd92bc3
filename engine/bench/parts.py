"""Run child processes of the bench, which log to a file, end with the bench, and have distinct names."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import Refused, Unavailable

START_SECONDS = 240.0
STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Part:
    """Hold a running process. `log` holds its output."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,  # noqa: PLW1509 - one thread, nothing but a prctl
                    env={
                        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
                    },
                )
        except OSError as error:
            raise Refused(error.strerror or str(error), subject=command[0], errno=error.errno) from None
        self.pid = self._process.pid

    def check(self) -> None:
        """Raise `Unavailable` with the end of the log if the process is gone."""
        status = self._process.poll()
        if status is not None:
            raise Unavailable(
                f"ended with status {status}; its last output:\n{self.last_words()}", subject=self.name
            )

    def wait_for(self, *files: Path) -> None:
        """Wait until it has written these files. Raise `Unavailable` if it ends or hangs before."""
        deadline = time.monotonic() + START_SECONDS
        while not all(file.exists() for file in files):
            self.check()
            if time.monotonic() > deadline:
                raise Unavailable("does not start", subject=self.name)
            time.sleep(0.01)

    def last_words(self, lines: int = 8) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, *, kill: bool = False) -> None:
        """Send SIGTERM, then after a while SIGKILL to the whole session; safe to call twice."""
        if self._process.poll() is None and not kill:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                kill = True
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def kubengine(*arguments: str) -> list[str]:
    """Return the command line of this installation's `kubengine`."""
    return [sys.executable, "-m", "engine.cli", *arguments]


def http_get(port: int, path: str, timeout: float = 10.0) -> tuple[int, bytes]:
    """Return status and body. Raise OSError if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


class ProbeTarget(Part):
    """Run the target of probes: it counts connections, and per path the gaps between requests."""

    def __init__(self, directory: Path, *, period: float = 10.0) -> None:
        port_file = directory / "probe-target.port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "engine.bench.probe_target", str(port_file), str(period)]
        super().__init__("probe target", command, directory / "probe-target.log")
        self.wait_for(port_file)
        self.ports: list[int] = json.loads(port_file.read_text())

    def counts(self) -> dict[str, Any]:
        """Return `http`, `tcp`, `late` (requests that came more than half a period late)."""
        result: dict[str, Any] = json.loads(http_get(self.ports[0], "/count")[1])
        return result


class HollowRuntimeProcess(Part):
    """Run `kubengine runtime --hollow` in a separate process, so that it outlives agents."""

    def __init__(self, socket: Path, directory: Path) -> None:
        self._stats = directory / "runtime-stats.json"
        super().__init__(
            "hollow runtime",
            kubengine("runtime", "--hollow", "--socket", str(socket), "--stats-file", str(self._stats)),
            directory / "runtime.log",
        )
        self.wait_for(socket, self._stats)

    def calls(self) -> dict[str, dict[str, int]]:
        """Return calls and bytes by method, at most a second old."""
        result: dict[str, dict[str, int]] = json.loads(self._stats.read_text())
        return result
