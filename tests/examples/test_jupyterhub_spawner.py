"""The JupyterHub spawner in a real hub: real servers in containers of a real containerd, on real cgroups.

Only the proxy is missing, which takes no part in spawning: the test asks hub and servers directly.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.host.mountinfo import mounted
from engine.testing import Containerd
from tests.project.shown import ROOT

pytest.importorskip("jupyterhub")
pytest.importorskip("jupyter_server")
TOKEN = "the-tests-token"
CONFIG = """\
from jupyterhub.proxy import Proxy

class NoProxy(Proxy):
    should_start = False

    def __init__(self, **given):
        super().__init__(**given)
        self.routes = {{}}

    async def add_route(self, routespec, target, data):
        self.routes[routespec] = {{"routespec": routespec, "target": target, "data": data}}

    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)

    async def get_all_routes(self):
        return dict(self.routes)

c = get_config()
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.spawner_class = "jupyterhub_spawner.KubengineSpawner"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_port = {port}
c.JupyterHub.hub_connect_ip = "{gateway}"
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
    """Run a hub in another process, and call its REST API."""

    def __init__(self, directory: Path, containerd: Containerd, cgroup_root: str) -> None:
        self.directory, self.gateway = directory, containerd.subnet.replace(".0/24", ".1")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
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
            port=self.port, gateway=self.gateway, directory=directory, token=TOKEN, settings=settings
        )
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

    def ask(self, method: str, path: str, host: tuple[str, int] | None = None, value: Any = None) -> Any:
        """Return status and answer of a request to the hub, or to a server at another address."""
        connection = http.client.HTTPConnection(*(host or ("127.0.0.1", self.port)), timeout=60)
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

    def run_server(self, name: str) -> tuple[str, int]:
        """Spawn a server, and return its address when it is ready."""
        self.spawn(name)
        self.wait_until(lambda: self.user(name)["servers"].get("", {}).get("ready"))
        return self.address(name)

    def address(self, name: str) -> tuple[str, int]:
        place = re.findall(rf"server of {name} is at (\S+) port (\d+)", self.log.read_text())[-1]
        return place[0], int(place[1])

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
def test_a_users_server_has_limits_is_squeezed_adopted_and_evicted_with_a_reason(
    hub: Hub, private_cgroup_root: str
) -> None:
    server = hub.run_server("ada")
    limit = memory_file(private_cgroup_root, {1: "memory.limit_in_bytes", 2: "memory.max"})
    assert int(limit.read_text()) == SETTINGS["mem_limit"]
    assert hub.ask("GET", "/user/ada/api/status", server)[0] == 200

    # An idle server loses its page cache.
    file = {"type": "file", "format": "text", "content": "x" * (16 << 20)}
    assert hub.ask("PUT", "/user/ada/api/contents/data.txt", server, file)[0] == 201
    hub.wait_until(lambda: re.search(r"server of ada is idle: [1-9]\d* MiB reclaimed", hub.log.read_text()))
    assert hub.ask("GET", "/user/ada/api/status", server)[0] == 200, "the server still answers"

    # Another hub adopts the server.
    hub.stop()
    hub.start()
    hub.wait_until(lambda: hub.user("ada")["servers"].get("", {}).get("ready"))
    assert hub.ask("GET", "/user/ada/api/status", server)[0] == 200

    # Beyond its disk it is evicted, and its user learns why.
    assert hub.ask("PUT", "/user/ada/api/contents/more.txt", server, file)[0] == 201
    hub.wait_until(lambda: not hub.user("ada")["servers"])
    reason = 'Usage of EmptyDir volume "home" exceeds the limit "24Mi"'
    assert f"server of ada: Evicted: {reason}" in hub.log.read_text()
    hub.spawn("ada")
    events = hub.ask("GET", "/hub/api/users/ada/server/progress")[1]
    assert f"Your last server ended: Evicted: {reason}".encode() in events.replace(b'\\"', b'"')
    assert hub.ask("DELETE", "/hub/api/users/ada/server")[0] in (202, 204)
