"""Runs one command in a running container and sends back what it printed.

When the runtime closes the connection, the command and everything it started is killed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from engine.runtime.shim import cgroup, identity, linux
from engine.runtime.shim.container import (
    become_ready,
    detach_stdio,
    open_namespaces,
    read_status,
    run_child,
)

if TYPE_CHECKING:
    from engine.runtime.shim.spawner import Report

KINDS = {
    "ipc": linux.CLONE_NEWIPC, "uts": linux.CLONE_NEWUTS, "net": linux.CLONE_NEWNET,
    "pid": linux.CLONE_NEWPID, "cgroup": linux.CLONE_NEWCGROUP, "mnt": linux.CLONE_NEWNS,
}  # fmt: skip
LINGER = 1.0


def run(request: dict[str, Any], report: Report) -> int:
    linux.set_process_name("kubengine-exec")
    detach_stdio()
    namespaces = open_namespaces(request["pid"], request["start_time"], tuple(KINDS))
    linux.setns(namespaces["pid"], KINDS["pid"])
    out, child_out = os.pipe()
    error, child_error = os.pipe()
    status_in, status_out = os.pipe()
    go_in, go_out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(status_in)
        os.close(go_out)
        run_child(lambda: _prepare(request, namespaces, child_out, child_error), status_out, go_in)
    for fd in (child_out, child_error, status_out, go_in, *namespaces.values()):
        os.close(fd)
    answer = read_status(status_in) or {"error": "its process died before it could start"}
    if "error" not in answer:
        os.write(go_out, b"g")
        answer = read_status(status_in)
    if "error" in answer:
        os.waitpid(child, 0)
        report.send(answer)
        return 1
    _relay(report, child, {out: "stdout", error: "stderr"}, request["limit"])
    return 0


def _prepare(
    request: dict[str, Any], namespaces: dict[str, int], out: int, error: int
) -> tuple[identity.Identity, list[str], dict[str, str]]:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(error, 2)
    cgroup.join(request["cgroups"])
    cgroup.set_oom_score_adj(request["oom_score_adj"])
    for kind in ("cgroup", "ipc", "uts", "net"):
        linux.setns(namespaces[kind], KINDS[kind])
    linux.setns(namespaces["mnt"], KINDS["mnt"])
    uid, gid, groups = request["identity"]
    home = identity.look_up({"user": str(uid), "group": str(gid), "groups": groups, "strict": True}).home
    who = identity.Identity(uid, gid, list(groups), home)
    return who, request["args"], become_ready(who, request)


def _relay(report: Report, child: int, outputs: dict[int, str], limit: int) -> None:
    kept = {"stdout": bytearray(), "stderr": bytearray()}
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
                    stream += data[: max(0, limit - len(stream))]
                else:
                    outputs.pop(fd)
                    poll.unregister(fd)
                    os.close(fd)
    code = os.waitstatus_to_exitcode(status)
    report.send({"exit_code": code if code >= 0 else 128 - code,
                 **{name: bytes(data) for name, data in kept.items()}})  # fmt: skip


def _kill_tree(child: int) -> None:
    """SIGKILL the child, its descendants and whoever is in their sessions, until none is left."""
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
    """Parent and session of every process that is not already dead."""
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
