"""Claiming unix sockets: nobody's live socket is taken, and nobody gets in before the mode is set."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import grpc
import pytest

from engine.api.errors import InvalidInput, Refused
from engine.host.sockets import Claim, claim, is_served, nameless

Claimer = Callable[[Path], tuple[socket.socket, Claim]]


@pytest.fixture
def claimer() -> Iterator[Claimer]:
    with contextlib.ExitStack() as stack:

        def make(path: Path) -> tuple[socket.socket, Claim]:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))

            def bind(at: str) -> None:
                server.bind(at)
                server.listen(1)

            return server, claim(path, bind)

        yield make


def test_a_socket_is_served_and_removed_with_its_claim(tmp_path: Path, claimer: Claimer) -> None:
    path = tmp_path / "s"
    server, held = claimer(path)
    assert is_served(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.close()
    assert not is_served(path)
    _, second = claimer(path)
    held.release()
    assert is_served(path), "what is another's stays"
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_nobody_can_enter_before_the_mode_is_set(tmp_path: Path) -> None:
    seen: list[int] = []
    with socket.socket(socket.AF_UNIX) as server:

        def bind(at: str) -> None:
            server.bind(at)
            server.listen()
            seen.append(stat.S_IMODE(os.stat(os.path.dirname(at) + "/.").st_mode))
            assert not (tmp_path / "s").exists()

        claim(tmp_path / "s", bind, mode=0o660)
    assert seen == [0o700]
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660


def test_a_live_socket_is_never_removed(tmp_path: Path, claimer: Claimer) -> None:
    path = tmp_path / "s"
    claimer(path)
    with contextlib.ExitStack() as stack:
        for _ in range(5):  # its queue is full: a client would have to wait
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        with pytest.raises(Refused, match="another process serves") as refused:
            claimer(path)
    assert refused.value.errno == errno.EADDRINUSE
    assert is_served(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.EACCES, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_an_undecidable_socket_counts_as_alive(
    tmp_path: Path, claimer: Claimer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "s"
    claimer(path)[0].close()

    def connect(self: socket.socket, address: str) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("engine.host.sockets.socket.socket.connect", connect)
        with pytest.raises(Refused, match=str(path)):
            claimer(path)
    assert path.is_socket()
    claimer(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_file_that_is_no_socket_stays(tmp_path: Path, claimer: Claimer, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "link":
        path.symlink_to("x")
    else:
        path.touch() if kind == "file" else path.mkdir()
    with pytest.raises(Refused, match="not a socket"):
        claimer(path)
    assert os.path.lexists(path)


def test_long_path_is_refused_before_anything_is_made(tmp_path: Path, claimer: Claimer) -> None:
    with pytest.raises(InvalidInput, match="107"):
        claimer(tmp_path / ("x" * 108))
    assert list(tmp_path.iterdir()) == []


def test_one_of_many_claimers_gets_a_dead_socket(tmp_path: Path, claimer: Claimer) -> None:
    path = tmp_path / "s"
    claimer(path)[0].close()
    together = Barrier(8)

    def attempt(_: int) -> bool:
        together.wait()
        try:
            claimer(path)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert is_served(path)


def test_a_nameless_socket_is_reached_by_its_holder_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:

        def bind(at: str) -> None:
            server.bind(at)
            server.listen(1)

        held = nameless(tmp_path, bind)
        assert list(tmp_path.iterdir()) == []
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(f"/proc/self/fd/{held}")
            accepted, _ = server.accept()
            with accepted:
                accepted.send(b"x")
                assert peer.recv(1) == b"x"
        os.close(held)


async def test_grpc_serves_on_a_claimed_socket(tmp_path: Path) -> None:
    server = grpc.aio.server()
    held = claim(tmp_path / "s", lambda at: server.add_insecure_port(f"unix:{at}"))
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 's'}") as channel:
        await channel.channel_ready()
    await server.stop(None)
    held.release()
    assert list(tmp_path.iterdir()) == []
