"""Run one command in a running container: send its output back at the end, or stream both ways while it runs.

When the runtime closes the connection, the command and everything it started is killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

from engine.runtime.shim import cgroup, identity, linux
from engine.runtime.shim.container import (
    become_ready,
    close_others,
    detach_stdio,
    executed,
    open_namespaces,
    prepared,
    run_child,
)
from engine.runtime.shim.relay import STDERR, STDOUT
from engine.runtime.shim.report import Report
from engine.runtime.shim.stdio import Stdio

KINDS = {
    "ipc": linux.CLONE_NEWIPC, "uts": linux.CLONE_NEWUTS, "net": linux.CLONE_NEWNET,
    "pid": linux.CLONE_NEWPID, "cgroup": linux.CLONE_NEWCGROUP, "mnt": linux.CLONE_NEWNS,
}  # fmt: skip
LINGER = 1.0
LAST_WORDS = 3600.0


def run(request: dict[str, Any], report: Report) -> int:
    linux.set_process_name("kubengine-exec")
    detach_stdio()
    stream = request["stream"]
    namespaces = open_namespaces(request["pid"], request["start_time"], tuple(KINDS))
    # A process id namespace is entered by the next child, all others by the process itself.
    linux.setns(namespaces["pid"], KINDS["pid"])
    stdio = Stdio.make(tty=bool(stream and stream["tty"]), stdin=bool(stream and stream["stdin"]))
    talk, child_talk = socket.socketpair()  # no pipes: other processes could open them through /proc
    child = os.fork()
    if child == 0:
        close_others({*namespaces.values(), *stdio.child_descriptors()}, child_talk)
        run_child(lambda: _prepare(request, namespaces, stdio), child_talk)
    for fd in namespaces.values():
        os.close(fd)
    child_talk.close()
    stdio.close_child()
    answer = prepared(talk)
    if "error" not in answer:
        stdio.receive_terminal()
        answer = executed(talk)
    if "error" in answer:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        report.send(answer)
        return 1
    if stream:
        _stream(report, child, stdio)
    else:
        _collect(report, child, stdio.outputs, request["limit"])
    return 0


def _prepare(
    request: dict[str, Any], namespaces: dict[str, int], stdio: Stdio
) -> tuple[identity.Identity, list[str], dict[str, str]]:
    os.setsid()
    cgroup.join(request["cgroups"])
    cgroup.set_oom_score_adj(request["oom_score_adj"])
    for kind in ("cgroup", "ipc", "uts", "net"):
        linux.setns(namespaces[kind], KINDS[kind])
    # Last, because paths mean the container's from here on.
    linux.setns(namespaces["mnt"], KINDS["mnt"])
    stdio.take()
    uid, gid, groups = request["identity"]
    home = identity.look_up({"user": str(uid), "group": str(gid), "groups": groups, "strict": True}).home
    who = identity.Identity(uid, gid, list(groups), home)
    return who, request["args"], become_ready(who, request)


def _stream(report: Report, child: int, stdio: Stdio) -> None:
    """Copy in both directions until the command has ended and all output is sent, or the runtime closes the
    connection.
    """
    report.send({"started": True})
    relay = stdio.relay(ends_with_input=not stdio.tty)
    relay.add(report.release())
    ended = os.pidfd_open(child)
    relay.watch([ended])
    status, deadline = -1, 0.0
    while relay.outputs or status < 0:
        ready = relay.wait(None if status < 0 else deadline - time.monotonic())
        if not relay.peers:
            _kill_tree(child)
            return
        if ended in ready:
            status = os.waitpid(child, 0)[1]
            relay.forget(ended)
            deadline = time.monotonic() + LINGER
        if relay.stuck:
            deadline = time.monotonic() + LINGER
        elif status >= 0 and not ready and time.monotonic() > deadline:
            break
    relay.finish(_code(status), LAST_WORDS)
    relay.part(LINGER)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _collect(report: Report, child: int, outputs: dict[int, int], limit: int) -> None:
    kept = {STDOUT: bytearray(), STDERR: bytearray()}
    ended = os.pidfd_open(child)
    poll = select.poll()
    for fd in (*outputs, ended, report.fileno()):
        poll.register(fd, select.POLLIN)
    status, deadline = -1, 0.0
    while outputs or status < 0:
        timeout = None if status < 0 else max(0, int((deadline - time.monotonic()) * 1000))
        events = poll.poll(timeout)
        if status >= 0 and (not events or time.monotonic() > deadline):
            break
        for fd, _ in events:
            # The runtime sends nothing here: a readable connection means that it closed it.
            if fd == report.fileno():
                _kill_tree(child)
                return
            if fd == ended:
                status = os.waitpid(child, 0)[1]
                poll.unregister(ended)
                deadline = time.monotonic() + LINGER
            else:
                data = os.read(fd, 65536)
                if data:
                    stream = kept[outputs[fd]]
                    # Read on beyond the limit, or the command would block in a full pipe.
                    stream += data[: max(0, limit - len(stream))]
                else:
                    outputs.pop(fd)
                    poll.unregister(fd)
                    os.close(fd)
    out, error = kept[STDOUT], kept[STDERR]
    report.send({"exit_code": _code(status), "stdout_size": len(out)}, bytes(out + error))


def _kill_tree(child: int) -> None:
    """Send SIGKILL to the child, its descendants and all processes of their sessions, until none is left."""
    sessions: set[int] = {child}
    for _ in range(100):
        table = _processes()
        doomed = {child} if child in table else set()
        grown = True
        while grown:
            grown = False
            for pid, (parent, session) in table.items():
                if pid not in doomed and (parent in doomed or session in sessions):
                    doomed.add(pid)
                    grown = True
            # A daemon leaves its parent but keeps its session, unless it makes one of its own.
            sessions |= {table[pid][1] for pid in doomed if table[pid][1] in doomed}
        if not doomed:
            return
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            child = -1
        time.sleep(0.01)


def _processes() -> dict[int, tuple[int, int]]:
    """Return parent and session of every process that is not already dead."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                table[int(name)] = (int(fields[1]), int(fields[3]))
    return table
