"""A server that answers probes on every loopback address: HTTP on 8080, gRPC health on 9090, TCP on both.

One process, one epoll: `python answering.py` prints "ready" and serves until its standard input closes.
"""

from __future__ import annotations

import select
import socket
import sys

HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
GRPC = (
    b"\0\0\0\4\0\0\0\0\0"  # SETTINGS
    b"\0\0\1\1\4\0\0\0\1\x88"  # :status 200
    b"\0\0\7\0\0\0\0\0\1\0\0\0\0\2\x08\1"  # SERVING
    b"\0\0\x0f\1\5\0\0\0\1\x40\x0bgrpc-status\0010"  # trailers
)
ANSWERS = {8080: HTTP, 9090: GRPC}


def main() -> None:
    poll = select.epoll()
    listeners = {}
    connections: dict[int, tuple[socket.socket, bytes]] = {}
    for port in ANSWERS:
        listener = socket.create_server(("0.0.0.0", port), backlog=4096)
        listener.setblocking(False)
        listeners[listener.fileno()] = listener, port
        poll.register(listener, select.EPOLLIN)
    poll.register(0, select.EPOLLIN | select.EPOLLHUP)
    print("ready", flush=True)  # noqa: T201
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                return
            if fd in listeners:
                listener, port = listeners[fd]
                try:
                    while True:
                        connection, _ = listener.accept()
                        connection.setblocking(False)
                        connections[connection.fileno()] = connection, ANSWERS[port]
                        poll.register(connection, select.EPOLLIN)
                except BlockingIOError:
                    continue
            connection, answer = connections[fd]
            try:
                if connection.recv(65536):
                    connection.send(answer)
                    continue
            except OSError:
                pass
            del connections[fd]
            connection.close()


if __name__ == "__main__":
    sys.exit(main())
