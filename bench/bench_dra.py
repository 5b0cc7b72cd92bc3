"""What a claim costs the agent: read, checked, prepared by its driver, kept on disk, and given back.

The API server and ten drivers are processes of their own. Processor time of the agent's process only, the
kernel's with it, for 100 pods that start together, with one claim each.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodResourceClaim, PodSpec
from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.dra.driver_client import DraDriverClient
from engine.dra.manager import ClaimManager
from engine.host.node_context import NodeContext
from engine.node.controlplane.control_plane import NoSlices
from engine.node.controlplane.pod_references import PodReferences

DRIVERS, CLAIMS = 10, 100


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[Path, Path]]:
    """Run an API server and drivers; yield their directory and the kubeconfig of the server."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        script = str(Path(__file__).with_name("dra_drivers.py"))
        command = [sys.executable, script, directory, str(DRIVERS), str(CLAIMS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield Path(directory), Path(process.stdout.readline().strip())


@pytest.mark.benchmark(group="dra", timer=time.process_time)
@pytest.mark.parametrize("per_pod", [1, 10], ids=["100 pods with a claim", "10 pods with 10 claims"])
def test_prepare_and_unprepare_agent(benchmark: Any, peers: tuple[Path, Path], per_pod: int) -> None:
    directory, kubeconfig = peers
    with asyncio.Runner() as runner:
        manager, client = runner.run(_manager(directory, kubeconfig))
        pods = [_pod(first, per_pod) for first in range(0, CLAIMS, per_pod)]

        async def prepare_and_unprepare() -> None:
            await asyncio.gather(*(manager.prepare(pod) for pod in pods))
            await asyncio.gather(*(manager.unprepare(pod.uid) for pod in pods))

        benchmark.pedantic(lambda: runner.run(prepare_and_unprepare()), rounds=10, warmup_rounds=2)
        benchmark.extra_info["claims"] = CLAIMS
        runner.run(manager.stop())
        client.close()


async def _manager(directory: Path, kubeconfig: Path) -> tuple[ClaimManager, ApiClient]:
    config = load_kubeconfig(kubeconfig)
    client = ApiClient(config, Credentials(config, clock=time.time), user_agent="bench")
    context = NodeContext.create(KubeletConfiguration(), root=directory)
    manager = ClaimManager(
        context,
        claims=PodReferences(client, context.tasks, time.time),
        slices=NoSlices(),
        connect=lambda name, socket, service: DraDriverClient(name, socket, service, context.registry),
        may_run=lambda uid: True,
        ready=lambda: True,
        changed=lambda uid: None,
    )
    await manager.start()
    for number in range(DRIVERS):
        socket = directory / f"d{number}/1.sock"
        await manager.drivers.register(f"d{number}", socket, ["v1.DRAPlugin"])
    while not all(manager.drivers.is_connected(f"d{number}") for number in range(DRIVERS)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return manager, client


def _pod(first: int, claims: int) -> Pod:
    """Return a pod that uses `claims` claims from number `first`.

    The API server reserves each for `pod-N` of its number.
    """
    names = [f"claim-{first + n}" for n in range(claims)]
    entries = [PodResourceClaim(name=name, resource_claim_name=name) for name in names]
    uid = f"pod-{first}"
    meta = ObjectMeta(name=uid, namespace="default", uid=uid)
    return Pod(
        metadata=meta, spec=PodSpec(containers=[Container(name="c", image="i")], resource_claims=entries)
    )
