"""Create the standard streams of a process that a shim starts: pipes, or a terminal of the
container's own.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from engine.runtime.shim import terminal
from engine.runtime.shim.relay import STDERR, STDOUT, Relay


class Stdio:
    """Create streams before the fork; then the child calls `take`, and the shim `close_child` and
    `receive_terminal`.

    `outputs` maps the shim's readable descriptors to the streams that they carry.
    """

    def __init__(
        self, child: tuple[int, int, int], stdin: int, outputs: dict[int, int],
        handover: tuple[socket.socket, socket.socket] | None,
    ) -> None:  # fmt: skip
        self.outputs = outputs
        self.tty = handover is not None
        self._child = child
        self._stdin = stdin
        self._handover = handover

    @classmethod
    def make(cls, *, tty: bool, stdin: bool) -> Stdio:
        """Create the streams. Without `stdin` (or a terminal), input is /dev/null."""
        if tty:
            return cls((-1, -1, -1), -1, {}, socket.socketpair())
        out, child_out = os.pipe()
        error, child_error = os.pipe()
        child_in, held = os.pipe() if stdin else (os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1)
        return cls((child_in, child_out, child_error), held, {out: STDOUT, error: STDERR}, None)

    def child_descriptors(self) -> set[int]:
        """Return the descriptors that the child needs until it calls `take`."""
        return {self._handover[1].fileno()} if self._handover is not None else set(self._child)

    def take(self) -> str:
        """Install the streams as 0, 1 and 2, in the child once it is in the container and leads a session.

        Return the terminal's name, empty if there is none.
        """
        if self._handover is not None:
            return terminal.become_controlling(self._handover[1])
        for number, fd in enumerate(self._child):
            os.dup2(fd, number)
        return ""

    def close_child(self) -> None:
        """Close the child's ends, in the shim after the fork."""
        if self._handover is not None:
            self._handover[1].close()
        for fd in self._child:
            if fd >= 0:
                os.close(fd)

    def receive_terminal(self) -> None:
        """Receive the terminal, in the shim once the child has reported that it is ready."""
        if self._handover is not None:
            self._stdin = terminal.receive_master(self._handover[0])
            self.outputs = {self._stdin: STDOUT}

    def relay(self, **options: Any) -> Relay:
        return Relay(stdin=self._stdin, outputs=self.outputs, terminal=self.tty, **options)
