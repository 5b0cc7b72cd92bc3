"""An API server and DRA drivers in a process of their own: `dra_drivers.py DIRECTORY DRIVERS CLAIMS`.

Claims `claim-N` are allocated a device of driver `N % DRIVERS` and reserved for the pod `pod-N` and the first
of its ten. Prints the
kubeconfig's path when all are served, and ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from engine.testing.apiserver import ApiServer
from engine.testing.dra_driver import SampleDraDriver

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def main(directory: Path, drivers: int, claims: int) -> None:
    async with ApiServer(directory / "api") as server:
        for number in range(claims):
            result = {
                "request": "r",
                "driver": f"d{number % drivers}",
                "pool": "pool",
                "device": f"dev-{number}",
            }
            status = {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"uid": f"pod-{number}"}, {"uid": f"pod-{number // 10 * 10}"}],
            }
            server.create(CLAIMS, {"metadata": {"name": f"claim-{number}"}, "status": status})
        served = [SampleDraDriver(directory / f"d{n}", directory, f"d{n}") for n in range(drivers)]
        for driver in served:
            await driver.serve()
        print(server.kubeconfig("admin"), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for driver in served:
            await driver.stop()


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
