"""What claims cost an agent, beside a kubelet: `dra_agents.py --kubeconfig ADMIN [--kubelet PATH]`.

The API server of the administrator's kubeconfig should have no scheduler. On a hollow runtime each agent runs
PODS pods without claims and with DRIVERS claims each, one of every driver; the difference of its processor
time, divided by all claims, is what a claim costs: read, checked, prepared and, when its pod is deleted,
unprepared. Rounds with and without claims alternate; medians are printed. Needs root for a kubelet.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from engine.bench.agents import NODE_NAME, AgentKind, BenchAgent, ready
from engine.bench.parts import HollowRuntimeProcess
from engine.bench.procfs import usage
from engine.bench.workspace import Workspace
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig

PODS: Final = 10
DRIVERS: Final = 10
WITHIN: Final = 120.0
PATH: Final = "/api/v1/namespaces/default"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
Object = dict[str, Any]


class Measured:
    """Measure one agent with its drivers, through a client of its API server."""

    def __init__(self, agent: BenchAgent, client: ApiClient) -> None:
        self._agent, self._client = agent, client

    async def round(self, number: int, claims: int) -> tuple[float, float]:
        """Run PODS pods with so many claims each; return the CPU seconds to start and to delete them."""
        names = [f"r{number}-c{claims}-{pod}" for pod in range(PODS)]
        for name in names:
            await self._pod(name, claims)
        began = usage(self._agent.part.pid).cpu
        for name in names:
            binding = {"metadata": {"name": name}, "target": {"name": NODE_NAME}}
            await self._client.create(f"{PATH}/pods/{name}/binding", binding, Object)
        await self._until(lambda pods: sum(map(ready, pods)) == PODS)
        started = usage(self._agent.part.pid).cpu
        for name in names:
            await self._client.delete(f"{PATH}/pods/{name}", {})
        await self._until(lambda pods: not pods)
        ended = usage(self._agent.part.pid).cpu
        for name in names:
            for driver in range(claims):
                await self._client.delete(f"{CLAIMS}/{name}-{driver}", {})
        return started - began, ended - started

    async def _pod(self, name: str, claims: int) -> None:
        """Create a pod that is not bound yet, and its claims, allocated and reserved for it."""
        own = [f"{name}-{driver}" for driver in range(claims)]
        container = {
            "name": "c",
            "image": "busybox:1",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"claims": [{"name": claim} for claim in own]},
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in own],
            "tolerations": [{"operator": "Exists"}],
        }
        pod = await self._client.create(f"{PATH}/pods", {"metadata": {"name": name}, "spec": spec}, Object)
        for driver, claim in enumerate(own):
            exactly = {"deviceClassName": "any"}
            wanted = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
            made = await self._client.create(CLAIMS, {"metadata": {"name": claim}, "spec": wanted}, Object)
            result = {"request": "r", "driver": f"d{driver}", "pool": "pool", "device": f"dev-{claim}"}
            user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
            await self._client.patch(f"{CLAIMS}/{claim}/status", {"status": made["status"]}, Object)

    async def _until(self, holds: Any) -> None:
        """Ask the API server every half second: that costs the agent nothing."""
        deadline = time.monotonic() + WITHIN
        while not holds((await self._client.get(f"{PATH}/pods", Object))["items"]):
            self._agent.part.check()
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{self._agent.kind.label}: not within {WITHIN:g} s: {self._agent.part.last_words()}"
                )
            await asyncio.sleep(0.5)


@contextmanager
def drivers(registry: Path) -> Iterator[None]:
    script = str(Path(__file__).with_name("dra_drivers.py"))
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        command = [sys.executable, script, directory, str(registry), str(DRIVERS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield


async def measure(kind: AgentKind, kubeconfig: Path, rounds: int) -> None:
    access = load_kubeconfig(kubeconfig)
    client = ApiClient(access, Credentials(access, clock=time.time), user_agent="bench")
    workspace = Workspace()
    workspace.make_cgroups()
    runtime = HollowRuntimeProcess(workspace.runtime_socket, workspace.path)
    settings = {"registerWithTaints": []}
    agent = BenchAgent(
        kind, workspace, f"unix://{workspace.runtime_socket}", max_pods=110, settings=settings,
        kubeconfig=kubeconfig,
    )  # fmt: skip
    try:
        with drivers(workspace.root / "plugins_registry"):
            measured = Measured(agent, client)
            await measured.round(0, DRIVERS)  # drivers register, code is loaded
            costs = []
            for number in range(1, rounds + 1):
                without, given = await measured.round(number, 0), await measured.round(number, DRIVERS)
                costs.append([(b - a) / (PODS * DRIVERS) * 1e3 for a, b in zip(without, given, strict=True)])
            parts = {
                "prepare": [start for start, _ in costs],
                "unprepare": [end for _, end in costs],
                "both": [sum(cost) for cost in costs],
            }
            for what, values in parts.items():
                print(
                    f"{kind.label}: {what} {statistics.median(values):.2f} ms of CPU a claim"
                    f" (least {min(values):.2f}, most {max(values):.2f}, {rounds} rounds)",
                    flush=True,
                )
    finally:
        agent.stop()
        runtime.stop()
        try:
            await client.delete(f"/api/v1/nodes/{NODE_NAME}", {})
        except ApiError as error:
            print(f"the Node stays: {error}", file=sys.stderr)
        client.close()
        workspace.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="an administrator's")
    parser.add_argument("--kubelet", type=Path, help="also measure this kubelet")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    kinds = [AgentKind("kubengine")]
    if given.kubelet is not None:
        kinds.append(AgentKind("kubelet", given.kubelet))
    for kind in kinds:
        asyncio.run(measure(kind, given.kubeconfig, given.rounds))


if __name__ == "__main__":
    main()
