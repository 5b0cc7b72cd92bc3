"""Run a member of a cluster as a process of its own, on a hollow runtime, for tests that disturb it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.host.mounts import unmount_below
from engine.runtime.hollow import HollowRuntime
from engine.runtime.objects.backend import ExecResult
from engine.testing.apiserver import ApiServer
from tests.cluster.agent_process import AgentProcess
from tests.cluster_rig import Cluster, Object, cluster, condition
from tests.waiting import eventually

__all__ = ["cluster"]

NODE = "/api/v1/nodes/n1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
SECOND = "1s"
FAST = {
    "nodeLeaseDurationSeconds": 4,
    "nodeStatusUpdateFrequency": SECOND,
    "nodeStatusReportFrequency": "2s",
    "crashLoopBackOff": {"maxContainerRestartPeriod": SECOND},
}


class Member:
    """Hold the agent of the node n1, and read what it reported to the cluster."""

    def __init__(self, cluster: Cluster, runtime: HollowRuntime, agent: AgentProcess) -> None:
        self.cluster, self.runtime, self.agent = cluster, runtime, agent
        self.probed = 0
        ask = runtime.backend.commands.exec_sync

        async def exec_sync(*arguments: Any) -> ExecResult:
            self.probed += 1
            return await ask(*arguments)

        runtime.backend.commands.exec_sync = exec_sync  # type: ignore[method-assign]

    @property
    def server(self) -> ApiServer:
        return self.cluster.server

    @property
    def renewals(self) -> int:
        return sum(seen.method == "PUT" and seen.path == LEASE for seen in self.server.requests)

    @property
    def reports(self) -> int:
        """Return the number of status patches for the node."""
        return len(self._statuses())

    def unready(self) -> list[Object]:
        """Return the Ready conditions other than True that were reported after the first True one."""
        found = [condition(status, "Ready") for status in self._statuses() if "status" in status]
        reported = [each for each in found if each]
        first = next((at for at, each in enumerate(reported) if each.get("status") == "True"), len(reported))
        return [each for each in reported[first:] if each.get("status", "True") != "True"]

    def _statuses(self) -> list[Object]:
        path = f"{NODE}/status"
        return [s.value for s in self.server.requests if s.method == "PATCH" and s.path == path]

    def node(self) -> Object:
        found: Object = self.server.get(NODE)
        return found

    @property
    def rss(self) -> int:
        """Return the agent's resident memory in KiB."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.agent.pid}/status").read_text())
        assert found is not None, self.agent.log()[-4000:]
        return int(found[1])

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.agent.pid}/fd").iterdir()))

    async def wait_for_renewals(self, times: int = 3) -> None:
        """Wait until the lease was renewed `times` times from now on. Fails if the agent ends."""
        wanted = self.renewals + times
        try:
            await eventually(lambda: self.renewals >= wanted or self.agent.status is not None)
        except AssertionError as late:
            raise AssertionError(f"{late}; the agent's log ends with {self.agent.log()[-4000:]}") from None
        assert self.agent.status is None, self.agent.log()[-4000:]

    async def container(self, pod: str) -> Object:
        found = await self.cluster.pod(pod)
        assert found is not None
        status: Object = found["status"]["containerStatuses"][0]
        return status


MakeMember = Callable[..., AbstractAsyncContextManager[Member]]


@pytest.fixture
def member(cluster: Cluster) -> MakeMember:
    """Return a context manager that runs an agent of the cluster; it takes the options of `AgentProcess`."""

    @asynccontextmanager
    async def run(
        directory: Path | None = None,
        *,
        within: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        flags: dict[str, object] | None = None,
        **config: Any,
    ) -> AsyncIterator[Member]:
        with tempfile.TemporaryDirectory(prefix="kx-") as short:
            place = directory or Path(short)
            given: dict[str, object] = {
                "kubeconfig": cluster.server.kubeconfig("system:node:n1"), "hostname-override": "n1",
            }  # fmt: skip
            async with HollowRuntime(Path(short) / "cri.sock") as runtime:
                agent = AgentProcess(
                    place, runtime.socket, given | (flags or {}), within=within,
                    environment=environment, **FAST | config,
                )  # fmt: skip
                member = Member(cluster, runtime, agent)
                try:
                    await agent.start()
                    await eventually(lambda: agent.status is not None or member.renewals > 1, every=0.05)
                    assert agent.status is None, agent.log()[-4000:]
                    yield member
                finally:
                    await agent.kill()
                    unmount_below(place)

    return run


def repetitions(name: str, short: int) -> int:
    """Return the number of repetitions: the variable `name`, or a few in the suite."""
    return int(os.environ.get(name, short))


@asynccontextmanager
async def meanwhile(*works: Any) -> AsyncIterator[None]:
    """Run coroutines until the block ends."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
