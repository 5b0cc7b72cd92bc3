"""Series that a node shows, by page, with all that makes it show them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.cgroups.manager import CgroupManager
from engine.csi.driver_client import CsiDriverClient
from engine.dra.driver_client import DraDriverClient
from engine.metrics import Registry
from engine.node import Node
from engine.server.http.exchange import Request, Response
from engine.server.http.request_metrics import ServerRequestMetrics
from engine.server.metrics_text import exposition
from engine.server.routes import Routes
from engine.server.volume_metrics import volume_metrics
from tests.cluster_rig import Joined
from tests.server.busy import BusyView, let_it_be_busy

CLAIM: dict[str, Any] = {
    "pvcRef": {"namespace": "n", "name": "c"},
    "volumeHealthStats": {"abnormal": False},
    **dict.fromkeys(
        ("capacityBytes", "availableBytes", "usedBytes", "inodes", "inodesFree", "inodesUsed"), 1
    ),
}
PAGES = ("/metrics", "/metrics/probes", "/metrics/slis")
OF_CGROUPS = ("/metrics/cadvisor", "/metrics/resource")


async def shown_series(
    joined: Joined, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, str]]:
    """Return, by page, the name and type of each series: of a node, a busy node's cgroups, a claim and a
    storage driver."""
    node = await _node_with_certificates(joined, monkeypatch)
    found = {page: _announced(await _text(Routes(node), page)) for page in PAGES}
    busy = Routes(BusyView(tree=tree))
    found |= {page: _announced(await _text(busy, page)) for page in OF_CGROUPS}
    of_driver = Registry()
    CsiDriverClient("d", tree / "none.sock", of_driver).close()
    DraDriverClient("d", tree / "none.sock", "v1.DRAPlugin", of_driver).close()
    found["/metrics"] |= _announced("".join((*volume_metrics([CLAIM]), *exposition(of_driver))))
    return found


async def _node_with_certificates(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> Node:
    let_it_be_busy(monkeypatch)
    joined.config.server_tls_bootstrap = True
    joined.config.rotate_certificates = True
    node = await joined.start()
    ServerRequestMetrics(node.registry, "readonly")
    CgroupManager(config=joined.config, capacity={"cpu": 4000, "memory": 1 << 33}, registry=node.registry)
    return node


async def _text(routes: Routes, page: str) -> str:
    response = await routes.answer(Request("GET", page))
    assert isinstance(response, Response)
    assert response.status == 200
    assert not hasattr(response.body, "__anext__")
    pieces: Any = [response.body] if isinstance(response.body, bytes) else response.body
    return b"".join(pieces).decode()


def _announced(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
