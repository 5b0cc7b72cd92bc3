"""A kubelet whose answers a test sets."""

from __future__ import annotations

import http.server
from typing import Any


class Fake(http.server.ThreadingHTTPServer):
    """Serve a kubelet's answers, path to status and body; `None` closes the connection half way."""

    answers: dict[str, tuple[int, bytes] | None]
    asked: list[tuple[str, str]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path))
        answer = self.server.answers.get(path, (404, b""))
        if answer is None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"items": [')
            self.close_connection = True
            return
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(answer[1])))
        self.end_headers()
        self.wfile.write(answer[1])

    def log_message(self, *arguments: Any) -> None:
        pass
