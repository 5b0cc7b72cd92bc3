"""The JupyterHub spawner in a real hub: real servers in containers of a real containerd, on real cgroups.

All requests go through JupyterHub's own proxy, as those of a user's browser do.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engine.host.mountinfo import mounted
from engine.testing import Containerd
from tests.project.shown import ROOT

pytest.importorskip("jupyterhub")
pytest.importorskip("jupyter_server")
PROGRAMS = f"{ROOT}/build/proxy/node_modules/.bin:{os.environ['PATH']}"
PROXY = shutil.which("configurable-http-proxy", path=PROGRAMS)
TOKEN = "the-tests-token"
CONFIG = """\
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{directory}/proxy.pid"
c.JupyterHub.spawner_class = "jupyterhub_spawner.KubengineSpawner"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.hub_connect_ip = "{address}"
c.JupyterHub.db_url = "sqlite:///{directory}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{directory}/cookie_secret"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}  # a request does not wait for the server
c.JupyterHub.services = [{{"name": "test", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{"name": "test", "services": ["test"],
    "scopes": ["admin:users", "admin:servers", "access:servers", "read:hub", "shutdown"]}}]
c.KubengineSpawner.update({settings!r})
"""
SETTINGS: dict[str, Any] = {
    "image": "docker.io/library/busybox:latest",
    "poll_interval": 1,
    "start_timeout": 600,
    "http_timeout": 600,
    "mem_limit": 512 << 20,
    "cpu_limit": 1.5,
    "mem_guarantee": 64 << 20,
    "cpu_guarantee": 1,
    "home_size": "24Mi",
    "idle_seconds": 3,
}


class Hub:
    """Run a hub and its proxy in other processes, and send requests to the proxy."""

    def __init__(self, directory: Path, containerd: Containerd, cgroup_root: str) -> None:
        self.directory = directory
        self.port, hub_port, proxy_port = free_ports(3)
        settings = {
            **SETTINGS,
            "runtime_endpoint": f"unix://{containerd.socket}",
            "root": str(directory / "node"),
            "node_config": {"cgroupRoot": cgroup_root, "resolvConf": "", "evictionHard": {}},
            "cmd": [sys.executable, "-m", "jupyterhub.singleuser"],
            "environment": {"HOME": "/home/jovyan", "JUPYTERHUB_ACTIVITY_INTERVAL": "1"},
            **read_only_mounts(),
        }
        config = CONFIG.format(
            port=self.port, hub_port=hub_port, proxy=PROXY, proxy_port=proxy_port, address=machine_address(),
            directory=directory, token=TOKEN, settings=settings,
        )  # fmt: skip
        (directory / "config.py").write_text(config)
        self.log = directory / "hub.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(self.directory / "config.py")],
                cwd=self.directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"},
            )  # fmt: skip
        self.wait_until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def ask(self, method: str, path: str, value: Any = None) -> Any:
        """Return status and answer of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps(value) if value is not None else None
            connection.request(method, path, body, {"Authorization": f"token {TOKEN}"})
            response = connection.getresponse()
            answer = response.read()
            return response.status, json.loads(answer) if answer[:1] in b"{[" and answer else answer
        finally:
            connection.close()

    def user(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/hub/api/users/{name}")[1]
        return found

    def spawn(self, name: str) -> None:
        self.ask("POST", f"/hub/api/users/{name}")
        code, answer = self.ask("POST", f"/hub/api/users/{name}/server")
        assert code in (201, 202), answer

    def run_server(self, name: str) -> None:
        """Spawn a server, and return when it is ready."""
        self.spawn(name)
        self.wait_until(lambda: self.user(name)["servers"].get("", {}).get("ready"))

    def wait_until(self, condition: Callable[[], object], seconds: float = 600) -> None:
        for _ in range(round(seconds / 0.1)):
            assert self._process is not None
            if condition():
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"not as awaited; the hub's log:\n{self.log.read_text()[-6000:]}")

    def _answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/hub/api/")[0] == 200)
        except OSError:
            return False


def machine_address() -> str:
    """Return this machine's address, which its pods reach, too. The bridge's exists from the first pod on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:
            unconnected.connect(("198.51.100.1", 9))  # sends nothing, but chooses a source address
        except OSError:
            pytest.skip("needs a default route")
        address: str = unconnected.getsockname()[0]
        return address


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which nothing listens."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in free]


def read_only_mounts() -> dict[str, Any]:
    """Return the machine's Python and its libraries for containers without a Python."""
    paths = sorted({"/usr", "/lib", "/lib64", "/etc/ssl", sys.prefix, sys.base_prefix, str(ROOT)})
    paths = [path for path in paths if Path(path).is_dir() and not below_another(path, paths)]
    volumes = [{"name": f"v{place}", "hostPath": {"path": path}} for place, path in enumerate(paths)]
    mounts = [{"name": f"v{place}", "mountPath": path, "readOnly": True} for place, path in enumerate(paths)]
    return {"pod_spec": {"volumes": volumes}, "container_spec": {"volumeMounts": mounts}}


def below_another(path: str, paths: list[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in paths)


@pytest.fixture
def hub(tmp_path: Path, containerd: Containerd, private_cgroup_root: str) -> Iterator[Hub]:
    made = Hub(tmp_path, containerd, private_cgroup_root)
    made.start()
    yield made
    made.stop()
    containerd.remove_pods()
    assert not [mount for mount in mounted() if mount.point.startswith(f"{tmp_path}/")]


def memory_file(cgroup_root: str, name: dict[int, str]) -> Path:
    v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/memory") / cgroup_root.lstrip("/")
    (pod,) = root.glob("kubepods/burstable/pod*")
    return pod / name[2 if v2 else 1]


@pytest.mark.root
@pytest.mark.containerd
@pytest.mark.skipif(PROXY is None, reason="needs configurable-http-proxy (`make try-jupyterhub` installs it)")
def test_a_users_server_has_limits_is_squeezed_adopted_and_evicted_with_a_reason(
    hub: Hub, private_cgroup_root: str
) -> None:
    hub.run_server("ada")
    limit = memory_file(private_cgroup_root, {1: "memory.limit_in_bytes", 2: "memory.max"})
    assert int(limit.read_text()) == SETTINGS["mem_limit"]
    assert hub.ask("GET", "/user/ada/api/status")[0] == 200

    # An idle server loses its page cache.
    file = {"type": "file", "format": "text", "content": "x" * (16 << 20)}
    assert hub.ask("PUT", "/user/ada/api/contents/data.txt", file)[0] == 201
    hub.wait_until(lambda: re.search(r"server of ada is idle: [1-9]\d* MiB reclaimed", hub.log.read_text()))
    assert hub.ask("GET", "/user/ada/api/status")[0] == 200, "the server still answers"

    # Another hub adopts the server.
    hub.stop()
    hub.start()
    hub.wait_until(lambda: hub.user("ada")["servers"].get("", {}).get("ready"))
    assert hub.ask("GET", "/user/ada/api/status")[0] == 200

    # Beyond its disk it is evicted, and its user learns why.
    assert hub.ask("PUT", "/user/ada/api/contents/more.txt", file)[0] == 201
    hub.wait_until(lambda: not hub.user("ada")["servers"])
    reason = 'Usage of EmptyDir volume "home" exceeds the limit "24Mi"'
    assert f"server of ada: Evicted: {reason}" in hub.log.read_text()
    hub.spawn("ada")
    events = hub.ask("GET", "/hub/api/users/ada/server/progress")[1]
    assert f"Your last server ended: Evicted: {reason}".encode() in events.replace(b'\\"', b'"')
    assert hub.ask("DELETE", "/hub/api/users/ada/server")[0] in (202, 204)
