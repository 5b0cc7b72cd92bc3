"""Open a terminal inside a container, so that it has a name there, and pass its master to a shim."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import termios

from engine.runtime.shim import linux

CONSOLE = "/dev/console"


def become_controlling(handover: socket.socket) -> str:
    """Open a terminal in the container's process, send its master over `handover`, and make it 0, 1, 2.

    Return the terminal's name. The process must lead a session that has no terminal yet.
    """
    master, slave = os.openpty()
    handover.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [master]))])
    os.close(master)
    handover.close()
    name = os.ttyname(slave)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.close(slave)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return name


def receive_master(handover: socket.socket) -> int:
    """Receive the master from the process, in the shim."""
    space = socket.CMSG_LEN(array.array("i").itemsize)
    _, [(_, _, data)], _, _ = handover.recvmsg(1, space)
    handover.close()
    master = array.array("i", data)[0]
    os.set_inheritable(master, False)
    return master


def show_as_console(name: str) -> None:
    """Make the terminal the container's /dev/console."""
    if not os.path.lexists(CONSOLE):
        os.close(os.open(CONSOLE, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    linux.mount(name, CONSOLE, "", linux.MS_BIND)
