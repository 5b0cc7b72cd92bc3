"""The client of a running agent: where it looks, and how failures read."""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from engine.api.errors import InvalidInput, Refused, Unavailable
from engine.cli.agent import client
from engine.cli.agent.client import AgentClient
from engine.cli.agent.paths import SOCKET_NAME


class Handler(http.server.BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/kubengine/devices?resource=a%2Fb": (200, b'{"components": 1}'),
        "/kubengine/devices/release?pod=p": (200, b'"done"'),
        "/bad": (400, b'{"error": "colour: expected red"}'),
        "/refused": (409, b'{"error": "in use"}'),
        "/away": (503, b'{"error": "runtime gone"}'),
        "/text": (500, b"<html>"),
    }

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, b'{"error": "no such page"}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with UnixServer(str(tmp_path / SOCKET_NAME), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path
        server.shutdown()
        thread.join()


def test_a_root_directory_or_its_socket_is_an_address(root: Path) -> None:
    for address in (str(root), str(root / SOCKET_NAME)):
        agent = AgentClient(address)
        assert agent.describe("devices", resource="a/b") == {"components": 1}
        assert agent.act("devices", "release", pod="p") == "done"


def test_failures_carry_the_agents_message(root: Path) -> None:
    agent = AgentClient(str(root))
    for path, kind, words in (
        ("/bad", InvalidInput, "colour: expected red"),
        ("/nowhere", InvalidInput, "no such page"),
        ("/refused", Refused, "in use"),
        ("/away", Unavailable, "runtime gone"),
        ("/text", Refused, "<html>"),
    ):
        with pytest.raises(kind, match=words):
            agent.get(path)


def test_an_agent_without_an_answer_is_unavailable(tmp_path: Path) -> None:
    import socket

    path = tmp_path / SOCKET_NAME
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(Unavailable, match="timed out"):
            AgentClient(str(path), timeout=0.2).get("/pods")


def test_a_command_names_the_socket_that_cannot_be_reached_and_asks_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read-only port refuses commands, which would hide the reason why the socket failed."""
    monkeypatch.setattr(client, "default_socket", lambda *_: tmp_path / SOCKET_NAME)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(client, "READ_ONLY_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            assert AgentClient().describe("devices", resource="a/b") == {"components": 1}
            with pytest.raises(Unavailable, match=r"tried .*kubengine\.sock .No such file") as caught:
                AgentClient().act("devices", "release", pod="p")
            assert "http://" not in str(caught.value)
        finally:
            server.shutdown()
            thread.join()
