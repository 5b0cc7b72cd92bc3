"""The measured cost of a scrape, with stand-ins for an agent's pages."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.errors import Unavailable
from engine.bench import scraping
from engine.bench.procfs import usage
from engine.bench.scraping import PAGES

BURNT = 0.05


class Pages(BaseHTTPRequestHandler):
    """Serve an agent's pages: `busy` takes CPU time, and `refused` answers 500."""

    busy = PAGES["cadvisor"]
    refused = ""
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        began = usage(os.getpid()).cpu
        while self.path == self.busy and usage(os.getpid()).cpu < began + BURNT:
            pass
        self.send_response(500 if self.path == self.refused else 200)
        self.end_headers()
        self.wfile.write(b"x" * 2000)

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Pages]], Any]]:
    servers = []

    def made(pages: type[Pages]) -> Any:
        server = HTTPServer(("127.0.0.1", 0), pages)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        part = SimpleNamespace(pid=os.getpid(), check=lambda: None)
        workspace = SimpleNamespace(ports={"read_only": server.server_port}, path=Path())
        agent = SimpleNamespace(part=part, workspace=workspace, kind=SimpleNamespace(label="agent"))
        return SimpleNamespace(running=agent, seconds=0.0, watch=lambda seconds: None)

    yield made
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_cost_of_a_page_is_separated_from_other_pages_and_idle_time(
    session: Callable[[type[Pages]], Any],
) -> None:
    pages: Any = type("P", (Pages,), {"paths": []})
    figures = scraping.scraping(session(pages))
    assert figures["cadvisor_cpu_ms"] >= BURNT * 1e3
    assert figures["cadvisor_kb"] == figures["resource_kb"] == 2.0
    assert figures["resource_cpu_ms"] < figures["cadvisor_cpu_ms"]
    assert figures["between_cpu_ms_per_s"] >= 0
    assert pages.paths == [*PAGES.values()] * 2, "the first reading of each page is not counted"


def test_a_refused_page_is_reported_with_its_message(session: Callable[[type[Pages]], Any]) -> None:
    pages = type("P", (Pages,), {"paths": [], "refused": "/stats/summary"})
    with pytest.raises(Unavailable, match="agent: /stats/summary answers 500: b'xxx"):
        scraping.scraping(session(pages))
