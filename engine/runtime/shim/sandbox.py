"""Hold a pod's namespaces, as the pause process of other runtimes does.

Its root is an empty tmpfs, which is also the pod's /dev/shm, so it keeps no file system of the host busy.
The file `up` in the sandbox's directory records that the runtime let it continue. If the pod shares its
process namespace, it is process 1 and reaps orphans.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from engine.runtime.shim import cgroup, forward, linux, network
from engine.runtime.shim.container import detach_stdio
from engine.runtime.shim.report import Report

SHM_SIZE = "64m"


def run(request: dict[str, Any], report: Report) -> int:
    flags = linux.CLONE_NEWNS
    flags |= 0 if request["host_ipc"] else linux.CLONE_NEWIPC
    flags |= 0 if request["host_pid"] else linux.CLONE_NEWPID
    listeners = forward.listen(request["forwards"])
    if not request["host_network"]:
        flags |= linux.CLONE_NEWUTS
        host = network.Netlink()
        linux.unshare(linux.CLONE_NEWNET)
        network.set_up(host, request["network"])
    linux.unshare(flags)
    child = os.fork()
    if child:
        # Both are in the new mount namespace, so the child's pivot takes /proc away from this process too.
        report.close()
        if listeners:
            linux.set_process_name("kubengine-ports")
            detach_stdio()
            linux.give_up_privileges()
            forward.serve(listeners, child)
        return 0
    for listener, _, _ in listeners:
        listener.close()
    try:
        directory = os.open(request["directory"], os.O_RDONLY | os.O_CLOEXEC)
        pid, start_time = linux.own_identity()
        _prepare(request)
    except OSError as error:
        report.send({"error": f"{error.filename}: {error.strerror}"})
        return 1
    report.send({"pid": pid, "start_time": start_time})
    if not report.may_go():
        return 1
    os.close(os.open("up", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
    os.close(directory)
    report.close()
    linux.give_up_privileges()
    if request["seccomp"]:
        linux.install_filter(bytes.fromhex(request["seccomp"]))
    _hold()
    return 0


def _prepare(request: dict[str, Any]) -> None:
    linux.set_process_name("kubengine-pause")
    cgroup.join(request["cgroups"])
    cgroup.set_oom_score_adj(-998)
    if not request["host_network"]:
        socket.sethostname(request["hostname"])
    for key, value in request["sysctls"].items():
        cgroup.write(f"/proc/sys/{key.replace('.', '/')}", value)
    detach_stdio()
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("shm", "/dev", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC,
                f"mode=1777,size={SHM_SIZE}")  # fmt: skip
    os.chdir("/dev")
    linux.pivot_root(".", ".")
    linux.umount(".", linux.MNT_DETACH)
    os.chdir("/")


def _hold() -> None:
    """Reap orphans until asked to end."""
    wanted = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    while signal.sigwait(wanted) == signal.SIGCHLD:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue
