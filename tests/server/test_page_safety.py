"""The node's pages show no secret and escape every name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.server.http.exchange import Request
from engine.server.port.routes import flagz
from engine.server.port.system_logs import system_logs
from tests.server.secured import SecuredView, configured
from tests.server.served import View


async def test_headers_of_static_pods_are_masked(serve: Any) -> None:
    view = View()
    view.config.static_pod_url_header = {"Authorization": ["Bearer SECRET"]}
    served = await serve(view)
    for page in ("/configz", "/flagz", "/kubengine", "/metrics", "/pods", "/", "/healthz?verbose"):
        assert b"SECRET" not in (await served.get(page)).body, page
    body = (await served.ask("GET", "/configz", unix=True)).body
    assert b"SECRET" not in body
    assert b'"staticPodURLHeader":{"Authorization":["<masked>"]}' in body
    secured = SecuredView(config=configured(static_pod_url_header={"Authorization": ["Bearer SECRET"]}))
    flags = flagz(secured).body
    assert isinstance(flags, bytes)
    assert b"SECRET" not in flags
    assert b"<masked>" in flags


async def test_a_file_name_that_is_no_utf8_is_listed(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")).write_bytes(b"x")
    answer = await system_logs(Request("GET", "/logs/"), tmp_path)
    assert answer.status == 200
    assert isinstance(answer.body, bytes)
    assert b'href="a%FF"' in answer.body
