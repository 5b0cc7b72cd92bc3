"""Measures on demand what probe commands cost the runtime, pod by pod.

containerd has one shim per pod, which starts each command through the OCI runtime and reaps both; its CPU
time and that of its children belongs to the pod alone. Starts and ends of containers are included: since the
start of the pod the number is an upper bound, and between two readings of a stable pod it is the cost of its
commands.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.api.errors import KubengineError, Refused
from engine.probes.manager import ProbeManager

if TYPE_CHECKING:
    from engine.cri.client import RuntimeClient

AT_ONCE: Final = 8
"""Parallel calls to the runtime."""
_SHIM: Final = "containerd-shim"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class _Process(msgspec.Struct, frozen=True):
    """Hold a process as in `/proc/PID/stat`; `seconds` of CPU include children that it has reaped."""

    name: str
    parent: int
    seconds: float


class CommandCosts:
    def __init__(self, probes: ProbeManager, runtime: RuntimeClient) -> None:
        self._probes, self._runtime = probes, runtime
        self._asking = asyncio.Semaphore(AT_ONCE)

    async def describe(self, pod: str = "") -> dict[str, Any]:
        """Return every pod with command probes, or the one named (`namespace/name`, name or uid)."""
        return {"pods": await asyncio.gather(*(self._of(each) for each in self._probes.commands(pod)))}

    async def _of(self, costs: dict[str, Any]) -> dict[str, Any]:
        sandbox = costs["sandbox"]
        try:
            async with self._asking:
                return costs | {"runtime_cpu_seconds": await self._spent(sandbox), "untold": ""}
        except (KubengineError, OSError) as error:
            return costs | {"runtime_cpu_seconds": None, "untold": str(error)}

    async def _spent(self, sandbox: str) -> float:
        if not sandbox:
            raise Refused("the pod has no sandbox")
        status = await self._runtime.pod_sandbox_status(sandbox, verbose=True)
        return shim_seconds(sandbox, status.info.get("info", ""))


def shim_seconds(sandbox: str, info: str) -> float:
    """Return the CPU seconds of a sandbox's shim, found by its verbose status.

    Raises `Refused` if it has none, and `OSError` if it is gone.
    """
    try:
        pid = int(json.loads(info).get("pid") or 0)
    except (ValueError, TypeError, AttributeError):
        pid = 0
    if pid <= 0:
        raise Refused("the runtime reports no process of the pod")
    with open(f"/proc/{pid}/cgroup", "rb") as file:  # noqa: PTH123
        if sandbox.encode() not in file.read(1 << 16):
            raise Refused("the pod's sandbox process has exited")
    shim = _process(_process(pid).parent)
    if not shim.name.startswith(_SHIM):
        raise Refused("the runtime has no process for the pod alone")
    return shim.seconds


def _process(pid: int) -> _Process:
    with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
        text = file.read()
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return _Process(name, int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
