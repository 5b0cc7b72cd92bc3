"""Measure pods that come from a real API server, reached with an administrator's kubeconfig.

The same observer creates them for every agent, watches their state at the API server, and deletes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.errors import Unavailable
from engine.bench import workload
from engine.bench.agents import NODE_NAME
from engine.bench.decisions import Lacking
from engine.bench.followed_pods import FollowedPods, SeenObject, followed
from engine.bench.parts import http_get
from engine.bench.phases import BenchSession, BenchWatch, Figures, percentiles
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig

NODE: Final = f"/api/v1/nodes/{NODE_NAME}"
AT_ONCE: Final = 50
"""Number of the observer's concurrent requests."""
SETTLING_SECONDS: Final = 10.0


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
        async with _namespace(client) as pods, followed(client, pods, lambda pod: pod.name) as seen:
            return {**figures, **await _life_of_pods(session, client, pods, seen)}
    finally:
        with suppress(ApiError, Unavailable):
            await client.delete(NODE, {})
        client.close()


async def _life_of_pods(session: BenchSession, client: ApiClient, path: str, seen: FollowedPods) -> Figures:
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
        "api",
    )
    starting = {**watch.figures(), "requests": _requests(session) - requests}
    await asyncio.sleep(SETTLING_SECONDS)

    watch, requests = BenchWatch.begin(session), _requests(session)
    await asyncio.sleep(session.seconds)
    resting = {**watch.figures(), "requests": _requests(session) - requests}

    watch, requests = BenchWatch.begin(session), _requests(session)
    await _together(map(delete, created))
    await seen.until(
        lambda: not seen.present,
        session.limit,
        lambda: f"{len(seen.present)} of {count} pods were not removed",
        "api",
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
            if (await client.get(NODE, SeenObject)).status.ready:
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


async def _together(requests: Iterable[Any]) -> None:
    """Run these concurrently, with a limit."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(request: Any) -> None:
        async with slots:
            await request

    await asyncio.gather(*map(one, requests))


def _requests(session: BenchSession) -> float:
    """Return the agent's own count of its requests to the API server."""
    _, page = http_get(session.workspace.ports["read_only"], "/metrics")
    lines = (line for line in page.splitlines() if line.startswith(b"rest_client_requests_total{"))
    return sum(float(line.split()[-1]) for line in lines)
