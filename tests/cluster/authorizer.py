"""An authorizer that a real API server asks before its own; it denies one user the resources that a test
names."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

REASON = "its operator forbids it"


class Authorizer:
    """Answer SubjectAccessReviews at `address` while entered: deny `user` the resources in `denied`, and
    have no opinion on all others."""

    def __init__(self, user: str) -> None:
        self.denied: set[str] = set()
        denied = self.denied

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = review["spec"]
                resource = asked.get("resourceAttributes", {}).get("resource")
                denies = asked.get("user") == user and resource in denied
                status = {"allowed": False, "denied": denies, "reason": REASON if denies else ""}
                answer = json.dumps({**review, "status": status}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Write no log of requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.address = f"http://127.0.0.1:{self._server.server_port}/authorize"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
