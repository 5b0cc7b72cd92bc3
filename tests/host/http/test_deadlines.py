"""A server that sends a byte now and then keeps none of its readers beyond their deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.api.errors import KubengineError
from engine.host.http.connections import DeadlineConnection
from engine.node.sources import manifest_url
from engine.plan.history.prometheus import Prometheus, ServerAccess
from engine.plan.reading import live_node
from engine.shadow import kubelet_reader

HEADS = {
    "status": b"HTTP/1.1 2",
    "head": b"HTTP/1.1 200 OK\r\nX: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
}
SECONDS = 0.5


class TricklingServer:
    """Answer every request with `head`, and then with a byte every 50 ms without end."""

    def __init__(self, listener: socket.socket, head: bytes) -> None:
        self._listener, self._head = listener, head
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(self._head)
            while not self._ended.wait(0.05):
                connection.sendall(b"0")

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(params=HEADS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server that trickles this part of its answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = TricklingServer(listener, HEADS[request.param])
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_url, "ANSWER_SECONDS", SECONDS)
    monkeypatch.setattr(kubelet_reader, "TIMEOUT", SECONDS)
    monkeypatch.setattr(live_node, "TIMEOUT", SECONDS)


READERS: dict[str, Callable[[str], object]] = {
    "static pods": lambda url: manifest_url.fetch(url, {}),
    "Prometheus": lambda url: Prometheus(ServerAccess(url), timeout=SECONDS).number("up", 0),
    "node": lambda url: list(live_node.live_documents(url)),
    "kubelet": lambda url: kubelet_reader.KubeletReader(kubelet_reader.KubeletAccess(url)).pods(),
}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("reader", READERS)
def test_a_trickling_answer_ends_at_its_deadline(reader: str, url: str) -> None:
    with pytest.raises(KubengineError, match=r"timed out|no answer within 0\.5 s"):
        READERS[reader](url)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("head", HEADS)
def test_a_trickling_answer_on_a_unix_socket_ends_at_its_deadline(head: str, tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    server = TricklingServer(listener, HEADS[head])
    with pytest.raises(KubengineError, match="timed out"):
        list(live_node.live_documents(str(tmp_path / "s")))
    server.close()


def test_each_request_of_a_connection_has_a_deadline_of_its_own() -> None:
    """The second is sent after more than the time that one may take."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(2):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = threading.Thread(target=serve)
    server.start()
    connection = DeadlineConnection("127.0.0.1", listener.getsockname()[1], timeout=0.5)
    for _ in range(2):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"ok"
        time.sleep(0.6)
    server.join()
    connection.close()
    listener.close()
