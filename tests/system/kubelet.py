"""Run a real kubelet as a process of a test, on a manifest directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.host.mounts import unmount_below
from tests.ports import free_port

BINARIES = Path(os.environ.get("KUBE_BIN", "/nonexistent"))
"""The folder with a kubelet's binary, where there is one."""

needs_kubelet = pytest.mark.skipif(
    not (BINARIES / "kubelet").exists(), reason="needs KUBE_BIN: a folder with a kubelet v1.36"
)

PLUGIN_DIRECTORY = Path("/var/lib/kubelet/device-plugins")
"""Fixed in the kubelet; it gets a mount namespace in which the test's own directory is there."""


class Kubelet:
    """Run a kubelet that can stop and start while its pods go on, as when agents are exchanged.

    `more` holds further fields of its configuration. With `kubeconfig` its node belongs to a cluster.
    """

    def __init__(
        self,
        directory: Path,
        endpoint: Path,
        *,
        manifests: Path,
        root: Path,
        cgroup_root: str,
        more: Mapping[str, Any] | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        self.log = directory / "kubelet.log"
        self._port = free_port()
        self.config = directory / "kubelet.yaml"
        self._root = root
        self._plugins = root / "device-plugins"
        self._cgroup_root = cgroup_root.lstrip("/")
        self._command = [str(BINARIES / "kubelet"), "--config", str(self.config), "--root-dir", str(root)]
        self._command += ["--cert-dir", str(directory / "pki"), "--hostname-override", "n1", "--v=2"]
        if kubeconfig is not None:
            self._command += ["--kubeconfig", str(kubeconfig)]
        self._process: subprocess.Popen[bytes] | None = None
        fields = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "readOnlyPort": self._port,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "staticPodPath": str(manifests),
            "podLogsDir": str(directory / "logs"),
            "volumePluginDir": str(directory / "volume-plugins"),
            "containerRuntimeEndpoint": f"unix://{endpoint}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup_root,
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "enableControllerAttachDetach": False,
            "localStorageCapacityIsolation": False,
            "resolvConf": "",
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            **(more or {}),
        }
        self.config.write_text(yaml.safe_dump(fields))

    @property
    def url(self) -> str:
        """Return the address of its read-only port."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def flags(self) -> list[str]:
        """Return the kubelet's command-line flags."""
        return self._command[1:]

    def start(self) -> None:
        self._make_cgroups()
        self._plugins.mkdir(parents=True, exist_ok=True)
        own = f'mount --bind "$0" {PLUGIN_DIRECTORY}'
        private = f'mount --make-private "$(findmnt -nro TARGET -T {PLUGIN_DIRECTORY})"'
        script = f'mkdir -p {PLUGIN_DIRECTORY} && {private} && {own} && exec "$@"'
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", script, str(self._plugins),
                 *self._command],
                stdout=log, stderr=log,
            )  # fmt: skip

    def share_root(self) -> None:
        """Make the root a shared mount, so that the next agent sees the mounts of pods.

        Call it before anything is mounted there.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        for options in (["--bind", str(self._root)], ["--make-shared"]):
            subprocess.run(["mount", *options, str(self._root)], check=True, timeout=30)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)

    def close(self) -> None:
        """Stop the kubelet for good, and unmount everything below its root."""
        self.stop()
        unmount_below(self._root)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods that the kubelet reports, by manifest name; none while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/pods", timeout=5) as answer:
                items = json.load(answer)["items"] or []
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}
        return {pod["metadata"]["name"].removesuffix("-n1"): pod for pod in items}

    def phases(self) -> dict[str, str]:
        return {name: pod["status"].get("phase", "") for name, pod in self.pods().items()}

    def logged(self, text: str) -> bool:
        """Tell whether the kubelet's log contains `text`."""
        return text in self.log.read_text(errors="replace")

    def _make_cgroups(self) -> None:
        """Make the cgroup root in every hierarchy, since a kubelet does not make it."""
        for hierarchy in Path("/sys/fs/cgroup").iterdir():
            if (hierarchy / "cgroup.procs").exists():
                (hierarchy / self._cgroup_root).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            of_machine = Path("/sys/fs/cgroup/cpuset", name)
            if of_machine.exists():
                Path("/sys/fs/cgroup/cpuset", self._cgroup_root, name).write_text(of_machine.read_text())
