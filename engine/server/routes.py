"""From a request to its answer; no sockets here."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from engine.api.errors import Bug, InvalidInput, KubengineError, Refused, Unavailable
from engine.api.pod import Pod
from engine.api.query import expect_known
from engine.api.struct import to_builtins, to_json
from engine.server import metrics_text
from engine.server.exchange import JSON, JSON_LINES, TEXT, Request, Response, failure
from engine.server.view import ServedNode

logger = logging.getLogger(__name__)

PROBES, HEALTH_METRICS = "prober_", "kubernetes_healthcheck"
"""What names of metrics with a page of their own begin with."""
HEALTHZ = "healthz"

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (InvalidInput, 400),
    (Unavailable, 503),
    (Bug, 500),
    (Refused, 409),
    (KubengineError, 500),
)


async def _health_only(view: ServedNode, request: Request) -> Response:
    if request.asks_health:
        return await _health(view, request)
    return failure(404, f"no such page: {request.path}")


async def _health(view: ServedNode, request: Request) -> Response:
    """`ok`, or 500 and the checks that fail; each check with `?verbose`."""
    if request.method not in {"GET", "HEAD"}:
        return failure(405, f"{request.method} is not allowed here")
    name = request.path.removeprefix("/healthz").strip("/")
    checks = _looked_at(view)
    if name:
        checks = [check for check in checks if check[0] == name]
        if not checks:
            return failure(404, f"no health check named {name}")
    failed = any(error for _, error in checks)
    if not failed and "verbose" not in request.query:
        return Response(200, TEXT, b"ok")
    lines = [f"[-]{check} failed: {error}\n" if error else f"[+]{check} ok\n" for check, error in checks]
    lines.append(f"healthz check {'failed' if failed else 'passed'}\n")
    return Response(500 if failed else 200, TEXT, "".join(lines).encode())


def _looked_at(view: ServedNode) -> Sequence[tuple[str, str | None]]:
    """The checks; whoever looks counts for `/metrics/slis`, as in the kubelet."""
    checks = view.healthz()
    current = view.registry.gauge(
        HEALTH_METRICS, "1 if the check was passed when it was last made, else 0.", ["name", "type"]
    )
    total = view.registry.counter(
        f"{HEALTH_METRICS}s_total", "Checks made, by their outcome.", ["name", "type", "status"]
    )
    for name, error in checks:
        current.set(int(error is None), name, HEALTHZ)
        total.inc(name, HEALTHZ, "error" if error else "success")
    return checks


async def answer(view: ServedNode, request: Request) -> Response:
    """The answer to any request. Never raises."""
    return await _guarded(_route, view, request)


async def answer_health(view: ServedNode, request: Request) -> Response:
    """Like `answer`, where there is `/healthz` and nothing else."""
    return await _guarded(_health_only, view, request)


_Route = Callable[[ServedNode, Request], Awaitable[Response]]


async def _guarded(route: _Route, view: ServedNode, request: Request) -> Response:
    try:
        return await route(view, request)
    except KubengineError as error:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        return failure(status, str(error))
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        return failure(500, f"{type(error).__name__}: {error}")


async def _route(view: ServedNode, request: Request) -> Response:
    path = request.path.rstrip("/") or "/"
    if path.startswith("/kubengine/") or path == "/kubengine":
        return await _room(view, request, path.removeprefix("/kubengine").strip("/").split("/"))
    if request.asks_health:
        return await _health(view, request)
    if request.method not in {"GET", "HEAD"}:
        return failure(405, f"{request.method} is not allowed here")
    match path:
        case "/":
            from engine.server.page.document import page

            return page()
        case "/live":
            from engine.server.page.live import live

            return live(view)
        case "/pods":
            return Response(200, JSON, pod_list(view.pods()))
        case "/runningpods":
            return Response(200, JSON, pod_list(await view.running_pods()))
        case "/configz":
            return Response(200, JSON, to_json(_configz(view)))
        case "/metrics":
            return _metrics(view, without=(PROBES, HEALTH_METRICS), more=await _of_the_moment(view))
        case "/metrics/probes":
            return _metrics(view, prefix=PROBES)
        case "/metrics/slis":
            _looked_at(view)
            return _metrics(view, prefix=HEALTH_METRICS)
        case "/metrics/resource":
            return Response(200, metrics_text.CONTENT_TYPE, await _resources(view))
        case "/metrics/cadvisor":
            from engine.server.cadvisor_metrics import cadvisor_metrics

            return Response(200, metrics_text.CONTENT_TYPE, cadvisor_metrics(await view.usage()))
        case "/stats/summary":
            summary = await view.stats_summary()
            if request.query.get("only_cpu_and_memory") == "true":
                return Response(200, JSON, to_json(only_cpu_and_memory(_read(summary))))
            return Response(200, JSON, summary)
    return failure(404, f"no such page: {request.path}")


async def _resources(view: ServedNode) -> bytes | Iterator[bytes]:
    """Says itself that nothing could be read, as a kubelet's page does."""
    from engine.server.resource_metrics import resource_metrics, scrape_error

    try:
        usage = await view.usage()
        return resource_metrics(usage, await view.runtime_use(usage))
    except KubengineError as error:
        logger.error("no resource metrics: %s", error)
        return scrape_error(1)


def _read(summary: Iterable[bytes]) -> dict[str, Any]:
    return msgspec.json.decode(b"".join(summary), type=dict[str, Any])


_CPU_AND_MEMORY = frozenset(
    (
        "node",
        "pods",
        "nodeName",
        "systemContainers",
        "name",
        "podRef",
        "startTime",
        "containers",
        "cpu",
        "memory",
    )
)


def only_cpu_and_memory(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what takes long to find out."""

    def kept(entry: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in entry.items() if name in _CPU_AND_MEMORY}

    node, pods = kept(summary.get("node") or {}), [kept(pod) for pod in summary.get("pods") or []]
    for owner, name in [(node, "systemContainers"), *((pod, "containers") for pod in pods)]:
        if name in owner:
            owner[name] = [kept(each) for each in owner[name]]
    return {"node": node, "pods": pods}


def pod_list(pods: Iterable[Pod]) -> Iterator[bytes]:
    """A v1 PodList, a piece per pod, so that thousands are never one string."""
    yield b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
    separator = b""
    for pod in pods:
        yield separator + to_json(pod)
        separator = b","
    yield b"]}\n"


def _metrics(
    view: ServedNode, *, prefix: str = "", without: tuple[str, ...] = (), more: Iterable[str] = ()
) -> Response:
    text = "".join((*metrics_text.exposition(view.registry, prefix=prefix, without=without), *more))
    return Response(200, metrics_text.CONTENT_TYPE, text.encode())


async def _of_the_moment(view: ServedNode) -> list[str]:
    """What nobody keeps between two scrapes."""
    from engine.server.volume_metrics import volume_metrics

    return [*volume_metrics(await view.claims_usage()), *metrics_text.process_metrics()]


def _configz(view: ServedNode) -> dict[str, Any]:
    return {"kubeletconfig": _all_fields(view.config), "kubengineconfig": _all_fields(view.kubengine_config)}


def _all_fields(value: Any) -> Any:
    """Like `to_builtins`, with defaults; fields without a value are left out, as the kubelet does."""
    if not isinstance(value, msgspec.Struct):
        return to_builtins(value)
    fields = ((each.encode_name, getattr(value, each.name)) for each in msgspec.structs.fields(value))
    return {name: _all_fields(item) for name, item in fields if item is not None}


async def _room(view: ServedNode, request: Request, path: list[str]) -> Response:
    rooms = view.rooms
    if path == [""]:
        return Response(
            200, JSON, to_json({"rooms": sorted(n for n, r in rooms.items() if hasattr(r, "describe"))})
        )
    room = rooms.get(path[0])
    if room is None:
        return failure(404, f"this agent has no room named {path[0]}; it has {', '.join(sorted(rooms))}")
    match request.method, path[1:]:
        case "GET" | "HEAD", []:
            return await _describe(path[0], room, request)
        case "POST", [action]:
            return await _act(path[0], room, action, request)
        case "GET" | "HEAD", _:
            return failure(404, f"no such page: {request.path}")
    return failure(405, f"{request.method} is not allowed here")


async def _describe(name: str, room: object, request: Request) -> Response:
    describe = getattr(room, "describe", None)
    if describe is None:
        return failure(404, f"{name} has nothing to show")
    expect_known(request.query, inspect.signature(describe).parameters, name)
    result = describe(**request.query)
    if isinstance(result, AsyncGenerator):
        return Response(200, JSON_LINES, result)
    if inspect.isawaitable(result):
        result = await result
    return Response(200, JSON, to_json(result))


async def _act(name: str, room: object, action: str, request: Request) -> Response:
    if not request.trusted:
        return failure(403, "only the agent's unix socket takes orders")
    act = getattr(room, "act", None)
    if act is None:
        return failure(404, f"{name} cannot be told to do anything")
    return Response(200, JSON, to_json(await act(action, dict(request.query))))
