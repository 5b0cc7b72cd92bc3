"""Forks a small process per request, from a process that is small itself.

The runtime is large and has threads, so it must not fork. This process is one bare interpreter that
has everything imported; a fork of it costs milliseconds and shares its memory. Requests arrive on a
socket as `messages`; the answer of each goes over the forked process's own
connection to the runtime. When the runtime goes, this process goes, and what it forked stays.
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
    # What it forked has this process as its parent while it lives; nobody waits for them.
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
    """Play the request's role in a session of its own. Never returns."""
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
        pass  # the runtime is gone, nobody wants to know
    except BaseException as error:
        print(f"kubengine shim: {describe(error)}", file=sys.stderr)
    finally:
        os._exit(status)


def describe(error: BaseException) -> str:
    """One line for a person."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
