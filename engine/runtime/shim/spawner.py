"""Fork a small process per request, from a process that is itself small.

The runtime is large and has threads, so it must not fork. This process is one bare interpreter with
everything imported; a fork of it costs milliseconds and shares its memory. Requests arrive on a socket as
`messages`; each answer goes over the forked process's own connection to the runtime. This process ends with
the runtime; the processes that it forked stay.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import Any

from engine.runtime.shim import command, container, linux, messages, sandbox
from engine.runtime.shim.report import Report

ROLES = {"sandbox": sandbox.run, "container": container.run, "command": command.run}


def main(fd: int) -> None:
    """Serve requests from socket `fd` until it closes."""
    os.chdir("/")
    os.setsid()
    linux.set_process_name("kubengine-spawn")
    linux.hide()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Forked processes are children of this one while it lives; nothing waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    while True:
        request = messages.receive(connection)
        if request is None:
            return
        if os.fork() == 0:
            connection.close()
            _play(request)


def _play(request: dict[str, Any]) -> None:
    """Run the request's role in a new session. Never returns."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        report = Report(request["report"], request["token"])
        try:
            status = ROLES[request["role"]](request, report)
        except Exception as error:
            report.send({"error": describe(error)})
    except ConnectionError:
        pass  # the runtime is gone, so nothing can be reported
    except BaseException as error:
        print(f"kubengine shim: {describe(error)}", file=sys.stderr)
    finally:
        os._exit(status)


def describe(error: BaseException) -> str:
    """Describe an error in one line for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
