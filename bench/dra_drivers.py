"""DRA drivers in a process of their own: `dra_drivers.py DIRECTORY DRIVERS CLAIMS` or `… REGISTRY DRIVERS`.

With a number of claims it also serves an API server, where claims `claim-N` are allocated a device of driver
`N % DRIVERS` and reserved for the pod `pod-N` and the first of its ten, and prints the kubeconfig's path
when all are served. With a directory it registers `d0`, `d1`, … there. It ends with its input.
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


async def register(directory: Path, registry: Path, drivers: int) -> None:
    served = [SampleDraDriver(directory / f"d{n}", registry, f"d{n}") for n in range(drivers)]
    for driver in served:
        await driver.start()
    print("registering", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for driver in served:
        await driver.stop()


if sys.argv[2].isdecimal():
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
else:
    asyncio.run(register(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
