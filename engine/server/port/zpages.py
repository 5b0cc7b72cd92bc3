"""Serves `/flagz` and `/statusz`: settings and state of the agent for people; programs should not
parse them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

from engine.api.struct import to_builtins
from engine.api.version import engine_version
from engine.server.http.exchange import TEXT, Response
from engine.server.http.secrets import masked
from engine.server.interfaces.node import PortNode
from engine.server.metrics_text import process_started

_HEAD = (
    "\nkubelet {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)


def flagz(view: PortNode) -> Response:
    """Return every setting that differs from its default, by its name in the configuration file."""
    lines = [f"{name}={masked(name, value)}\n" for name, value in sorted(to_builtins(view.config).items())]
    return Response(200, TEXT, (_HEAD.format(page="flagz") + "".join(lines)).encode())


def statusz(view: PortNode, paths: Sequence[str]) -> Response:
    """Return start time, version and paths of the agent."""
    started = process_started()
    up = int(time.time() - started)
    said = {
        "Started": time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started)),
        "Up": f"{up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec",
        "Python version": platform.python_version(),
        "Binary version": engine_version(),
        "Paths": " ".join(paths),
    }
    lines = [f"{name}: {value}\n" for name, value in said.items()]
    failing = [f"{check}: {error}\n" for check, error in view.healthz() if error]
    return Response(200, TEXT, "".join([_HEAD.format(page="statusz"), *lines, *failing]).encode())
