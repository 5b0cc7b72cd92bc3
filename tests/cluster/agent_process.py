"""`kubengine kubelet` as a process that dies without warning."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.guarded_host import COMMAND

HEAD = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


class AgentProcess:
    """An agent below `directory`, of the runtime at `socket`, with `flags` beside those that say where its
    files are."""

    def __init__(self, directory: Path, socket: Path, flags: Mapping[str, object], **config: Any) -> None:
        self.root = directory / "root"
        self._log = directory / "agent.log"
        base = {
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "podLogsDir": str(directory / "logs"),
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{socket}",
        }
        (directory / "kubelet.yaml").write_text(yaml.safe_dump(HEAD | base | config))
        files = {"config": directory / "kubelet.yaml", "root-dir": self.root, "cert-dir": directory / "pki"}
        self._command = [*COMMAND, "kubelet", "--port=0"]
        self._command += [f"--{name}={value}" for name, value in (files | dict(flags)).items()]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)

    async def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            await process.wait()

    def log(self) -> str:
        return self._log.read_text()
