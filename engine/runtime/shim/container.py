"""Starts a container's process and stays beside it: copies its output, lets clients attach, records its end.

Files in the container's directory, each written once and atomically: `started` (Unix nanoseconds) and
`exit` (code, signal, out-of-memory kills, Unix nanoseconds). SIGUSR1 reopens the log. Who
connects to `attach.sock` is attached. When this process dies, the container is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import Any

from engine.runtime.shim import cgroup, identity, linux, messages, rootfs, terminal
from engine.runtime.shim.logs import LogFile
from engine.runtime.shim.relay import STDERR, STDOUT, Relay
from engine.runtime.shim.report import Report
from engine.runtime.shim.stdio import Stdio

NAMESPACES = {"net": linux.CLONE_NEWNET, "ipc": linux.CLONE_NEWIPC, "uts": linux.CLONE_NEWUTS}
LOG_STREAMS = {STDOUT: b"stdout", STDERR: b"stderr"}
ATTACH = "attach.sock"
MAX_ATTACHED = 16
RESERVED = 256
PATIENCE = 30.0
PREPARE_TIME = 50.0
DRAIN = 2.0


def run(request: dict[str, Any], report: Report) -> int:
    linux.set_process_name("kubengine-shim")
    detach_stdio()
    log = LogFile(request["log_path"])
    pause = open_namespaces(request["pause"], request["pause_start_time"], (*NAMESPACES, "pid", "mnt"))
    # The way back, after a visit in the sandbox's mounts (see `_prepare`).
    host_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    enter_pid_namespace(request, pause)
    # A signal becomes a byte in this pipe, so that the loop over descriptors notices it.
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    stdio = Stdio.make(tty=request["tty"], stdin=request["stdin"])
    attaching = _listen(request["directory"])
    talk, child_talk = socket.socketpair()  # no pipes: other processes could open them through /proc
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        close_others({*pause.values(), host_mounts, *stdio.child_descriptors()}, child_talk)
        run_child(lambda: _prepare(request, pause, host_mounts, stdio), child_talk)
    for fd in (host_mounts, *pause.values()):
        os.close(fd)
    child_talk.close()
    stdio.close_child()
    return _supervise(request, report, (child, talk), (log, stdio, attaching), wake)


def close_others(keep: set[int], talk: socket.socket) -> None:
    """Close all descriptors but these, in the forked child before it enters a container."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != talk.fileno() and fd not in keep:
            with contextlib.suppress(OSError):  # already closed: the descriptor of the listing itself
                os.close(fd)


def run_child(prepare: Any, talk: socket.socket) -> None:
    """Prepare in the forked child, report its identity, wait for permission, and exec. Never returns."""
    try:
        who, arguments, environment = prepare()
        talk.sendall(messages.pack({"user": [who.uid, who.gid, who.groups]}))
        # The runtime records the identity first; without its permission nothing runs.
        if talk.recv(1) != b"g":
            os._exit(1)
        try:
            execute(arguments, environment)
        except OSError as error:
            raise OSError(error.errno, f"exec {arguments[0]!r}: {error.strerror}") from None
    except BaseException as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        talk.sendall(messages.pack({"error": text}))
    finally:
        os._exit(127)


def open_namespaces(pid: int, start_time: int, kinds: tuple[str, ...]) -> dict[str, int]:
    """Open the namespaces of process `pid`, making sure that its number has not been reused."""
    found = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
    if linux.start_time(pid) != start_time:
        raise ProcessLookupError(3, "the process that holds its namespaces is gone")
    return found


def enter_pid_namespace(request: dict[str, Any], pause: dict[str, int]) -> None:
    """Put the next child into the wanted process namespace."""
    mode = request["pid_namespace"]
    if mode == "new":
        linux.unshare(linux.CLONE_NEWPID)
    elif mode == "pod":
        linux.setns(pause["pid"], linux.CLONE_NEWPID)
    elif mode == "target":
        target = open_namespaces(request["target"], request["target_start_time"], ("pid",))
        linux.setns(target["pid"], linux.CLONE_NEWPID)
        os.close(target["pid"])


def detach_stdio() -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def become_ready(who: identity.Identity, request: dict[str, Any]) -> dict[str, str]:
    """Set working directory, limits of privilege and signals; return the environment."""
    os.umask(0o022)
    for fd in (0, 1, 2):
        if os.fstat(fd).st_rdev != os.makedev(1, 3):  # /dev/null belongs to all users
            identity.give(fd, who)  # so that it may open /dev/stdout
    directory = request["cwd"] or "/"
    if not os.path.isdir(directory):
        os.makedirs(directory, mode=0o755, exist_ok=True)
    os.chdir(directory)
    identity.become(
        who,
        keep=request["capabilities"],
        ambient=request["ambient"],
        no_new_privs=request["no_new_privs"],
        system_calls=bytes.fromhex(request["seccomp"]),
    )
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    reset_signals()
    environment = dict(request["env"])
    environment.setdefault("HOME", who.home)
    return environment


def reset_signals() -> None:
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except OSError:
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def execute(arguments: list[str], environment: dict[str, str]) -> None:
    """Execute the program, searching the container's own PATH. Raise FileNotFoundError or PermissionError."""
    program = arguments[0]
    if "/" in program:
        os.execve(program, arguments, environment)
    denied = False
    for directory in environment.get("PATH", "").split(":"):
        candidate = f"{directory or '.'}/{program}"
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                os.execve(candidate, arguments, environment)
            denied = True
    if denied:
        raise PermissionError(13, "permission denied")
    raise FileNotFoundError(2, "executable file not found in $PATH")


def _prepare(
    request: dict[str, Any], pause: dict[str, int], host_mounts: int, stdio: Stdio
) -> tuple[identity.Identity, list[str], dict[str, str]]:
    os.setsid()
    # First of all, so that everything the container causes is counted and limited, mounts included.
    cgroup.join(request["cgroups"])
    cgroup.set_oom_score_adj(request["oom_score_adj"])
    if request["host_ipc"]:
        shm = linux.open_tree("/dev/shm")
    else:
        linux.setns(pause["mnt"], linux.CLONE_NEWNS)
        # The root of the sandbox's mount namespace is the pod's shared /dev/shm.
        shm = linux.open_tree("/", recursive=False)
        linux.setns(host_mounts, linux.CLONE_NEWNS)
    for kind, flag in NAMESPACES.items():
        linux.setns(pause[kind], flag)
    rootfs.enter(request, shm)
    name = stdio.take()
    if name and "/dev" not in {mount["target"] for mount in request["mounts"]}:
        terminal.show_as_console(name)
    who = identity.look_up(request["user"])
    return who, request["args"], become_ready(who, request)


def _listen(directory: str) -> socket.socket:
    """Listen for the runtime's attach connections. The socket is removed with the container's directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(directory)  # a socket's path is limited to 107 bytes, and a relative one is short
    if os.path.lexists(ATTACH):
        os.unlink(ATTACH)
    listener.bind(ATTACH)
    os.chdir("/")
    listener.listen(16)
    listener.setblocking(False)
    return listener


def _supervise(
    request: dict[str, Any],
    report: Report,
    started_child: tuple[int, socket.socket],
    streams: tuple[LogFile, Stdio, socket.socket],
    wake: int,
) -> int:
    log, stdio, attaching = streams
    child, talk = started_child
    answer = prepared(talk)
    if "error" in answer:
        _give_up(request, child)
        report.send(answer)
        return 1
    try:
        # Before the program runs: on a full disk a container could otherwise end without a record of it.
        for name in ("started", "exit"):
            _reserve(f"{request['directory']}/{name}")
    except OSError as error:
        _give_up(request, child)
        report.send({"error": f"{request['directory']}: {error.strerror}"})
        return 1
    stdio.receive_terminal()
    start_time, own = linux.start_time(child), os.getpid()
    report.send({"pid": child, "start_time": start_time, "shim": own,
                 "shim_start_time": linux.start_time(own), **answer})  # fmt: skip
    if not report.may_go():
        _give_up(request, child)
        return 1
    answer = executed(talk)
    if "error" in answer:
        _give_up(request, child)
        report.send(answer)
        return 1
    started = time.time_ns()
    _write(f"{request['directory']}/started", f"{started}\n")
    with contextlib.suppress(ConnectionError):  # a runtime that died meanwhile reads the file
        report.send({"started": started})
    report.close()
    relay = stdio.relay(
        ends_with_input=request["stdin_once"] and not request["tty"],
        detaches=True,
        patience=PATIENCE,
        tee=lambda kind, data: log.write(LOG_STREAMS[kind], data),
        closed=lambda kind: log.flush(LOG_STREAMS[kind]),
    )
    status = _copy_until_exit(child, log, relay, attaching, wake)
    code, number = _ending(status)
    relay.finish(code, DRAIN)
    _record_end(request, code, number)
    relay.part(DRAIN)
    return 0


def prepared(talk: socket.socket) -> dict[str, Any]:
    """Return the identity that the child reports, or its error."""
    talk.settimeout(PREPARE_TIME)
    return messages.receive_from_child(talk) or {"error": "its process died before it could start"}


def executed(talk: socket.socket) -> dict[str, Any]:
    """Let the child continue; return its error if its program could not be started."""
    with contextlib.suppress(BrokenPipeError):
        talk.sendall(b"g")
    answer = messages.receive_from_child(talk)
    talk.close()
    return answer if "error" in answer else {}


def _give_up(request: dict[str, Any], child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    cgroup.kill_all(request["cgroups"])
    cgroup.remove(request["cgroups"])


def _copy_until_exit(child: int, log: LogFile, relay: Relay, attaching: socket.socket, wake: int) -> int:
    ended = os.pidfd_open(child)
    relay.watch([attaching.fileno(), wake, ended])
    status, deadline = -1, 0.0
    while relay.outputs or status < 0:
        ready = relay.wait(None if status < 0 else deadline - time.monotonic())
        for fd in ready:
            if fd == wake and bytes([signal.SIGUSR1]) in os.read(wake, 512):
                log.reopen()
            elif fd == attaching.fileno():
                _attach(relay, attaching)
            elif fd == ended:
                status = os.waitpid(child, 0)[1]
                relay.forget(ended)
                relay.patience = DRAIN
                deadline = time.monotonic() + DRAIN
        # A client that does not read must not delay the record of the end for ever.
        if relay.stuck:
            deadline = time.monotonic() + DRAIN
        elif status >= 0 and not ready and time.monotonic() > deadline:
            break
    for kind in relay.outputs.values():
        log.flush(LOG_STREAMS[kind])
    return status


def _attach(relay: Relay, attaching: socket.socket) -> None:
    try:
        connection, _ = attaching.accept()
    except OSError:
        return
    if len(relay.peers) < MAX_ATTACHED:
        relay.add(connection)
    else:
        connection.close()


def _ending(status: int) -> tuple[int, int]:
    """Return exit code and signal number (0 for none)."""
    code = os.waitstatus_to_exitcode(status)
    # As a shell does: 128 plus the number of the signal.
    return (code, 0) if code >= 0 else (128 - code, -code)


def _record_end(request: dict[str, Any], code: int, number: int) -> None:
    now = time.time_ns()
    groups = request["cgroups"]
    cgroup.kill_all(groups)
    # The count is in the cgroup, so it is read before that is removed.
    text = f"{code} {number} {cgroup.oom_kills(groups)} {now}\n"
    cgroup.remove(groups)
    _write(f"{request['directory']}/exit", text)


def _reserve(path: str) -> None:
    """Reserve the space for `_write`, which may happen when the file system is full."""
    with open(f"{path}.partial", "w", encoding="ascii") as file:
        file.write(" " * RESERVED)


def _write(path: str, text: str) -> None:
    """Write one line twice, so that a reader can detect damage."""
    with open(f"{path}.partial", "r+", encoding="ascii") as file:
        file.write((text + text).ljust(RESERVED))
    # A rename within a directory needs no space, unlike a new file.
    os.rename(f"{path}.partial", path)
