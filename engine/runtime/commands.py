"""Connect the runtime to commands in containers, attached clients and connections into pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from engine.api.errors import Bug, Refused
from engine.host.network_namespace import socket_in
from engine.runtime.objects.backend import ExecResult
from engine.runtime.objects.failures import TimedOut
from engine.runtime.objects.records import RuntimeContainer, Sandbox
from engine.runtime.requests import command_request, host_network
from engine.runtime.shim import relay
from engine.runtime.shim.container import ATTACH, open_namespaces
from engine.runtime.spawning import Spawner
from engine.runtime.state import BackendNotes, StateDirectory
from engine.runtime.streaming.protocol import CommandTicket

CONNECT_TIMEOUT = 10.0
LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class ProcessStream:
    """Stream a process's standard input and output through a shim.

    Closing it kills a command, and leaves a container running.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, subject: str) -> None:
        self._reader = reader
        self._writer = writer
        self._subject = subject

    async def read(self) -> tuple[int, bytes] | int:
        """Return the kind and bytes of some output, or the exit code. Raise Refused if the shim closed the
        connection.
        """
        try:
            kind, size = relay.FRAME.unpack(await self._reader.readexactly(relay.FRAME.size))
            if size > relay.CHUNK:
                raise Bug(f"a frame of {size} bytes", subject="shim")
            data = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Refused("its helper process has disconnected", subject=self._subject) from None
        if kind == relay.EXIT:
            return int(relay.CODE.unpack(data)[0])
        return kind, data

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), relay.CHUNK):
            await self._send(relay.STDIN, data[start : start + relay.CHUNK])

    def end_input(self) -> None:
        self._writer.write(relay.FRAME.pack(relay.STDIN, 0))

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(relay.RESIZE, relay.SIZE.pack(columns, rows))

    def close(self) -> None:
        self._writer.close()

    async def _send(self, kind: int, data: bytes) -> None:
        self._writer.write(relay.FRAME.pack(kind, len(data)) + data)
        await self._writer.drain()


class ProcessCommands:
    """Run commands; `notes` returns what the backend has recorded about a container."""

    def __init__(
        self, spawner: Spawner, state: StateDirectory, notes: Callable[[RuntimeContainer], BackendNotes]
    ) -> None:
        self._spawner = spawner
        self._state = state
        self._notes = notes

    async def exec_sync(
        self, container: RuntimeContainer, command: Sequence[str], timeout: float | None
    ) -> ExecResult:
        subject = f"container {container.id}"
        talk = await self._spawner.ask(command_request(container, self._notes(container).request, command))
        try:
            message = await talk.receive(timeout)
        except TimeoutError:
            await talk.gone(5)
            raise TimedOut(
                f"command {command[0]!r} timed out: {timeout:g}s exceeded", subject=subject
            ) from None
        finally:
            talk.close()
        if "error" in message:
            raise Refused(message["error"], subject=subject)
        content, size = message["content"], message["stdout_size"]
        return ExecResult(content[:size], content[size:], message["exit_code"])

    async def open_command(self, ticket: CommandTicket) -> ProcessStream:
        """Start a command whose streams are copied while it runs. Raise Refused if it does not start."""
        subject = f"container {ticket.container.id}"
        request = command_request(
            ticket.container,
            self._notes(ticket.container).request,
            ticket.command,
            {"stdin": ticket.stdin, "tty": ticket.tty},
        )
        talk = await self._spawner.ask(request)
        try:
            message = await talk.receive()
            if "error" in message:
                raise Refused(message["error"], subject=subject)
        except BaseException:
            talk.close()
            raise
        return ProcessStream(*talk.release(), subject)

    async def open_attachment(self, ticket: CommandTicket) -> ProcessStream:
        """Connect to the streams of a running container. Raise Refused if its shim does not answer."""
        directory = os.open(self._state.directory(ticket.container), os.O_PATH | os.O_CLOEXEC)
        subject = f"container {ticket.container.id}"
        try:
            # Connect through the descriptor, because the path may be longer than a socket's name can be.
            streams = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{ATTACH}")
        except OSError as error:
            raise Refused(f"can't attach: {error.strerror}", subject=subject) from None
        finally:
            os.close(directory)
        return ProcessStream(*streams, subject)

    async def connect(self, sandbox: Sandbox, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to `port` on the loopback interface of the pod's network. Raise OSError."""
        failure: OSError | None = None
        for family, address in LOOPBACK:
            made = await asyncio.to_thread(_socket_in, sandbox, family)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await asyncio.get_running_loop().sock_connect(made, (address, port))
                return await asyncio.open_connection(sock=made)
            except OSError as error:  # including TimeoutError
                made.close()
                failure = failure or error
            except BaseException:
                made.close()
                raise
        assert failure is not None
        raise failure


def _socket_in(sandbox: Sandbox, family: socket.AddressFamily) -> socket.socket:
    """Return a socket in the pod's network namespace. Raise `OSError`."""
    if host_network(sandbox):
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    namespace = open_namespaces(sandbox.pid, sandbox.start_time, ("net",))["net"]
    with contextlib.closing(os.fdopen(namespace, "rb")):
        return socket_in(namespace, family)
