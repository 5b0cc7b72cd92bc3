"""Opens the network namespaces of pods, found through the runtime, for probes from inside.

A descriptor keeps its namespace alive, so the caller closes it when the sandbox is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
from concurrent.futures import Executor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from engine.api.errors import InvalidInput, Refused
from engine.host.network_namespace import CLONE_NEWNET, socket_in
from engine.host.threads import started_pool

if TYPE_CHECKING:
    from engine.cri.client import RuntimeClient

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

NETWORK_OF_THE_NODE: Final = -1
MAX_RESOLVERS: Final = 8
"""Threads that resolve names."""
_NS_GET_NSTYPE: Final = 0xB703


class PodNetworks:
    """Open the network namespaces of pods; the runtime is asked once per sandbox that is probed from
    inside.
    """

    def __init__(self, runtime: RuntimeClient) -> None:
        self._runtime = runtime

    async def open(self, sandbox_id: str) -> int:
        """Return a descriptor of a sandbox's network namespace.

        Raises `InvalidInput` if the sandbox uses the host's network, and `Refused`, `OSError` or the
        runtime's error if there is none now.
        """
        status = await self._runtime.pod_sandbox_status(sandbox_id, verbose=True)
        return open_network(sandbox_id, status.info.get("info", ""))


def open_network(sandbox_id: str, info: str) -> int:
    """Open it from a sandbox's verbose status: the namespace's own file, or that of its process."""
    try:
        facts = json.loads(info)
        pid, path = int(facts.get("pid") or 0), _path(facts.get("runtimeSpec") or {})
    except (ValueError, TypeError, AttributeError, KeyError):
        raise Refused(
            "the runtime doesn't say where its network is", subject=f"sandbox {sandbox_id}"
        ) from None
    # A path in /proc names a process whose number may have been used again; its cgroup is checked instead.
    if path and not path.startswith("/proc/"):
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    elif pid > 0:
        found = _open_of_process(pid, sandbox_id)
    else:
        raise InvalidInput("has no network namespace of its own", subject=f"sandbox {sandbox_id}")
    try:
        _check(found, sandbox_id)
    except BaseException:
        os.close(found)
        raise
    return found


async def connect(host: str, port: int, network: int, **how: Any) -> Connection:
    """Connect like `asyncio.open_connection`, from a network namespace unless `network` is
    `NETWORK_OF_THE_NODE`.

    Names are resolved on this node. Raises `OSError`.
    """
    failure: OSError | None = None
    # The pod may end while the name is resolved, and its descriptor be closed and used for another file.
    held = os.dup(network) if network != NETWORK_OF_THE_NODE else network
    try:
        for family, _, _, _, address in await _resolve(host, port):
            made = _socket(held, family)
            try:
                await asyncio.get_running_loop().sock_connect(made, address)
                return await asyncio.open_connection(sock=made, **how)
            except OSError as error:
                made.close()
                failure = error
            except BaseException:
                made.close()
                raise
    finally:
        if held != NETWORK_OF_THE_NODE:
            os.close(held)
    raise failure or OSError(f"{host} has no address")


def _socket(network: int, family: int) -> socket.socket:
    if network == NETWORK_OF_THE_NODE:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    return socket_in(network, family)


async def _resolve(host: str, port: int) -> list[Any]:
    """Return the addresses of a host as `getaddrinfo` does. Raises `OSError`.

    Names are resolved in threads of their own. A name server that does not answer holds a thread for many
    seconds, and the probes of one pod would else hold all threads in which the agent writes files.
    """
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    resolving = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return await asyncio.get_running_loop().run_in_executor(_resolvers(), resolving)


@cache
def _resolvers() -> Executor:
    return started_pool(MAX_RESOLVERS, "host-names")


def _path(spec: dict[str, Any]) -> str:
    """Return the path of the network namespace in an OCI specification, or an empty text."""
    namespaces = (spec.get("linux") or {}).get("namespaces") or []
    return next((str(each.get("path") or "") for each in namespaces if each.get("type") == "network"), "")


def _open_of_process(pid: int, sandbox_id: str) -> int:
    """Open it through the process's directory, whose cgroup proves that it belongs to the sandbox."""
    process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:  # noqa: PTH123
            if sandbox_id.encode() not in file.read(1 << 16):
                raise Refused(f"its process {pid} has exited", subject=f"sandbox {sandbox_id}")
        return os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    finally:
        os.close(process)


def _check(network: int, sandbox_id: str) -> None:
    """Raise `InvalidInput` if it is not a network namespace, or this process's own."""
    kind = 0
    with contextlib.suppress(OSError):
        kind = fcntl.ioctl(network, _NS_GET_NSTYPE)
    if kind != CLONE_NEWNET:
        raise InvalidInput("its network is not a namespace", subject=f"sandbox {sandbox_id}")
    here, there = os.stat("/proc/self/ns/net"), os.fstat(network)  # noqa: PTH116
    if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        raise InvalidInput("has no network namespace of its own", subject=f"sandbox {sandbox_id}")
