"""Answers authorized requests on the paths of kubelet v1.36, and serves its debug flags and z-pages."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from engine.api.config import DEBUG_VERBOSITY
from engine.api.errors import InvalidInput, KubengineError
from engine.api.struct import to_builtins, to_json
from engine.api.version import engine_version
from engine.node.logs.container_access import ContainerStreams, Unknown
from engine.node.logs.container_logs import STREAMS, OutOfRange, log_options
from engine.server.debugging import without_debugging
from engine.server.http.exchange import JSON, TEXT, Answer, Request, Response, plain
from engine.server.http.request_metrics import count_websocket
from engine.server.http.secrets import masked
from engine.server.interfaces.node import PortNode
from engine.server.metrics_text import process_started
from engine.server.port import websocket_streams
from engine.server.port.streams import NO_UPGRADE, handed_to
from engine.server.port.system_logs import query_logs, system_logs
from engine.server.routes import Routes

log = logging.getLogger("kubengine.port")

NO_PAGE = "404: Page Not Found"
NO_METHOD = "405: Method Not Allowed"

_Serve = Callable[[PortNode, Request, list[str]], Awaitable[Answer]]
FLAGS_DISABLED: Final = "flags endpoint is disabled.\n"
MOST_VERBOSE: Final = 2**31 - 1
_NAME: Final = "klog.logging.verbosity"
_HEAD = (
    "\nkubelet {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n\n"
)


async def answer(view: PortNode, others: Routes, request: Request) -> Answer:
    """Answer any request; `others` are the routes of all ports. Never raises."""
    first, *rest = request.path[1:].split("/")
    if not view.config.enable_debugging_handlers:
        disabled = without_debugging(request)
        if disabled is not None:
            return disabled
    if first in _SHARED_PATHS:
        return await others.answer(request)
    serve = _SERVED.get(first)
    if serve is None:
        return plain(404, NO_PAGE)
    try:
        return await serve(view, request, rest)
    except Unknown as error:
        return plain(404, str(error))
    except InvalidInput as error:
        return plain(400, str(error))
    except KubengineError as error:
        return plain(500, str(error))
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return plain(500, f"{type(error).__name__}: {error}")


async def _container_logs(view: PortNode, request: Request, names: list[str]) -> Answer:
    if len(names) != 3 or not all(names):
        return plain(404, NO_PAGE)
    if request.method != "GET":
        return plain(405, NO_METHOD)
    try:
        options = log_options(request.query, time.time())
    except OutOfRange:
        return plain(422, '{"message": "Invalid request."}')
    except InvalidInput:
        return plain(400, '{"message": "Unable to decode query."}')
    if options.streams != STREAMS and not view.config.gate("PodLogsQuerySplitStreams", False):
        return plain(400, "a single stream needs the feature gate PodLogsQuerySplitStreams of the kubelet")
    namespace, pod, container = names
    return Response(200, TEXT, await view.containers.logs(namespace, pod, container, options))


async def _exec(view: PortNode, request: Request, names: list[str]) -> Answer:
    namespace, pod, _, container = _named(names)
    streams, command = _streams(request), request.values("command")
    view.containers.pod(namespace, pod)
    if not request.upgrade:
        return plain(500, NO_UPGRADE)
    url = await view.containers.exec_url(namespace, pod, container, command, streams)
    return await _commanded(view, url, request, streams, "exec")


async def _attach(view: PortNode, request: Request, names: list[str]) -> Answer:
    namespace, pod, uid, container = _named(names)
    streams = _streams(request)
    view.containers.pod(namespace, pod)
    if not request.upgrade:
        return plain(500, NO_UPGRADE)
    url = await view.containers.attach_url(namespace, pod, uid, container, streams)
    return await _commanded(view, url, request, streams, "attach")


async def _port_forward(view: PortNode, request: Request, names: list[str]) -> Answer:
    if len(names) not in (2, 3):
        raise Unknown(NO_PAGE)
    namespace, pod, uid = (*names, "")[:3]
    is_tunnel = _extends_websockets(view) and websocket_streams.is_tunnelled(request)
    ports = [] if is_tunnel else _ports(request)  # a tunnelled stream names its own
    view.containers.pod(namespace, pod)
    if not request.upgrade:
        return plain(500, NO_UPGRADE)
    url = await view.containers.port_forward_url(namespace, pod, uid, ports)
    if is_tunnel:
        count_websocket(view.registry, "portforward")
        return await websocket_streams.tunnelled(request, partial(_handed, view, url))
    return await _handed(view, url, request)


async def _commanded(
    view: PortNode, url: str, request: Request, streams: ContainerStreams, subresource: str
) -> Answer:
    if not (_extends_websockets(view) and websocket_streams.is_translated(request)):
        return await _handed(view, url, request)
    count_websocket(view.registry, subresource)
    return await websocket_streams.translated(request, streams, partial(_handed, view, url))


def _extends_websockets(view: PortNode) -> bool:
    return view.config.gate(websocket_streams.GATE, True)


async def _handed(view: PortNode, url: str, request: Request) -> Answer:
    return await handed_to(url, request, idle=float(view.config.streaming_connection_idle_timeout))


async def _run(view: PortNode, request: Request, names: list[str]) -> Answer:
    if request.method != "POST":
        return plain(405, NO_METHOD)
    namespace, pod, _, container = _named(names)
    command = request.query.get("cmd", "").split(" ")
    return Response(200, JSON, await view.containers.run(namespace, pod, container, command))


async def _checkpoint(view: PortNode, request: Request, names: list[str]) -> Answer:
    if len(names) != 3:
        raise Unknown(NO_PAGE)
    if request.method != "POST":
        return plain(405, NO_METHOD)
    text = (request.values("timeout") or ["0"])[-1]
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        return plain(404, "cannot parse value of timeout parameter")
    namespace, pod, container = names
    archive = await view.containers.checkpoint(namespace, pod, container, int(text))
    return Response(200, JSON, to_json({"items": [str(archive)]}))


async def _logs(view: PortNode, request: Request, _: list[str]) -> Answer:
    if not view.config.enable_system_log_handler:
        return plain(405, "logs endpoint is disabled.\n")
    if request.method != "GET":
        return plain(405, NO_METHOD)
    serve = query_logs if view.config.enable_system_log_query else system_logs
    return await serve(request)


async def _flagz(view: PortNode, _request: Request, _: list[str]) -> Answer:
    return flagz(view)


async def _statusz(view: PortNode, _request: Request, _: list[str]) -> Answer:
    return statusz(view, sorted(f"/{name}" for name in (*_SHARED_PATHS, *_SERVED)))


async def _debug(view: PortNode, request: Request, names: list[str]) -> Answer:
    top, *rest = names or [""]
    if top == "pprof":
        from engine.server.port import profiling

        if not view.config.enable_profiling_handler:
            return plain(405, profiling.DISABLED)
        return await profiling.PROFILING.answer(request, "/".join(rest))
    if top == "flags":
        if not view.config.enable_debug_flags_handler:
            return plain(405, FLAGS_DISABLED)
        return debug_flags(request, rest)
    raise Unknown(NO_PAGE)


def _named(names: list[str]) -> tuple[str, str, str, str]:
    """Return namespace, pod, uid ("" if absent) and container of a path. Raises Unknown for another number of
    parts.
    """
    match names:
        case [namespace, pod, container]:
            return namespace, pod, "", container
        case [namespace, pod, uid, container]:
            return namespace, pod, uid, container
    raise Unknown(NO_PAGE)


def _streams(request: Request) -> ContainerStreams:
    """Return the requested streams. Raises InvalidInput if there is none."""
    stdin, stdout, stderr, tty = (
        request.query.get(name) == "1" for name in ("input", "output", "error", "tty")
    )
    # A terminal has one output for both.
    stderr = stderr and not tty
    if not (stdin or stdout or stderr):
        raise InvalidInput("you must specify at least 1 of stdin, stdout, stderr")
    return ContainerStreams(stdin, stdout, stderr, tty)


def _ports(request: Request) -> list[int]:
    """Return the ports. A WebSocket names them in the query, SPDY in each stream. Raises InvalidInput."""
    if request.header("upgrade").lower() != "websocket":
        return []
    named = request.values("port")
    if not named:
        raise InvalidInput('query parameter "port" is required')
    ports = []
    for text in named:
        for port in text.split(","):
            if not (port.isascii() and port.isdigit() and len(port) < 20 and 0 < int(port) < 65536):
                raise InvalidInput(f'unable to parse "{text}" as a port')
            ports.append(int(port))
    return ports


_SHARED_PATHS: Final = ("healthz", "pods", "runningpods", "configz", "metrics", "stats")
_SERVED: dict[str, _Serve] = {
    "containerLogs": _container_logs,
    "exec": _exec,
    "attach": _attach,
    "portForward": _port_forward,
    "run": _run,
    "checkpoint": _checkpoint,
    "logs": _logs,
    "debug": _debug,
    "flagz": _flagz,
    "statusz": _statusz,
}


def debug_flags(request: Request, names: list[str]) -> Response:
    """Set the verbosity to the number in the body of a PUT."""
    if names != ["v"]:
        return plain(404, "404: Page Not Found")
    if request.method != "PUT":
        return plain(406, "unsupported http method")
    text = request.body.decode(errors="replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MOST_VERBOSE):
        return plain(
            400, f"error: failed to set {_NAME} {text[:20]}: expected a number from 0 to {MOST_VERBOSE}"
        )
    logging.getLogger("kubengine").setLevel(logging.DEBUG if int(text) >= DEBUG_VERBOSITY else logging.INFO)
    return plain(200, f"successfully set {_NAME} to {text}")


def flagz(view: PortNode) -> Response:
    """Return every setting that differs from its default, by its name in the configuration file."""
    lines = [f"{name}={masked(name, value)}\n" for name, value in sorted(to_builtins(view.config).items())]
    return Response(200, TEXT, (_HEAD.format(page="flagz") + "".join(lines)).encode())


def statusz(view: PortNode, paths: Sequence[str]) -> Response:
    """Return start time, version and paths of the agent."""
    started = process_started()
    up = int(time.time() - started)
    fields = {
        "Started": time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started)),
        "Up": f"{up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec",
        "Python version": platform.python_version(),
        "Binary version": engine_version(),
        "Paths": " ".join(paths),
    }
    lines = [f"{name}: {value}\n" for name, value in fields.items()]
    failing = [f"{check}: {error}\n" for check, error in view.healthz() if error]
    return Response(200, TEXT, "".join([_HEAD.format(page="statusz"), *lines, *failing]).encode())
