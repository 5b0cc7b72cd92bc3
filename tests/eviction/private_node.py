"""A piece of this machine that plays the node: one private cgroup, pods as processes in groups below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from engine.api.lifecycle import PodEnd
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec, ResourceRequirements
from engine.api.quantity import Quantity
from engine.host.cgroupfs.mounts import Mounts, readable_mounts

MIB = 1 << 20
_EAT = """
import sys, threading, time
block = bytearray(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def make_pod(name: str, *, memory_request: str = "", priority: int | None = None, **spec) -> Pod:
    requests = {"memory": Quantity.parse(memory_request)} if memory_request else None
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    spec.setdefault("containers", [container])
    annotations = spec.pop("annotations", None)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=annotations),
        spec=PodSpec(priority=priority, **spec),
    )


class PrivateNode:
    def __init__(self, cgroup: str, mounts: Mounts | None = None) -> None:
        self.cgroup, self.mounts = cgroup, mounts or readable_mounts()
        self.pods: dict[str, Pod] = {}
        self.ended: list[tuple[str, PodEnd]] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for directory in self._directories(cgroup):
            directory.mkdir(parents=True)
        if self.mounts.version == 2:
            top, own = self.mounts.directory("memory"), self.mounts.directory("memory", cgroup)
            above = [top / each for each in reversed(own.relative_to(top).parents)]
            for group in (*above, own):
                for controller in ("+memory", "+pids"):
                    (group / "cgroup.subtree_control").write_text(controller)

    def _directories(self, cgroup: str) -> list[Path]:
        return list({self.mounts.directory(each, cgroup): None for each in ("memory", "pids")})

    def pod_cgroup(self, uid: str) -> str | None:
        return f"{self.cgroup}/pod{uid}" if uid in self.pods else None

    def active_pods(self) -> list[Pod]:
        return list(self.pods.values())

    def run(self, pod: Pod, *, mib: int = 1, threads: int = 0) -> None:
        """Start a process that holds `mib` MiB and runs so many more threads, in the pod's own cgroup."""
        process = self.start(pod, _EAT, str(mib * MIB), str(threads))
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
        assert line == b"ready\n" or pod.uid not in self._processes, "it did not get its memory"

    def start(
        self, pod: Pod, program: str, *arguments: str, oom_score_adj: int = 0
    ) -> subprocess.Popen[bytes]:
        """Start a Python program in the pod's own cgroup."""
        self.pods[pod.uid] = pod
        directories = self._directories(f"{self.cgroup}/pod{pod.uid}")
        for directory in directories:
            directory.mkdir()

        def join() -> None:
            for directory in directories:
                (directory / "cgroup.procs").write_text(str(os.getpid()))
            Path("/proc/self/oom_score_adj").write_text(str(oom_score_adj))

        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", program, *arguments],
            preexec_fn=join,  # noqa: PLW1509 - a thread of ours holds no lock that it needs
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[pod.uid] = process
        return process

    async def kill_pod(self, pod: Pod, end: PodEnd) -> None:
        self.ended.append((pod.metadata.name, end))
        self._stop(pod.uid)
        for directory in self._directories(f"{self.cgroup}/pod{pod.uid}"):
            for _ in range(100):
                try:
                    directory.rmdir()
                    break
                except OSError:
                    await asyncio.sleep(0.02)
        del self.pods[pod.uid]

    def _stop(self, uid: str) -> None:
        process = self._processes.pop(uid, None)
        if process is not None:
            # The group is gone if the kernel killed all its processes and a test has seen that.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        for uid in list(self._processes):
            self._stop(uid)
