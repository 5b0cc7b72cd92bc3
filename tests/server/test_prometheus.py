"""Debian's Prometheus reads a port over TLS, and the stock rules about containers have results."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.server.port.server import SecurePort
from engine.testing.apiserver import ApiServer
from tests.ports import free_port
from tests.server.busy import BusyView, let_it_be_busy
from tests.server.prometheus import Prometheus, Target, needs_prometheus, promtool
from tests.server.secured import Secured, Shown, configured
from tests.server.stock_rules import ASKED, RECORDED

pytestmark = needs_prometheus

PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes")
SCRAPER = "system:serviceaccount:monitoring:prometheus"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "server") as running:
        running.tokens["good"] = SCRAPER
        running.reviews.allowed = {(SCRAPER, "metrics")}
        yield running


@pytest.fixture
async def port(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secured]:
    let_it_be_busy(monkeypatch)
    kubeconfig = load_kubeconfig(server.kubeconfig("system:node:n1"))
    client = ApiClient(kubeconfig, Credentials(kubeconfig, clock=time.time), user_agent="test", timeout=5.0)
    config = configured()
    config.authentication.x509.client_ca_file = str(server.authority.certificate)
    view = BusyView(config=config, logs=tmp_path, api=client, tree=tmp_path / "cgroup")
    view.serving_certificate = Shown(server.authority.issue("n1", alternatives="IP:127.0.0.1"))
    own = SecurePort(view, "127.0.0.1", number := free_port())
    await own.start()
    yield Secured(view, own, number, server.authority)
    await own.stop()
    client.close()


async def test_promtool_finds_nothing_wrong_with_any_page(port: Secured) -> None:
    """But for two names that cAdvisor gave."""
    for page in PAGES:
        answer = await port.ask("GET", page, token="good")
        assert answer.status == 200
        _, complaints = await promtool("check", "metrics", stdin=answer.body)
        strange = ("container_memory_failcnt", "container_fs_inodes_total")
        assert [line for line in complaints.splitlines() if not line.startswith(strange)] == [], page


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
