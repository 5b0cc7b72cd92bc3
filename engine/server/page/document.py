"""Serves the page as a single document; a browser requests nothing else but `/live`."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from engine.server.http.exchange import Response

_HERE = Path(__file__).parent


@cache
def page() -> Response:
    """Return the document, with a policy that lets browsers run only its own script."""
    style, script = (_HERE / "page.css").read_text(), (_HERE / "page.js").read_text()
    text = (_HERE / "page.html").read_text().replace("{style}", style).replace("{script}", script)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    )
    return Response(200, "text/html; charset=utf-8", text.encode(), headers)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
