"""Finds a probe without a command that is equivalent to one with a command. Pure.

A command costs a process of the runtime, one in the container, and their start; a request costs a
connection. Only certain equivalents are named: a command that does more than a request has none.
"""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from engine.api.quantity import decimal

_SHELLS = ("sh", "bash", "ash", "dash")
_BEYOND_ONE_COMMAND = frozenset("|&;<>()$`*?[]~#\n")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
_INSIDE = '"network": "pod"'
_METHODS = ("-d", "-X", "-F", "-T", "--data", "--request", "--post", "--method", "-H", "--header", "--cacert")
_TAKE_A_VALUE = (
    "-o", "-m", "-T", "-O", "-t", "-w", "--max-time", "--connect-timeout", "--output", "--timeout",
)  # fmt: skip


def cheaper(command: Sequence[str]) -> str:
    """Return the equivalent as it is written in a manifest and in the annotation, or empty texts."""
    words = _one_command(command)
    if not words:
        return ""
    name, arguments = os.path.basename(words[0]), words[1:]  # noqa: PTH119 - a name in somebody's image
    if name == "wget" or (name == "curl" and _fails_by_status(arguments)):
        return _get(arguments)
    if name in ("grpc_health_probe", "grpc-health-probe"):
        return _grpc(arguments)
    if name in ("nc", "ncat", "netcat"):
        return _connect(arguments)
    return ""


def _one_command(command: Sequence[str]) -> list[str]:
    """Return the words of a command, or of the only command of a shell; none if it does more."""
    words = list(command)
    if words and os.path.basename(words[0]) in _SHELLS:  # noqa: PTH119
        if len(words) != 3 or words[1] not in ("-c", "-ec", "-lc"):
            return []
        text = words[2].strip().removesuffix("|| exit 1").strip().removeprefix("exec ")
        if _BEYOND_ONE_COMMAND & set(text):
            return []
        try:
            words = shlex.split(text)
        except ValueError:
            return []
    return words


def _fails_by_status(arguments: Sequence[str]) -> bool:
    """Tell whether curl fails where a probe does; by default it accepts any response."""
    return any(
        each.startswith("--fail") or (each.startswith("-") and not each.startswith("--") and "f" in each)
        for each in arguments
    )


def _get(arguments: Sequence[str]) -> str:
    if any(each.startswith(_METHODS) and not each.startswith("-T") for each in arguments):
        return ""
    urls = [
        each
        for before, each in zip(["", *arguments], arguments, strict=False)
        if not each.startswith("-") and before not in _TAKE_A_VALUE
    ]
    if len(urls) != 1:
        return ""
    url = urls[0] if "://" in urls[0] else f"http://{urls[0]}"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or host not in _LOOPBACK or parts.username is not None:
        return ""
    scheme = ", scheme HTTPS" if parts.scheme == "https" else ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"httpGet, port {port or (443 if scheme else 80)}, path {path}{scheme}, {_INSIDE}"


def _grpc(arguments: Sequence[str]) -> str:
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            return ""
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        given[name] = value
    host, _, port = given.pop("addr", "").rpartition(":")
    service, tls = given.pop("service", ""), "tls" in given
    known = {"tls", "tls-no-verify", "connect-timeout", "rpc-timeout", "v"}
    if host.strip("[]") not in _LOOPBACK or decimal(port) is None or given.keys() - known:
        return ""
    words = ["grpc", f"port {port}", *([f"service {service}"] if service else []), _INSIDE]
    return ", ".join([*words, *(['"tls": true'] if tls else [])])


def _connect(arguments: Sequence[str]) -> str:
    flags = "".join(each.lstrip("-") for each in arguments if each.startswith("-"))
    targets = [
        each
        for before, each in zip(["", *arguments], arguments, strict=False)
        if not each.startswith("-") and before not in ("-w", "-i")
    ]
    if "z" not in flags or "u" in flags or len(targets) != 2 or targets[0] not in _LOOPBACK:
        return ""
    return f"tcpSocket, port {targets[1]}, {_INSIDE}" if decimal(targets[1]) is not None else ""
