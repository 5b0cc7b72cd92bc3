"""The signals that may stop a container."""

from __future__ import annotations

from collections.abc import Iterator

from engine.api.pod import Pod

_PLAIN = (
    "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL SIGPIPE "
    "SIGPOLL SIGPROF SIGPWR SIGQUIT SIGSEGV SIGSTKFLT SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU "
    "SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIGRTMIN SIGRTMAX"
)
_LINUX = {
    *_PLAIN.split(),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
}
_WINDOWS = frozenset({"SIGKILL", "SIGTERM"})


def stop_signal_problems(pod: Pod, signal: str, field: str) -> Iterator[str]:
    if pod.spec.os is None:
        yield f"{field}: requires spec.os.name"
    elif signal not in (_WINDOWS if pod.spec.os.name == "windows" else _LINUX):
        yield f"{field}: expected a signal of {pod.spec.os.name} such as SIGTERM, got {signal[:64]!r}"
