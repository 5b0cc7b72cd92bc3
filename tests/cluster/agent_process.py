"""`kubengine kubelet` as a process that dies without warning."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.guarded_host import COMMAND

HEAD = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


class AgentProcess:
    """Run `kubengine kubelet` with its files below `directory`, on the runtime at `socket`, with `flags`
    and with `config` as fields of its configuration. `within` is a command that wraps it; `environment`
    adds variables to those of this process."""

    def __init__(
        self,
        directory: Path,
        socket: Path,
        flags: Mapping[str, object],
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **config: Any,
    ) -> None:
        self.root = directory / "root"
        self._environment = os.environ | dict(environment or {})
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
        self._command = [*within, *COMMAND, "kubelet", "--port=0"]
        self._command += [f"--{name}={value}" for name, value in (files | dict(flags)).items()]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, env=self._environment
            )

    def within(self, command: Sequence[str]) -> None:
        """Start the next agent by this command beside the one that it has."""
        self._command = [*command, *self._command]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return the exit code of the agent if it ended by itself, or None while it runs."""
        assert self._process is not None
        return self._process.returncode

    async def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                process.kill()
            await process.wait()

    def log(self) -> str:
        return self._log.read_text()
