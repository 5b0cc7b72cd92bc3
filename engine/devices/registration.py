"""Serves the registration socket `kubelet.sock`, where plugins announce themselves."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.api.errors import InvalidInput, KubengineError
from engine.api.grpc_codes import UNKNOWN
from engine.api.resources import is_extended
from engine.devices.checkpoint_file import FILE_NAME
from engine.devices.claimed_server import ClaimedServer
from engine.devices.methods import Method
from engine.host.selinux import SELINUX_FS
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.plugins.channel import check_socket_path
from engine.transport.grpc_channel import CallFailed
from engine.wire import deviceplugin_v1beta1_pb2 as wire

VERSION = "v1beta1"
SOCKET_NAME = "kubelet.sock"
MOST_CALLS = 100
MOST_NAMES = 1000
OTHER_NAMES = "other"
"""The label under which further names are counted."""
SELINUX_LABEL = b"system_u:object_r:container_file_t:s0\0"

log = logging.getLogger("kubengine.devices")

Connect = Callable[[str, Path], Awaitable[None]]
"""Connects to a plugin, given `(resource, socket path)`; raises a `KubengineError` on failure."""


def _make_directory(directory: Path) -> None:
    """Create the directory with mode 0750 and its SELinux label."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    if (SELINUX_FS / "enforce").exists():
        try:
            os.setxattr(directory, "security.selinux", SELINUX_LABEL)
        except OSError as error:
            log.warning("%s: SELinux label refused: %s", directory, error.strerror)


def _clear_directory(directory: Path) -> None:
    """Remove every file but the checkpoint from the plugin directory, which makes plugins register again."""
    for entry in directory.iterdir():
        if entry.name != FILE_NAME and (entry.is_symlink() or not entry.is_dir()):
            entry.unlink(missing_ok=True)


def check_resource_name(name: str) -> None:
    """Raise `InvalidInput` unless a plugin may offer the name."""
    if not is_extended(name):
        raise InvalidInput(f'the ResourceName "{name}" is invalid')


class RegistrationServer:
    """Serve v1beta1.Registration in `directory`."""

    def __init__(self, directory: Path, connect: Connect, registry: Registry, tasks: Tasks) -> None:
        self.path = directory / SOCKET_NAME
        check_socket_path(self.path)
        self._directory = directory
        self._connect = connect
        self._registrations = registry.counter(
            "kubelet_device_plugin_registration_total",
            "Cumulative number of device plugin registrations.",
            ("resource_name",),
        )
        self._server = ClaimedServer(
            self.path,
            {"v1beta1.Registration": {"Register": Method(wire.RegisterRequest, self._register)}},
            most_calls=MOST_CALLS,
            tasks=tasks,
        )

    def claim(self) -> None:
        """Claim the plugin directory and its socket, which does not answer yet.

        Raises `Refused`, without any change, if another process serves the socket.
        """
        _make_directory(self._directory)
        self._server.claim(before=lambda: _clear_directory(self._directory))

    async def start(self) -> None:
        """Start answering on the claimed socket."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _register(self, request: wire.RegisterRequest) -> wire.Empty:
        self._count(request.resource_name)
        try:
            if request.version != VERSION:
                raise InvalidInput(
                    f'requested API version "{request.version}" is not supported by kubelet. '
                    f'Supported version is ["{VERSION}"]'
                )
            check_resource_name(request.resource_name)
            await self._connect(request.resource_name, self._socket(request.endpoint))
        except KubengineError as error:
            log.warning("registration of %s refused: %s", request.resource_name, error)
            raise CallFailed(UNKNOWN, str(error)) from error
        return wire.Empty()

    def _count(self, name: str) -> None:
        """Count by name, as the kubelet does, but for no more names than a node can have plugins."""
        known = self._registrations.values
        self._registrations.inc(name if (name,) in known or len(known) < MOST_NAMES else OTHER_NAMES)

    def _socket(self, endpoint: str) -> Path:
        path = Path(os.path.normpath(self._directory / endpoint.lstrip("/")))
        if not endpoint or "\0" in endpoint or self._directory not in path.parents:
            raise InvalidInput(f"expected a socket's file name in {self._directory}, got {endpoint!r}")
        return path
