"""A server with made-up answers that no real Prometheus gives on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""A status code, headers and a body."""


@contextmanager
def fake(answer: Callable[[str, dict[str, str]], Answer]) -> Iterator[str]:
    """Serve made-up answers that no real server gives on request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = answer(self.path, dict(self.headers))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Wed, 21 Oct 2015 07:28:00 GMT"

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def result(series: list[dict[str, Any]]) -> bytes:
    """Return the body of an answer with these series."""
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


def one_container(values: list[list[Any]]) -> bytes:
    """Return the body of an answer with one container; `values` are pairs of a moment and a text."""
    return result([{"metric": {"namespace": "a", "pod": "b", "container": "c"}, "values": values}])
