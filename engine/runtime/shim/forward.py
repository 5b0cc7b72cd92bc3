"""Forward host ports: listen on the host and copy each connection into the pod.

The listeners are created in the host's network namespace and stay there when this process enters the pod's,
from which it connects. There is one process per connection: simple, and enough for a runtime that is not for
production. It ends with the sandbox.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Sequence

CONNECTIONS = 256
CHUNK = 64 * 1024

Forward = tuple[str, int, str, int]


def listen(forwards: Sequence[Forward]) -> list[tuple[socket.socket, str, int]]:
    """Bind every host port; `forwards` are host address, host port, pod address, pod port."""
    listeners = []
    for host, host_port, pod, port in forwards:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, host_port))
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), f"host port {host_port}") from None
        listener.listen(128)
        listeners.append((listener, pod, port))
    return listeners


def serve(listeners: Sequence[tuple[socket.socket, str, int]], pause: int) -> None:
    """Serve until process `pause` ends."""
    ended = os.pidfd_open(pause)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    targets = {}
    for listener, pod, port in listeners:
        poll.register(listener, select.POLLIN)
        targets[listener.fileno()] = (listener, pod, port)
    children: set[int] = set()
    while True:
        for fd, _ in poll.poll(5000):
            if fd == ended:
                for child in children:
                    os.kill(child, signal.SIGKILL)
                return
            listener, pod, port = targets[fd]
            connection, _ = listener.accept()
            if len(children) < CONNECTIONS:
                child = os.fork()
                if child == 0:
                    _copy(connection, pod, port)
                children.add(child)
            connection.close()
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}


def _copy(outside: socket.socket, pod: str, port: int) -> None:
    """Copy both directions until both have ended. Never returns."""
    try:
        # Not create_connection: it would import a codec, and the interpreter's files are not visible here.
        inside = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        inside.settimeout(10)
        inside.connect((pod, port))
        inside.settimeout(None)
        open_ends = {outside: inside, inside: outside}
        while open_ends:
            for source in select.select(list(open_ends), [], [])[0]:
                data = source.recv(CHUNK)
                if data:
                    open_ends[source].sendall(data)
                else:
                    open_ends.pop(source).shutdown(socket.SHUT_WR)
    except (OSError, KeyError):
        pass
    finally:
        os._exit(0)
