"""The agents that can be measured: how each is started, on the same configuration file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput, Unavailable
from engine.bench.parts import Part, http_get, kubengine
from engine.bench.procfs import usage
from engine.bench.workspace import Workspace

NODE_NAME = "bench-node"
HEALTHY_WITHIN = 120.0
KUBELETS = range(28, 37)


@dataclass(frozen=True, slots=True)
class AgentKind:
    """`kubelet` is a binary, None for this engine."""

    label: str
    kubelet: Path | None = None

    def command(self, workspace: Workspace, config: Path) -> list[str]:
        arguments = ["--config", str(config), "--root-dir", str(workspace.root)]
        if self.kubelet is None:
            return kubengine("run", *arguments, "--node-name", NODE_NAME, "--log-level", "warning")
        certificates = str(workspace.path / "pki")
        identity = ["--cert-dir", certificates, "--hostname-override", NODE_NAME]
        return [str(self.kubelet), *arguments, *identity, "--v=0"]

    def version(self) -> tuple[str, list[str]]:
        """The version, and what is to be said about it. Raises `InvalidInput` for no kubelet at all."""
        if self.kubelet is None:
            return "this engine", []
        try:
            output = subprocess.run(
                [str(self.kubelet), "--version"], capture_output=True, text=True, timeout=30, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidInput(f"cannot be run: {error}", subject=str(self.kubelet)) from None
        match = re.search(r"v1\.(\d+)(\.\S+)?", output)
        if match is None:
            raise InvalidInput(
                f"--version says {output.strip()[:80]!r}, which is no kubelet", subject=str(self.kubelet)
            )
        notes = []
        if int(match.group(1)) not in KUBELETS:
            notes.append(f"{match.group()} is outside 1.28 to 1.36; flags or fields may be missing")
        if os.geteuid() != 0:
            notes.append("a kubelet needs root")
        return match.group(), notes


def configuration(workspace: Workspace, endpoint: str, *, max_pods: int) -> dict[str, Any]:
    """One KubeletConfiguration for either agent, with nothing but loopback, private paths and no eviction."""
    private = bool(workspace.cgroup_root)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": workspace.ports["port"],
        "readOnlyPort": workspace.ports["read_only"],
        "healthzPort": workspace.ports["healthz"],
        "healthzBindAddress": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "staticPodPath": str(workspace.manifests),
        "podLogsDir": str(workspace.logs),
        "volumePluginDir": str(workspace.path / "volume-plugins"),
        "containerRuntimeEndpoint": endpoint,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": workspace.cgroup_root,
        "cgroupsPerQOS": private,
        "enforceNodeAllocatable": ["pods"] if private else [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "enableControllerAttachDetach": False,
        "maxPods": max_pods,
        "resolvConf": "",
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    }


class Agent:
    """A started agent of one kind."""

    def __init__(self, kind: AgentKind, workspace: Workspace, endpoint: str, *, max_pods: int) -> None:
        self.kind = kind
        self.workspace = workspace
        config = workspace.path / "config.yaml"
        config.write_text(json.dumps(configuration(workspace, endpoint, max_pods=max_pods), indent=1))
        began = time.monotonic()
        self.part = Part(kind.label, kind.command(workspace, config), workspace.path / "agent.log")
        try:
            self._wait_healthy()
        except BaseException:
            self.part.stop(kill=True)
            raise
        self.start_wall = time.monotonic() - began
        self.start_cpu = usage(self.part.pid).cpu

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN
        while time.monotonic() < deadline:
            self.part.check()
            try:
                if http_get(self.workspace.ports["healthz"], "/healthz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.005)
        words = self.part.last_words()
        raise Unavailable(
            f"not healthy within {HEALTHY_WITHIN:g} s; its last words:\n{words}", subject=self.kind.label
        )

    def pods(self) -> list[dict[str, Any]]:
        """What the agent reports, from its read-only port."""
        self.part.check()
        try:
            status, body = http_get(self.workspace.ports["read_only"], "/pods", timeout=60)
        except OSError as error:
            self.part.check()
            raise Unavailable(
                f"its read-only port does not answer: {error}", subject=self.kind.label
            ) from None
        if status != 200:
            raise Unavailable(f"/pods answers {status}", subject=self.kind.label)
        pods: list[dict[str, Any]] = json.loads(body)["items"] or []
        return pods

    def stop(self, *, kill: bool = False) -> None:
        self.part.stop(kill=kill)


def ready(pod: dict[str, Any]) -> bool:
    """Whether a reported pod is Running and Ready."""
    status = pod.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    return status.get("phase") == "Running" and conditions.get("Ready") == "True"
