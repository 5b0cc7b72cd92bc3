"""Measure pods that come from a real API server, reached with an administrator's kubeconfig.

The same observer creates them for every agent, watches their state at the API server, and deletes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.errors import Unavailable
from engine.api.meta import ObjectMeta
from engine.bench import workload
from engine.bench.agents import NODE_NAME
from engine.bench.decisions import Lacking
from engine.bench.parts import http_get
from engine.bench.phases import BenchSession, BenchWatch, Figures, percentiles
from engine.cluster import watching
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig

NODE: Final = f"/api/v1/nodes/{NODE_NAME}"
AT_ONCE: Final = 50
"""Number of the observer's concurrent requests."""
SETTLING_SECONDS: Final = 10.0


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None

    @property
    def ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions or ())


class _Seen(msgspec.Struct):
    """Decode the observed fields of a node or a pod."""

    metadata: ObjectMeta
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(slots=True)
class _Pods:
    """Track the API server's reports: when each pod was first Ready (monotonic), and which pods exist."""

    ready: dict[str, float] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def replaced(self, pods: Iterable[_Seen]) -> None:
        self.there.clear()
        for pod in pods:
            self.changed(pod)

    def changed(self, pod: _Seen) -> None:
        self.there.add(pod.metadata.name)
        if pod.status.ready:
            self.ready.setdefault(pod.metadata.name, time.monotonic())
        self.news.set()

    def deleted(self, pod: _Seen) -> None:
        self.there.discard(pod.metadata.name)
        self.news.set()

    async def until(self, condition: Callable[[], bool], limit: float, otherwise: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(limit):
                while not condition():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise Unavailable(otherwise(), subject="api") from None


def joined(session: BenchSession) -> Figures:
    """Measure a cluster's node until it is Ready; pods from creation to Ready, at rest, and until they are
    gone.
    """
    if session.kubeconfig is None:
        raise Lacking("needs --kubeconfig: an administrator's kubeconfig for an API server", subject="api")
    session.clear()
    session.running.stop()
    return asyncio.run(_measured(session, session.kubeconfig))


async def _measured(session: BenchSession, kubeconfig: Path) -> Figures:
    config = load_kubeconfig(kubeconfig)
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="kubengine-bench")
    try:
        agent = session.start_agent(kubeconfig=kubeconfig)
        await _node_ready(client, session)
        figures = {"node_ready_s": time.monotonic() - agent.began}
        async with _namespace(client) as pods, _followed(client, pods) as seen:
            return {**figures, **await _life_of_pods(session, client, pods, seen)}
    finally:
        with suppress(ApiError, Unavailable):
            await client.delete(NODE, {})
        client.close()


async def _life_of_pods(session: BenchSession, client: ApiClient, path: str, seen: _Pods) -> Figures:
    count = session.pods
    created: dict[str, float] = {}

    async def create(pod: dict[str, Any]) -> None:
        # Before the call: a fast node reports a pod as Ready before the call has returned.
        created[pod["metadata"]["name"]] = time.monotonic()
        await client.create(path, pod, msgspec.Raw)

    async def delete(name: str) -> None:
        await client.delete(f"{path}/{name}", {})

    watch, requests = BenchWatch.begin(session), _requests(session)
    await _together(create(_bound(f"a{index}", path)) for index in range(count))
    await seen.until(
        lambda: len(seen.ready) == count,
        session.limit,
        lambda: f"{len(seen.ready)} of {count} pods are Ready",
    )
    starting = {**watch.figures(), "requests": _requests(session) - requests}
    await asyncio.sleep(SETTLING_SECONDS)

    watch, requests = BenchWatch.begin(session), _requests(session)
    await asyncio.sleep(session.seconds)
    resting = {**watch.figures(), "requests": _requests(session) - requests}

    watch, requests = BenchWatch.begin(session), _requests(session)
    await _together(map(delete, created))
    await seen.until(
        lambda: not seen.there, session.limit, lambda: f"{len(seen.there)} of {count} pods were not removed"
    )
    ending = {**watch.figures(), "requests": _requests(session) - requests}

    return {
        "wall_s": starting["wall_s"],
        **percentiles("ready", [seen.ready[name] - at for name, at in created.items()]),
        "pods_per_s": count / starting["wall_s"],
        "cpu_ms_per_pod": starting["cpu_s"] / count * 1e3,
        "requests_per_pod": starting["requests"] / count,
        "rss_mb": resting["rss_mb"],
        "idle_cpu_ms_per_pod_per_s": resting["cpu_s"] / resting["wall_s"] / count * 1e3,
        "idle_requests_per_min": resting["requests"] / resting["wall_s"] * 60,
        "deleted_s": ending["wall_s"],
        "deletion_cpu_ms_per_pod": ending["cpu_s"] / count * 1e3,
        "deletion_requests_per_pod": ending["requests"] / count,
    }


def _bound(name: str, path: str) -> dict[str, Any]:
    """Return a pod bound to the agent's node that tolerates all taints."""
    pod = workload.pod(name)
    pod["metadata"]["namespace"] = path.split("/")[-2]
    pod["spec"] |= {
        "nodeName": NODE_NAME,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    return pod


async def _node_ready(client: ApiClient, session: BenchSession) -> None:
    deadline = time.monotonic() + session.limit
    while True:
        with suppress(ApiError, Unavailable):
            if (await client.get(NODE, _Seen)).status.ready:
                return
        session.running.part.check()
        if time.monotonic() > deadline:
            raise Lacking(f"its Node is not Ready after {session.limit:g} s", subject=session.kind.label)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _namespace(client: ApiClient) -> AsyncIterator[str]:
    """Create a namespace for the duration of the block; return the path of its pods."""
    name = f"{workload.NAMESPACE}-{time.time_ns():x}"
    await client.create("/api/v1/namespaces", {"metadata": {"name": name}}, msgspec.Raw)
    path = f"/api/v1/namespaces/{name}"
    try:
        with suppress(ApiError):
            await client.create(f"{path}/serviceaccounts", {"metadata": {"name": "default"}}, msgspec.Raw)
        yield f"{path}/pods"
    finally:
        with suppress(ApiError, Unavailable):
            await client.delete(path, {})


@asynccontextmanager
async def _followed(client: ApiClient, path: str) -> AsyncIterator[_Pods]:
    seen = _Pods()
    heard = watching.WatchHandler(seen.replaced, seen.changed, seen.deleted)
    watch = watching.ResourceWatch(client, watching.WatchedResource(path, _Seen), heard)
    following = asyncio.create_task(watch.run())
    try:
        await watch.synced.wait()
        yield seen
    finally:
        following.cancel()


async def _together(requests: Iterable[Any]) -> None:
    """Run these concurrently, with a limit."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(request: Any) -> None:
        async with room:
            await request

    await asyncio.gather(*map(one, requests))


def _requests(session: BenchSession) -> float:
    """Return the agent's own count of its requests to the API server."""
    _, page = http_get(session.workspace.ports["read_only"], "/metrics")
    lines = (line for line in page.splitlines() if line.startswith(b"rest_client_requests_total{"))
    return sum(float(line.split()[-1]) for line in lines)
