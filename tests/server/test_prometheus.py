"""Debian's Prometheus reads a port over TLS, and the stock rules about containers have results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.node_metrics import count_node
from engine.node.usage import shown
from engine.node.usage.network import Interface
from engine.node.usage.sampler import NodeUsage, UsageSampler
from engine.server.port.door import SecurePort
from engine.testing.apiserver import ApiServer
from tests.ports import free_port
from tests.server.prometheus import Prometheus, Target, needs_prometheus, promtool
from tests.server.secured import Secured, SecuredView, Shown, configured
from tests.server.stock_rules import ASKED, RECORDED

pytestmark = needs_prometheus

PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes")
SCRAPER = "system:serviceaccount:monitoring:prometheus"


@dataclass
class BusyView(SecuredView):
    """A node with one pod that works: its numbers rise from one reading to the next."""

    tree: Path = Path()
    reads: int = 0
    sampler: UsageSampler = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        container = ContainerRecord("cid", "c", "s", RUNNING, 0, 1.0, 2.0, image="registry.example/i:1")
        self.records["u"] = PodRecord("u", "p", "default", [SandboxRecord("s", True, 0, 1.0)], [container])
        self.sampler = UsageSampler(
            pods=self.records.values,
            pod_cgroup=lambda uid: f"/kubepods/{uid}",
            pods_root=lambda: "/kubepods",
            runtime=self.tree / "none.sock",
            clock=time.time,
            mount=self.tree,
        )
        count_node(self.registry, self.name, self.records.values)
        self.relists = self.registry.histogram("kubelet_pleg_relist_duration_seconds", "Relists.")

    async def usage(self) -> NodeUsage:
        self.relists.observe(0.01)
        self.reads += 1
        n = self.reads
        for group in ("", "kubepods", "kubepods/u", "kubepods/u/s", "kubepods/u/cid"):
            (self.tree / group).mkdir(exist_ok=True)
            for name, text in {
                "cpu.stat": f"usage_usec {n}000000\nnr_periods {n}00\nnr_throttled {n}0\n",
                "cpu.max": "50000 100000\n",
                "memory.current": "9000000\n",
                "memory.swap.current": "0\n",
                "memory.stat": "anon 5000000\nfile 4000000\ninactive_file 1\n",
                "io.stat": f"8:0 rbytes={n}000 wbytes={n}000 rios={n} wios={n}\n",
                "cgroup.procs": f"{os.getpid()}\n",
            }.items():
                (self.tree / group / name).write_text(text)
        return await self.sampler.sample()

    async def stats_summary(self) -> Any:
        usage = await self.usage()
        (pod,) = usage.pods
        reference = {"name": "p", "namespace": "default", "uid": "u"}
        containers = [{"name": "c", **shown.group(pod.containers[0], usage.time)}]
        return {
            "node": shown.group(usage.root, usage.time),
            "pods": [{"podRef": reference, "containers": containers, **shown.group(pod.group, usage.time)}],
        }


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "server") as running:
        running.tokens["good"] = SCRAPER
        running.reviews.allowed = {(SCRAPER, "metrics")}
        yield running


@pytest.fixture
async def port(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secured]:
    monkeypatch.setattr("engine.node.usage.sampler.SHARED_SECONDS", 0.0)
    monkeypatch.setattr("engine.node.usage.sampler.interfaces_of", interfaces)
    monkeypatch.setattr("engine.server.cadvisor_metrics.device_name", lambda major, minor: "/dev/sda")
    kubeconfig = load_kubeconfig(server.kubeconfig("system:node:n1"))
    client = ApiClient(kubeconfig, Credentials(kubeconfig, clock=time.time), user_agent="test", timeout=5.0)
    config = configured()
    config.authentication.x509.client_ca_file = str(server.authority.certificate)
    (tmp_path / "cgroup").mkdir()
    view = BusyView(config=config, logs=tmp_path, api=client, tree=tmp_path / "cgroup")
    view.serving_certificate = Shown(server.authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, server.authority)
    await own.stop()
    client.close()


def interfaces(pid: int | str) -> list[Interface]:
    """Counters that rise."""
    return [Interface("eth0", *[time.monotonic_ns() // 10**6] * 8)]


async def test_promtool_finds_nothing_wrong_with_any_page(port: Secured) -> None:
    for page in PAGES:
        answer = await port.ask("GET", page, token="good")
        assert answer.status == 200
        assert await promtool("check", "metrics", stdin=answer.body) == (0, ""), page


async def test_the_stock_rules_have_results(port: Secured, tmp_path: Path) -> None:
    """Half of the pages are read with a token, half with a certificate."""
    pair, trusted = port.authority.issue(SCRAPER), {"ca_file": str(port.authority.certificate)}
    shown_too = {"cert_file": str(pair.certificate), "key_file": str(pair.key)}
    targets = [
        Target(port.number, page, trusted, token="good")
        if page.endswith(("cadvisor", "probes"))
        else Target(port.number, page, {**trusted, **shown_too})
        for page in PAGES
    ]
    pod_info = {
        "record": "kube_pod_info",
        "expr": "vector(1)",
        "labels": {"namespace": "default", "pod": "p", "node": "n1"},
    }
    rules = tmp_path / "stock.json"
    rules.write_text(json.dumps({"groups": [{"name": "stock", "rules": [pod_info, *RECORDED]}]}))
    async with Prometheus.started(tmp_path, targets, [rules]) as prometheus:
        recorded = {
            each["record"] + (f'{{quantile="{each["labels"]["quantile"]}"}}' if "labels" in each else "")
            for each in RECORDED
        }
        await prometheus.all_have_results([*recorded, *ASKED])
