"""A real etcd and kube-apiserver with Node authorization, from the folder that KUBE_BIN names."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from engine.api.errors import Unavailable
from engine.cluster.client import ApiClient, ApiError
from engine.testing.apiserver import ApiServer, Authority
from engine.testing.apiserver.store import EMPTY
from tests.ports import free_port
from tests.waiting import PATIENCE

ADMIN_TOKEN = "admintoken"
BOOTSTRAP_TOKEN = "bootstraptoken"
AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
Object = dict[str, Any]


class ControlPlane:
    """Run etcd and kube-apiserver while entered. `admin` and `node` (the node n1) are kubeconfigs; the
    user of `bootstrap` may only request a node's certificate. With `aggregates`, it serves aggregated
    APIs; with `asks`, the authorizer at that address may deny requests before the server's own authorizers
    see them."""

    def __init__(self, directory: Path, binaries: Path, *, aggregates: bool = False, asks: str = "") -> None:
        self._directory, self._binaries = directory, binaries
        self._aggregates, self._asks = aggregates, asks
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._etcd, self._peer = (free_port() for _ in range(3))
        self._authority = Authority(directory / "authority")
        pair = self._authority.issue("system:node:n1", organization="system:nodes")
        self.admin = self._kubeconfig("admin", {"token": ADMIN_TOKEN})
        self.bootstrap = self._kubeconfig("bootstrap", {"token": BOOTSTRAP_TOKEN})
        self.node = self._kubeconfig(
            "node", {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        )

    def __enter__(self) -> Self:
        try:
            self.start_etcd()
            self.start_apiserver()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self._end(name)

    def start_apiserver(self) -> None:
        """Start kube-apiserver with a new serving certificate, and wait until it is ready."""
        key, tokens = self._directory / "sa.key", self._directory / "tokens.csv"
        if not key.exists():
            command = ["openssl", "genrsa", "-out", str(key), "2048"]
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        tokens.write_text(
            f"{ADMIN_TOKEN},admin,1,system:masters\n"
            f'{BOOTSTRAP_TOKEN},system:bootstrap:abcdef,2,"system:bootstrappers"\n'
        )
        server = self._authority.issue("kube-apiserver", alternatives="IP:127.0.0.1")
        caller = self._authority.issue("kube-apiserver-kubelet-client", organization="system:masters")
        policy = self._directory / "audit.json"
        policy.write_text(json.dumps(AUDIT))
        self._start(
            str(self._binaries / "kube-apiserver"),
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._directory}/audit.log",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={self._authority.certificate}",
            f"--kubelet-client-certificate={caller.certificate}",
            f"--kubelet-client-key={caller.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={tokens}",
            *(self._asking() if self._asks else ("--authorization-mode=Node,RBAC",)),
            "--enable-admission-plugins=NodeRestriction",
            "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,"
            "PodCertificateRequest=true",
            "--runtime-config=certificates.k8s.io/v1beta1=true",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://test",
            "--service-cluster-ip-range=10.0.0.0/24",
            *(self._aggregation() if self._aggregates else ()),
        )
        self._until_ready()

    def _aggregation(self) -> list[str]:
        """Return the flags by which this server proves itself, and the user of a request, to aggregated
        API servers."""
        pair = self._authority.issue("front-proxy")
        headers = {"extra-headers-prefix": "X-Remote-Extra-", "group-headers": "X-Remote-Group"}
        headers |= {"username-headers": "X-Remote-User", "allowed-names": "front-proxy"}
        return [
            f"--proxy-client-cert-file={pair.certificate}",
            f"--proxy-client-key-file={pair.key}",
            f"--requestheader-client-ca-file={self._authority.certificate}",
            *(f"--requestheader-{name}={value}" for name, value in headers.items()),
        ]

    def _asking(self) -> list[str]:
        """Return the flags that put the webhook authorizer first, without a cache of its refusals."""
        path = self._directory / "authorizer.kubeconfig"
        self._write_kubeconfig(path, {"server": self._asks}, {})
        return [
            "--authorization-mode=Webhook,Node,RBAC",
            f"--authorization-webhook-config-file={path}",
            "--authorization-webhook-version=v1",
            "--authorization-webhook-cache-unauthorized-ttl=0s",
        ]

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig of `user` with a client certificate."""
        pair = self._authority.issue(user)
        return self._kubeconfig(
            user, {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        )

    @property
    def authority(self) -> Authority:
        """Return the authority that signs client certificates and the API server's serving certificate."""
        return self._authority

    def refused(self, user: str) -> list[str]:
        """Return the requests that the server refused `user` (403), without those that it allowed on a
        retry: its authorizer may learn of a pod later than the pod's node."""
        lines = (self._directory / "audit.log").read_text().splitlines()
        refused: dict[str, str] = {}
        for event in map(json.loads, lines):
            code = event.get("responseStatus", {}).get("code")
            if event["user"].get("username") != user or code is None:
                continue
            about = json.dumps(event.get("objectRef"), sort_keys=True)
            if code == 403:
                refused[about] = f"{event['verb']} {event['requestURI']}"
            elif code < 400:
                refused.pop(about, None)
        return list(refused.values())

    @property
    def _as_admin(self) -> list[str]:
        return [f"--kubeconfig={self.admin}", "--leader-elect=false", "--secure-port=0"]

    def start_scheduler(self) -> None:
        self._start(str(self._binaries / "kube-scheduler"), *self._as_admin)

    def start_controllers(self, *options: str) -> None:
        """Start the scheduler, and the controller-manager with `options`. It signs with the keys of the
        authority."""
        self.start_scheduler()
        self._start(
            str(self._binaries / "kube-controller-manager"),
            *self._as_admin,
            f"--service-account-private-key-file={self._directory}/sa.key",
            f"--root-ca-file={self._authority.certificate}",
            f"--cluster-signing-cert-file={self._authority.certificate}",
            f"--cluster-signing-key-file={self._authority.key}",
            *options,
        )

    def requests_of(self, user: str) -> list[str]:
        """Return the path of each request of `user` that the server has completed."""
        lines = (self._directory / "audit.log").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [
            event["requestURI"].partition("?")[0]
            for event in events
            if event["user"].get("username") == user and event["stage"] == "ResponseComplete"
        ]

    def watched_by(self, user: str) -> set[tuple[str, str]]:
        """Return the collection and the field selector of each open watch of `user`."""
        under_way: dict[str, tuple[str, str]] = {}
        for line in (self._directory / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if event["verb"] != "watch" or event["user"].get("username") != user:
                continue
            if event["stage"] == "ResponseStarted":
                uri = urllib.parse.urlsplit(event["requestURI"])
                (selector,) = urllib.parse.parse_qs(uri.query).get("fieldSelector", [""])
                under_way[event["auditID"]] = uri.path, selector
            elif event["stage"] == "ResponseComplete":
                under_way.pop(event["auditID"], None)
        return set(under_way.values())

    def stop_apiserver(self) -> None:
        self._end("kube-apiserver")

    def start_etcd(self) -> None:
        peer, client = (f"http://127.0.0.1:{port}" for port in (self._peer, self._etcd))
        self._start(
            str(shutil.which("etcd")),
            f"--data-dir={self._directory}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def stop_etcd(self) -> None:
        self._end("etcd")

    def snapshot(self) -> Path:
        """Copy the data of etcd, which stops meanwhile, and return the path of the copy."""
        taken = Path(tempfile.mkdtemp(dir=self._directory, prefix="snapshot-")) / "etcd"
        self.stop_etcd()
        shutil.copytree(self._directory / "etcd", taken)
        self.start_etcd()
        return taken

    def set_back(self, snapshot: Path | None) -> None:
        """Restart etcd with the data of a snapshot, or with none (None), and the API server with it."""
        self.stop_apiserver()
        self.stop_etcd()
        shutil.rmtree(self._directory / "etcd")
        if snapshot is not None:
            shutil.copytree(snapshot, self._directory / "etcd")
        self.start_etcd()
        self.start_apiserver()

    def _end(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(PATIENCE)

    def _start(self, *command: str) -> None:
        log = (self._directory / f"{Path(command[0]).name}.log").open("ab")
        with log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
            self._running[Path(command[0]).name] = process

    def _until_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        end = time.monotonic() + PATIENCE
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        while True:
            try:
                with urllib.request.urlopen(request, context=context, timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < end, f"kube-apiserver is not ready, see {self._directory}"
                time.sleep(0.2)

    def _kubeconfig(self, name: str, user: dict[str, Any]) -> Path:
        authority = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority-data": authority}
        path = self._directory / f"{name}.kubeconfig"
        self._write_kubeconfig(path, cluster, user)
        return path

    def _write_kubeconfig(self, path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
        path.write_text(
            json.dumps(
                {
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "users": [{"name": "it", "user": user}],
                }
            )
        )


def binaries() -> Path:
    """Return the folder that KUBE_BIN names. Skip the test if it has no kube-apiserver or the PATH no
    etcd."""
    named = os.environ.get("KUBE_BIN", "")
    if not named or not (Path(named) / "kube-apiserver").is_file() or shutil.which("etcd") is None:
        pytest.skip("needs KUBE_BIN, a folder with kube-apiserver, and etcd on the PATH")
    return Path(named)


@dataclass
class Plane:
    """Hold an API server of either kind, a kubeconfig of the node n1, and a client that may do everything."""

    node: Path
    admin: ApiClient
    server: ApiServer | ControlPlane

    def requests_of_node(self) -> list[str]:
        """Return the path of each request of the node that the server has answered."""
        if isinstance(self.server, ApiServer):
            return [seen.path for seen in self.server.requests if seen.status != 0]
        return self.server.requests_of("system:node:n1")

    def watched_by_node(self) -> set[tuple[str, str]]:
        """Return the collection and the field selector of each open watch of the node."""
        if isinstance(self.server, ApiServer):
            return set(self.server.open_watches)
        return self.server.watched_by("system:node:n1")

    async def stop_server(self) -> None:
        """Stop the server."""
        if isinstance(self.server, ApiServer):
            await self.server.stop()
        else:
            self.server.stop_apiserver()

    async def start_server(self) -> None:
        """Start the server again with its objects, and wait until it answers."""
        if isinstance(self.server, ApiServer):
            await self.server.start()
        else:
            await asyncio.to_thread(self.server.start_apiserver)
        await self._until_answered()

    async def snapshot(self) -> Any:
        """Return a copy of the server's objects that `set_back` accepts."""
        if isinstance(self.server, ApiServer):
            return self.server.objects.snapshot()
        return await asyncio.to_thread(self.server.snapshot)

    async def set_back(self, snapshot: Any) -> None:
        """Restart the server with the objects of a snapshot, or with none (None), and wait until it
        answers."""
        if isinstance(self.server, ApiServer):
            await self.server.stop()
            self.server.objects.set_back(snapshot or EMPTY)
            await self.server.start()
        else:
            await asyncio.to_thread(self.server.set_back, snapshot)
        await self._until_answered()

    async def _until_answered(self) -> None:
        """Wait until the server answers the admin's client, whose old connection may fail once."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(Unavailable):
                    await self.admin.get("/api/v1/nodes", Object)
                    return


async def shown(client: ApiClient, path: str, holds: Callable[[Object], bool]) -> Object:
    """Wait until the object at `path` exists and `holds` accepts it, and return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                known = await client.get(path, Object)
                if holds(known):
                    return known
            except ApiError as error:
                if error.code != 404:
                    raise
            await asyncio.sleep(0.05)
