"""Play a kube-burner workload on a cluster and measure one node's agent meanwhile.

kube-burner itself cannot read an agent's processor time without a Prometheus. The objects, their order, rate
and names are the workload file's; latencies are the ones that an observer of the API server sees.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.api.errors import Refused, Unavailable
from engine.api.meta import ObjectMeta
from engine.api.token_bucket import TokenBucket
from engine.bench.burner_jobs import BurnerJob, pods_of, read_jobs
from engine.bench.followed_pods import FollowedPods, followed
from engine.bench.procfs import ProcessUsage, usage
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig

PERCENTILES: Final = (50, 95, 99)
"""The quantiles of kube-burner's podLatency."""
SETTLING_SECONDS: Final = 10.0
_IMAGE_FIELDS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class DensityOptions:
    """Hold the options of a density bench.

    `images` replaces images by name, `agent` is the process id of the measured agent, `seconds` the length of
    the steady phase, `limit` the longest wait in seconds.
    """

    workload: Path
    kubeconfig: Path
    agent: int
    label: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 30.0
    limit: float = 900.0


@dataclass(frozen=True, slots=True)
class DensityRow:
    """Hold the figures of one job: seconds from a pod's creation to its Ready, and the agent's cost."""

    job: str
    agent: str
    pods: int
    ready_s: tuple[float, ...]
    wall_s: float
    cpu_s: float
    idle_cpu_percent: float
    rss_mb: float
    deleted_s: float | None
    """None if the pods were not gone within the limit."""
    deletion_cpu_s: float
    load: tuple[float, float]
    left_out: tuple[str, ...]


class _Resource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = True


class _Resources(msgspec.Struct):
    resources: list[_Resource]


def run_density(options: DensityOptions, say: Callable[[str], None]) -> list[DensityRow]:
    """Play the workload's jobs one after another and return a row for each.

    Raises `InvalidInput` for a workload that cannot be played, `Refused` if the agent's process is missing,
    `ApiError` and `Unavailable` if the cluster refuses or pods are not Ready in time; namespaces that it
    created are deleted in every case.
    """
    jobs = read_jobs(options.workload, options.variables)
    _usage_of(options.agent)
    return asyncio.run(_played(jobs, options, say))


def density_table(rows: Iterable[DensityRow]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| job | pods | agent | Ready p50, p95, p99 | all Ready after | CPU for it | idle CPU | RSS "
        "| gone after | CPU for it | load |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        ready = ", ".join(f"{value:.1f}" for value in row.ready_s)
        gone = "over the limit" if row.deleted_s is None else f"{row.deleted_s:.1f} s"
        lines.append(
            f"| {row.job} | {row.pods} | {row.agent} | {ready} s | {row.wall_s:.1f} s | {row.cpu_s:.2f} s "
            f"| {row.idle_cpu_percent:.2f} % of a core | {row.rss_mb:.0f} MB | {gone} "
            f"| {row.deletion_cpu_s:.2f} s | {row.load[0]:.0f} to {row.load[1]:.0f} |"
        )
    return "\n".join(lines)


async def _played(
    jobs: Sequence[BurnerJob], options: DensityOptions, say: Callable[[str], None]
) -> list[DensityRow]:
    config = load_kubeconfig(options.kubeconfig)
    rows = []
    for job in jobs:
        say(f"{job.name}: {job.iterations} iterations, {job.qps:g} objects a second")
        client = ApiClient(
            config,
            Credentials(config, clock=time.time),
            user_agent="kubengine-bench",
            rate=TokenBucket(job.qps, job.burst),
        )
        try:
            rows.append(await _Density(client, job, options, say).measured())
        finally:
            client.close()
    return rows


class _Density:
    """Play one job with one client."""

    def __init__(
        self, client: ApiClient, job: BurnerJob, options: DensityOptions, say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._job = job
        self._options = options
        self._say = say
        self._of_the_job = frozenset(job.namespaces())
        self._paths: dict[tuple[str, str], str | None] = {}
        self._left_out: dict[str, None] = {}

    async def measured(self) -> DensityRow:
        options, job = self._options, self._job
        async with self._namespaces(), followed(self._client, "/api/v1/pods", self._key) as pods:
            before, load = self._agent(), os.getloadavg()[0]
            began = time.monotonic()
            expected = await self._create_all()
            await pods.until(
                lambda: len(pods.ready) >= expected,
                options.limit,
                lambda: f"{len(pods.ready)} of {expected} pods are Ready",
                "density",
            )
            wall, cpu = time.monotonic() - began, self._agent().cpu - before.cpu
            self._say(f"  {expected} pods are Ready after {wall:.1f} s")
            await asyncio.sleep(SETTLING_SECONDS)
            before = self._agent()
            await asyncio.sleep(options.seconds)
            after = self._agent()
            idle = (after.cpu - before.cpu) / options.seconds * 100
            deleted = await self._deleted(pods, expected)
            ready = sorted(at - pods.created[uid] for uid, at in pods.ready.items())
            return DensityRow(
                job.name, options.label, expected, quantiles(ready), wall, cpu, idle,
                after.rss / 1e6, deleted, self._agent().cpu - after.cpu,
                (load, os.getloadavg()[0]), tuple(self._left_out),
            )  # fmt: skip

    async def _deleted(self, pods: FollowedPods, expected: int) -> float | None:
        """Delete the pods, and return after how many seconds they are gone.

        None if that takes too long, which must not lose what was measured of their start.
        """
        began = time.monotonic()
        await self._delete_namespaces()
        try:
            await pods.until(
                lambda: not pods.present,
                self._options.limit,
                lambda: f"{len(pods.present)} of {expected} pods are not gone",
                "density",
            )
        except Unavailable as error:
            self._say(f"  {error.message}")
            return None
        return time.monotonic() - began

    def _key(self, pod: ObjectMeta) -> str:
        """Tell pods of the same name apart by their uid; those of other namespaces are not measured."""
        return pod.uid if pod.namespace in self._of_the_job else ""

    def _agent(self) -> ProcessUsage:
        return _usage_of(self._options.agent)

    async def _create_all(self) -> int:
        """Create the objects of all iterations; return the number of pods that they stand for."""
        expected = 0
        async with asyncio.TaskGroup() as group:
            for iteration in range(self._job.iterations):
                namespace = self._job.namespace_of(iteration)
                for value in self._job.objects(iteration):
                    path = await self._path(value, namespace)
                    if path is None:
                        continue
                    self._replace_images(value)
                    expected += pods_of(value)
                    group.create_task(self._client.create(path, value, msgspec.Raw))
                await asyncio.sleep(0)
        return expected

    async def _path(self, value: Mapping[str, Any], namespace: str) -> str | None:
        """Return the collection of an object, None if the cluster does not serve its API."""
        key = (value["apiVersion"], value["kind"])
        if key not in self._paths:
            self._paths[key] = await self._collection(*key)
            if self._paths[key] is None:
                self._left_out[f"{value['kind']} ({value['apiVersion']})"] = None
                self._say(f"  left out: {value['kind']} of {value['apiVersion']}, which the cluster lacks")
        found = self._paths[key]
        return None if found is None else found.replace("{namespace}", namespace)

    async def _collection(self, version: str, kind: str) -> str | None:
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            served = (await self._client.get(root, _Resources)).resources
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        for resource in served:
            if resource.kind == kind and "/" not in resource.name:
                scope = "/namespaces/{namespace}" if resource.namespaced else ""
                return f"{root}{scope}/{resource.name}"
        return None

    def _replace_images(self, value: dict[str, Any]) -> None:
        spec = value.get("spec") or {}
        template = spec.get("template") or {}
        for pod in (spec, template.get("spec") or {}):
            for name in _IMAGE_FIELDS:
                for container in pod.get(name) or ():
                    image = container.get("image")
                    container["image"] = self._options.images.get(image, image)

    @asynccontextmanager
    async def _namespaces(self) -> AsyncIterator[None]:
        """Create the job's namespaces with their default service accounts, and delete them at the end."""
        created: list[str] = []
        try:
            for name in self._job.namespaces():
                labels = dict(self._job.namespace_labels)
                await self._client.create(
                    "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}, msgspec.Raw
                )
                created.append(name)
            for name in created:
                await self._service_account(name)
            yield
        finally:
            for name in created:
                with suppress(ApiError, Unavailable):
                    await self._client.delete(f"/api/v1/namespaces/{name}", {})

    async def _service_account(self, namespace: str) -> None:
        """Wait until pods may be created: admission refuses them without it."""
        deadline = time.monotonic() + self._options.limit
        while True:
            try:
                await self._client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", msgspec.Raw)
            except ApiError as error:
                if error.code != 404 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return

    async def _delete_namespaces(self) -> None:
        for name in self._job.namespaces():
            await self._client.delete(f"/api/v1/namespaces/{name}", {})


def quantiles(ordered: Sequence[float]) -> tuple[float, ...]:
    """Return the `PERCENTILES` of ordered values by nearest rank; nothing of none."""
    if not ordered:
        return ()
    return tuple(ordered[max(math.ceil(len(ordered) * each / 100) - 1, 0)] for each in PERCENTILES)


def _usage_of(agent: int) -> ProcessUsage:
    found = usage(agent)
    if not found.processes:
        raise Refused("no such process, or its usage may not be read", subject=f"--agent-pid {agent}")
    return found
