"""Routes requests to their answers, and runs and counts the health checks; no sockets here."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from engine.api.errors import Bug, InvalidInput, KubengineError, Refused, Unavailable
from engine.api.pod import Pod
from engine.api.query import expect_known
from engine.api.struct import to_builtins, to_json
from engine.server import metrics_text
from engine.server.debugging import without_debugging
from engine.server.http.exchange import JSON, JSON_LINES, Request, Response, failure
from engine.server.http.secrets import masked
from engine.server.interfaces.node import ServedNode

if TYPE_CHECKING:
    from engine.server.cadvisor_metrics import CadvisorPage
    from engine.server.page.watch import PageWatch
from collections.abc import Sequence
from typing import Final

from engine.server.http.exchange import TEXT

logger = logging.getLogger(__name__)

PROBES = "prober_"
"""What the names of metrics of probes begin with, which have a page of their own."""

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (InvalidInput, 400),
    (Unavailable, 503),
    (Bug, 500),
    (Refused, 409),
    (KubengineError, 500),
)
HEALTH_METRICS: Final = "kubernetes_healthcheck"
"""The prefix of the metric names."""
_HEALTHZ: Final = "healthz"


class Routes:
    """Answer the requests of all listeners of a node; keeps state that several answers share."""

    def __init__(self, view: ServedNode) -> None:
        self._view = view
        self._health = ServerHealth(view)

    async def answer(self, request: Request) -> Response:
        """Answer any request. Never raises."""
        try:
            return await self._route(request)
        except KubengineError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return failure(status, str(error))
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            return failure(500, f"{type(error).__name__}: {error}")

    async def answer_read_only(self, request: Request) -> Response:
        """Like `answer`, without what a kubelet serves only to authenticated clients."""
        return without_debugging(request) or await self.answer(request)

    async def answer_health(self, request: Request) -> Response:
        """Like `answer`, where there is `/healthz` and nothing else."""
        if request.asks_health:
            return await self.answer(request)
        return failure(404, f"no such page: {request.path}")

    async def _route(self, request: Request) -> Response:
        path, view = request.path.rstrip("/") or "/", self._view
        if path.startswith("/kubengine/") or path == "/kubengine":
            return await _component(view, request, path.removeprefix("/kubengine").strip("/").split("/"))
        if request.asks_health:
            return self._health.answer(request)
        if request.method not in {"GET", "HEAD"}:
            return failure(405, f"{request.method} is not allowed here")
        match path:
            case "/":
                from engine.server.page.document import page

                return page()
            case "/live":
                from engine.server.page.live import live

                return live(self._page_watch)
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
                self._health.run()
                return _metrics(view, prefix=HEALTH_METRICS)
            case "/metrics/resource":
                return Response(200, metrics_text.CONTENT_TYPE, await _resources(view))
            case "/metrics/cadvisor":
                usage = await view.usage(descriptors=True)
                return Response(200, metrics_text.CONTENT_TYPE, self._cadvisor.text(usage))
            case "/stats/summary":
                if request.values("only_cpu_and_memory") == ["true"]:
                    return Response(200, JSON, await view.cpu_and_memory_summary())
                return Response(200, JSON, await view.stats_summary())
        return failure(404, f"no such page: {request.path}")

    @cached_property
    def _page_watch(self) -> PageWatch:
        """Return the node's only page watch, which reads once for all readers of the page."""
        from engine.server.page.watch import PageWatch

        return PageWatch(self._view)

    @cached_property
    def _cadvisor(self) -> CadvisorPage:
        """Load the writer of cAdvisor's page on the first request."""
        from engine.server.cadvisor_metrics import CadvisorPage

        return CadvisorPage()


async def _resources(view: ServedNode) -> bytes | Iterator[bytes]:
    """Write the resource metrics, with an error metric if nothing could be read, as a kubelet does."""
    from engine.server.resource_metrics import resource_metrics, scrape_error

    try:
        usage = await view.usage()
        return resource_metrics(usage, await view.runtime_use(usage))
    except KubengineError as error:
        logger.error("cannot read the resource metrics: %s", error)
        return scrape_error(1)


def pod_list(pods: Iterable[Pod]) -> Iterator[bytes]:
    """Yield a v1 PodList, a piece per pod, so that thousands of pods are never one string."""
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
    """Return the metrics that are computed for each scrape."""
    from engine.server.volume_metrics import volume_metrics

    return [*volume_metrics(await view.claims_usage()), *metrics_text.process_metrics()]


def _configz(view: ServedNode) -> dict[str, Any]:
    return {"kubeletconfig": _all_fields(view.config), "kubengineconfig": _all_fields(view.kubengine_config)}


def _all_fields(value: Any) -> Any:
    """Like `to_builtins`, with defaults; fields without a value are left out, as the kubelet does."""
    if not isinstance(value, msgspec.Struct):
        return to_builtins(value)
    fields = ((each.encode_name, getattr(value, each.name)) for each in msgspec.structs.fields(value))
    return {name: masked(name, _all_fields(item)) for name, item in fields if item is not None}


async def _component(view: ServedNode, request: Request, path: list[str]) -> Response:
    components = view.components
    if path == [""]:
        return Response(
            200,
            JSON,
            to_json({"components": sorted(n for n, r in components.items() if hasattr(r, "describe"))}),
        )
    component = components.get(path[0])
    if component is None:
        return failure(404, f"this agent has no component {path[0]}; it has {', '.join(sorted(components))}")
    match request.method, path[1:]:
        case "GET" | "HEAD", []:
            return await _describe(path[0], component, request)
        case "POST", [action]:
            return await _act(path[0], component, action, request)
        case "GET" | "HEAD", _:
            return failure(404, f"no such page: {request.path}")
    return failure(405, f"{request.method} is not allowed here")


async def _describe(name: str, component: object, request: Request) -> Response:
    describe = getattr(component, "describe", None)
    if describe is None:
        return failure(404, f"{name} has no page to show")
    expect_known(request.query, inspect.signature(describe).parameters, name)
    result = describe(**request.query)
    if isinstance(result, AsyncGenerator):
        return Response(200, JSON_LINES, result)
    if inspect.isawaitable(result):
        result = await result
    return Response(200, JSON, to_json(result))


async def _act(name: str, component: object, action: str, request: Request) -> Response:
    if not request.trusted:
        return failure(403, "commands are accepted only on the agent's unix socket")
    act = getattr(component, "act", None)
    if act is None:
        return failure(404, f"{name} accepts no commands")
    return Response(200, JSON, to_json(await act(action, dict(request.query))))


class ServerHealth:
    """Run the health checks of one node; every run counts for `/metrics/slis`, as in the kubelet."""

    def __init__(self, view: ServedNode) -> None:
        self._view = view
        self._current = view.registry.gauge(
            HEALTH_METRICS, "1 if the last run of the check passed, else 0.", ["name", "type"]
        )
        self._total = view.registry.counter(
            f"{HEALTH_METRICS}s_total", "Health checks run, by outcome.", ["name", "type", "status"]
        )

    def run(self) -> Sequence[tuple[str, str | None]]:
        """Run the checks; return the problem of each, or None."""
        checks = self._view.healthz()
        for name, error in checks:
            self._current.set(int(error is None), name, _HEALTHZ)
            self._total.inc(name, _HEALTHZ, "error" if error else "success")
        return checks

    def answer(self, request: Request) -> Response:
        """Answer `ok`, or 500 with the failing checks; `?verbose` lists every check."""
        if request.method not in {"GET", "HEAD"}:
            return failure(405, f"{request.method} is not allowed here")
        name = request.path.removeprefix("/healthz").strip("/")
        checks = self.run()
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
