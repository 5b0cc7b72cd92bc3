"""Access to a server with recorded use: credentials, redirects, refusals and answers that break off."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import pytest

from engine.api.errors import KubengineError, Refused, Unavailable
from engine.plan.history.prometheus import Prometheus, ServerAccess
from tests.plan.use.fake_prometheus import Answer, fake, result
from tests.plan.use.made_up_use import END


def test_credentials_and_headers_are_sent(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def answer(path: str, headers: dict[str, str]) -> Answer:
        seen.append({name.lower(): value for name, value in headers.items()})
        return 200, {"Content-Encoding": "gzip"}, gzip.compress(result([]))

    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("abc\n")
    password.write_text("secret\n")
    with fake(answer) as address:
        accesses = [
            ServerAccess(address, bearer_token_file=str(token), headers={"X-Scope-OrgID": "team"}),
            ServerAccess(address, username="u", password_file=str(password)),
            ServerAccess(address.replace("//", "//user:pa%40ss@")),
        ]
        for access in accesses:
            Prometheus(access, timeout=10).number("up", END)
    sent = [headers["authorization"] for headers in seen]
    assert sent[0] == "Bearer abc"
    assert [base64.b64decode(text.split()[1]) for text in sent[1:]] == [b"u:secret", b"user:pa@ss"]
    assert seen[0]["x-scope-orgid"] == "team"


def test_the_address_in_messages_has_no_password() -> None:
    assert Prometheus(ServerAccess("https://u:p@host/select/0/prometheus/"), timeout=1).address == (
        "https://host/select/0/prometheus"
    )


OLD_REFUSAL = b'remoteAddr: "1.2.3.4:5"; requestURI: /a?query=' + b"x" * 300 + b"; %b"
"""How VictoriaMetrics 1.79 writes a refusal."""


@pytest.mark.parametrize(
    ("code", "body", "kind", "said"),
    [
        (401, b"no", Refused, "401 Unauthorized: no; give --bearer-token-file"),
        (404, b"", Refused, "has no query API at /"),
        (200, b"<html>", Refused, "does not answer as Prometheus does"),
        (400, b'{"error":"parse error"}', Refused, "parse error"),
        (503, b'{"error":"warming up"}', Unavailable, "warming up"),
        (400, OLD_REFUSAL % b"unsupported path requested", Refused, "has no query API at /"),
        (400, OLD_REFUSAL % b"no such tenant", Refused, ": no such tenant"),
        (200, b'{"status":"error","error":"nothing"}', Refused, "nothing"),
    ],
)  # fmt: skip
def test_refusals_are_said_with_the_address(code: int, body: bytes, kind: type[Exception], said: str) -> None:
    with fake(lambda path, headers: (code, {}, body)) as address:
        server = Prometheus(ServerAccess(address), timeout=10, sleep=lambda seconds: None)
        with pytest.raises(kind, match=r"127\.0\.0\.1") as caught:
            server.number("up", END)
    assert said in str(caught.value)


def test_a_server_that_nobody_runs_is_unavailable() -> None:
    server = Prometheus(ServerAccess("http://127.0.0.1:1"), timeout=5, sleep=lambda seconds: None)
    with pytest.raises(Unavailable, match="cannot be reached"):
        server.number("up", END)


@pytest.mark.parametrize("code", [200, 503])
def test_an_answer_that_breaks_off_is_unavailable(code: int) -> None:
    bodies = [
        ({"Content-Encoding": "gzip"}, gzip.compress(result([]))[:-9]),
        ({"Transfer-Encoding": "chunked"}, b"5\r\nab"),
        ({"Content-Length": "1000"}, b"{"),
    ]
    for headers, body in bodies:
        with fake(lambda path, seen, given=headers, body=body: (code, given, body)) as address:
            server = Prometheus(ServerAccess(address), timeout=10, sleep=lambda seconds: None)
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                server.number("up", END)


def test_credentials_are_not_sent_along_to_another_server(tmp_path: Path) -> None:
    """urllib follows redirects with all headers of the first request."""
    token = tmp_path / "token"
    token.write_text("secret")
    seen: list[str] = []

    def other(path: str, headers: dict[str, str]) -> Answer:
        seen.append(headers.get("Authorization", ""))
        return 200, {}, result([])

    with (
        fake(other) as thief,
        fake(lambda path, headers: (302, {"Location": f"{thief}{path}"}, b"")) as address,
    ):
        access = ServerAccess(address, bearer_token_file=str(token))
        with pytest.raises(Refused, match=f"redirects to another server, {thief}"):
            Prometheus(access, timeout=10).number("up", END)
    assert seen == []


def test_a_redirect_on_the_same_server_is_followed() -> None:
    def answer(path: str, headers: dict[str, str]) -> Answer:
        if path.startswith("/api"):
            return 302, {"Location": f"/prom{path}"}, b""
        return 200, {}, result([{"metric": {}, "value": [END, "3"]}])

    with fake(answer) as address:
        assert Prometheus(ServerAccess(address), timeout=10).number("up", END) == 3


def test_errors_of_the_server_are_the_packages_own() -> None:
    assert issubclass(Refused, KubengineError)
