"""Start the agents to measure, on the same configuration file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.api.errors import InvalidInput, Unavailable
from engine.bench.kernel_counters import count_all
from engine.bench.parts import Part, http_get, kubengine
from engine.bench.procfs import usage
from engine.bench.workspace import Workspace

NODE_NAME = "bench-node"
HEALTHY_WITHIN = 120.0
KUBELETS = range(28, 37)
WITH_LOGS_ELSEWHERE = 30
WITH_IMAGE_AGE = 30
PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")


@dataclass(frozen=True, slots=True)
class Version:
    """Hold a kubelet's version, and what it lacks."""

    text: str
    minor: int

    @property
    def collects_by_age(self) -> bool:
        return self.minor >= WITH_IMAGE_AGE

    def notes(self) -> list[str]:
        """Return notes to print before it is measured."""
        notes = []
        if self.minor not in KUBELETS:
            notes.append(f"{self.text} is outside 1.28 to 1.36; flags or fields may be missing")
        if self.minor < WITH_LOGS_ELSEWHERE:
            notes.append(f"{self.text} has no podLogsDir: its logs are in /var/log/pods until the end")
        if not self.collects_by_age:
            notes.append(f"{self.text} has no imageMaximumGCAge unless a gate is set: no image-gc phase")
        if os.geteuid() != 0:
            notes.append("running a kubelet needs root")
        return notes


@dataclass(frozen=True, slots=True)
class AgentKind:
    """Describe a kind of agent: `kubelet` is a binary, None for this engine."""

    label: str
    kubelet: Path | None = None

    def command(self, workspace: Workspace, config: Path, kubeconfig: Path | None = None) -> list[str]:
        arguments = ["--config", str(config), "--root-dir", str(workspace.root)]
        if kubeconfig is not None:
            arguments += ["--kubeconfig", str(kubeconfig.absolute())]
        if self.kubelet is None:
            return kubengine("run", *arguments, "--node-name", NODE_NAME, "--log-level", "warning")
        certificates = str(workspace.path / "pki")
        identity = ["--cert-dir", certificates, "--hostname-override", NODE_NAME]
        return [*_own_plugin_directory(workspace), str(self.kubelet), *arguments, *identity, "--v=0"]

    def version(self) -> Version | None:
        """Return a kubelet's version, None for this engine. Raise `InvalidInput` if the binary is not a
        kubelet.
        """
        if self.kubelet is None:
            return None
        try:
            output = subprocess.run(
                [str(self.kubelet), "--version"], capture_output=True, text=True, timeout=30, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidInput(f"cannot be run: {error}", subject=str(self.kubelet)) from None
        match = re.search(r"v1\.(\d+)(\.\S+)?", output)
        if match is None:
            raise InvalidInput(
                f"--version says {output.strip()[:80]!r}, which is not a kubelet's version",
                subject=str(self.kubelet),
            )
        return Version(match.group(), int(match.group(1)))


def _own_plugin_directory(workspace: Workspace) -> list[str]:
    """Return the command prefix that makes a kubelet serve device plugins in the workspace, as its directory
    for them is fixed. Empty if the bench lacks the rights for it.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return []
    own = workspace.root / "device-plugins"
    own.mkdir(parents=True, exist_ok=True)
    PLUGIN_DIRECTORY.mkdir(parents=True, exist_ok=True)
    # In a mount namespace of its own, so that the machine's kubelet and its plugins do not see it.
    bind = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", bind, "sh", str(own), str(PLUGIN_DIRECTORY)]


def configuration(workspace: Workspace, endpoint: str, *, max_pods: int) -> dict[str, Any]:
    """Write one KubeletConfiguration for either agent, with loopback only, private paths and no eviction."""
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
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "enableControllerAttachDetach": False,
        "maxPods": max_pods,
        "resolvConf": "",
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
    }


class BenchAgent:
    """Run an agent of one kind; `settings` are KubeletConfiguration fields in addition to the common ones,
    and with a `kubeconfig` it joins that cluster.

    `uncounted` says which events of its process tree are not counted, and why.
    """

    def __init__(
        self,
        kind: AgentKind,
        workspace: Workspace,
        endpoint: str,
        *,
        max_pods: int,
        settings: Mapping[str, Any] | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        self.kind = kind
        self.workspace = workspace
        config = workspace.path / "config.yaml"
        fields = {**configuration(workspace, endpoint, max_pods=max_pods), **(settings or {})}
        config.write_text(json.dumps(fields, indent=1))
        self.began = time.monotonic()
        self.part = Part(
            kind.label, kind.command(workspace, config, kubeconfig), workspace.path / "agent.log"
        )
        self._counters, self.uncounted = count_all(self.part.pid)
        try:
            self._wait_healthy()
        except BaseException:
            self.stop(kill=True)
            raise
        self.start_wall = time.monotonic() - self.began
        self.start_cpu = usage(self.part.pid).cpu

    def counts(self) -> dict[str, int]:
        """Return the events of its process tree since it began, by name, as far as they are counted."""
        return {name: counter.read() for name, counter in self._counters.items()}

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
            f"not healthy within {HEALTHY_WITHIN:g} s; its last output:\n{words}", subject=self.kind.label
        )

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods that the agent reports on its read-only port; none before the port is open.

        A kubelet is healthy a moment before it listens there.
        """
        self.part.check()
        try:
            status, body = http_get(self.workspace.ports["read_only"], "/pods", timeout=60)
        except OSError as error:
            self.part.check()
            if isinstance(error, ConnectionRefusedError) and time.monotonic() < self.began + HEALTHY_WITHIN:
                return []
            raise Unavailable(
                f"its read-only port does not answer: {error}", subject=self.kind.label
            ) from None
        if status != 200:
            raise Unavailable(f"/pods answers {status}", subject=self.kind.label)
        pods: list[dict[str, Any]] = json.loads(body)["items"] or []
        return pods

    def stop(self, *, kill: bool = False) -> None:
        self.part.stop(kill=kill)
        for counter in self._counters.values():
            counter.close()
        self._counters.clear()


def ready(pod: dict[str, Any]) -> bool:
    """Tell whether a reported pod is Running and Ready."""
    status = pod.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    return status.get("phase") == "Running" and conditions.get("Ready") == "True"
