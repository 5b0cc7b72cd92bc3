"""Connect the runtime to the shims: start the spawner, send requests, receive messages of forked
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.api.errors import Bug, Refused
from engine.runtime.shim import linux, messages
from engine.runtime.shim.report import SOCKET

SHIM = Path(__file__).parent / "shim"
ANSWER_TIMEOUT = 60.0


class Conversation:
    """Hold the connection of one forked process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, timeout: float | None = ANSWER_TIMEOUT) -> dict[str, Any]:
        """Return the next message. Raise Refused if the connection ended or nothing arrives in time."""
        try:
            async with asyncio.timeout(timeout):
                return await _read(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Refused("its helper process died", subject="shim") from None

    def go(self) -> None:
        self._writer.write(b"g")

    async def gone(self, timeout: float) -> None:
        """Close the connection and wait until the process has ended, or `timeout` seconds."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(timeout):
                while await self._reader.read(65536):
                    pass
        self.close()

    def release(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection itself, for data other than messages."""
        return self._reader, self._writer

    def close(self) -> None:
        self._writer.close()


class Spawner:
    """Run one bare interpreter that forks shims, and restart it when it dies. `directory` holds
    its socket.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._waiting: dict[str, asyncio.Future[Conversation]] = {}
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        path = self._directory / SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Connect through the descriptor, because the path may be longer than a socket's name can be.
            listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        finally:
            os.close(directory)
        path.chmod(0o600)
        self._server = await asyncio.start_server(self._accept, sock=listener)

    async def stop(self) -> None:
        self._hang_up()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait, 10)
            self._process = None
        if self._server is not None:
            self._server.close()
            self._server = None
        (self._directory / SOCKET).unlink(missing_ok=True)

    async def ask(self, request: dict[str, Any]) -> Conversation:
        """Fork a process for `request`; return once it has connected."""
        for attempt in (1, 2):
            # Only a process that was forked for this request knows it: the socket cannot be used by others.
            token = secrets.token_hex(16)
            body = messages.pack({**request, "report": str(self._directory), "token": token})
            waiting: asyncio.Future[Conversation] = asyncio.get_running_loop().create_future()
            self._waiting[token] = waiting
            try:
                await asyncio.shield(self._send(body))  # half a message would be fatal
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    return await waiting
            except TimeoutError:
                raise Refused("its helper process did not call back", subject="shim") from None
            except ConnectionError:
                # The spawner died. A process that it still forked finds its token unknown and ends.
                if attempt == 2:
                    break
            finally:
                self._waiting.pop(token, None)
        raise Refused("the spawner keeps failing", subject="shim")

    async def _send(self, data: bytes) -> None:
        async with self._lock:
            if self._requests is None:
                self._launch()
            assert self._requests is not None
            await asyncio.get_running_loop().sock_sendall(self._requests, data)

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        # A container that gets hold of the interpreter's descriptor could otherwise overwrite it on the host
        # (CVE-2019-5736).
        program = linux.read_only_program(sys.executable)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # Isolated and without site packages: a shim lives as long as its container, so it has to
                    # be small.
                    [sys.executable, "-I", "-S", str(SHIM), str(theirs.fileno())],
                    executable=f"/proc/{os.getpid()}/fd/{program}",
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={"PATH": os.environ.get("PATH", "")},
                )
        finally:
            os.close(program)
        ours.setblocking(False)
        self._requests = ours
        asyncio.get_running_loop().add_reader(ours, self._on_death)

    def _on_death(self) -> None:
        """Handle the spawner's death: it never writes, so a readable socket means that it is gone."""
        self._hang_up()
        if self._process is not None:
            self._process.wait()
            self._process = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the spawner died"))

    def _hang_up(self) -> None:
        if self._requests is not None:
            asyncio.get_running_loop().remove_reader(self._requests)
            self._requests.close()
            self._requests = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                hello = await _read(reader)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            writer.close()
            return
        waiting = self._waiting.get(hello.get("token", ""))
        if waiting is None or waiting.done():
            writer.close()
            return
        waiting.set_result(Conversation(reader, writer))


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read a message, with the bytes that follow it as `content`."""
    try:
        body, content = messages.sizes(await reader.readexactly(messages.HEAD.size))
        message = messages.unpack(await reader.readexactly(body))
    except ValueError as error:
        raise Bug(str(error), subject="shim") from None
    message["content"] = await reader.readexactly(content)
    return message
