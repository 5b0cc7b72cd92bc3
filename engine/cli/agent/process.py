"""Run the agent's process: its own runtime if requested, then the node, then its HTTP server."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Protocol

import click
import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.errors import Refused
from engine.api.kubengine_config import KubengineConfiguration
from engine.cli.agent.library_pages import unmap_unused_library_pages
from engine.cli.agent.paths import default_socket
from engine.cli.agent.start_up import tune_garbage_collection
from engine.host.inotify import IN_DELETE_SELF, IN_OPEN, InotifyWatch
from engine.host.notify import ServiceManager, beat
from engine.host.stopping import stop_all
from engine.host.threads import start_shared_threads
from engine.hostsetup.host_places import HostPlaces
from engine.node import Node
from engine.node.images.access import CredentialPrograms
from engine.node.nodeinfo.options import NodeOptions
from engine.server import HttpServer, OwnPort, Routes

EMBEDDED, HOLLOW = "embedded", "hollow"
LOOPBACK = "127.0.0.1"
LOCK_SECONDS = 0.5
"""How often the agent tries to get the lock of its lock file."""
REST_SECONDS = 15.0
"""How long after its start the agent unmaps what only the start needed; the first pods are up by then."""

log = logging.getLogger("kubengine.run")


class _OwnRuntime(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def purge(self) -> None: ...


class LockFile:
    """Hold the file of `--lock-file` as the kubelet does (flock(2)), and tell when another process wants it.

    Of the agents and kubelets that share a file, one runs at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._watch: InotifyWatch | None = None

    def acquire(self) -> bool:
        """Create the file if it is missing, and lock it. Return False while another process holds the lock.

        Raise Refused naming the file if it cannot be opened or locked.
        """
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Refused(
                f"cannot lock: {error.strerror}", subject=str(self.path), errno=error.errno
            ) from error
        return True

    def watch(self, on_contention: Callable[[], None]) -> None:
        """Call `on_contention` for each time that a process opens or removes the file. Raise Refused."""
        self._watch = InotifyWatch(lambda _mask, _path, _name: on_contention())
        self._watch.add(self.path, IN_OPEN | IN_DELETE_SELF)

    def release(self) -> None:
        """Release the lock, and stop watching. The file stays."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class AgentOptions(msgspec.Struct, frozen=True):
    """Hold the options for starting an agent.

    `runtime` is `embedded`, `hollow`, a CRI socket, or None for the best built-in runtime. `clean_up` says
    what an interrupt does. `port` is the node's own, 0 for none; None takes the port of the configuration in
    a cluster or with `as_kubelet`, and means no port otherwise. The agent does nothing before it has locked
    `lock_file`; with `ends_on_contention` it ends when another process opens or removes that file.
    """

    config: KubeletConfiguration
    kubengine_config: KubengineConfiguration
    runtime: str | None
    root_dir: Path
    node_name: str | None
    clean_up: bool
    kubeconfig: Path | None = None
    bootstrap_kubeconfig: Path | None = None
    cert_dir: Path | None = None
    credential_programs: CredentialPrograms | None = None
    port: int | None = None
    as_kubelet: bool = False
    node_ips: Sequence[str] = ()
    external_cloud: bool = False
    lock_file: Path | None = None
    ends_on_contention: bool = False


class AgentProcess:
    """Run the agent until a signal. SIGTERM leaves pods running; with `clean_up`, an interrupt removes them
    first.

    As root and on the machine's runtime, the agent sets up the machine as a kubelet does. On its own runtime
    it is a trial and leaves the machine unchanged.
    """

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        endpoint, ours = options.runtime, options.kubengine_config
        # `replace` would turn zeros, which close a port, into the defaults of a file; `copy` keeps them.
        config = copy(options.config)
        if options.port is not None:
            config.port = options.port
        self._runtime: _OwnRuntime | None = None
        if endpoint is None or endpoint in (EMBEDDED, HOLLOW):
            config.image_service_endpoint = ""
            hollow = endpoint == HOLLOW
            # Whoever asks for real containers gets an error of the runtime, not pods without processes.
            if os.geteuid() != 0 and endpoint != EMBEDDED:
                hollow = True
                _drop_cgroups(config)
            endpoint = str(options.root_dir / "runtime.sock")
            self._runtime = _own_runtime(endpoint, options.root_dir, config.cgroup_driver, hollow=hollow)
            ours = _with_its_weights(ours)
        self.node = Node(
            config=config,
            kubengine_config=ours,
            runtime_endpoint=endpoint,
            root=options.root_dir,
            name=options.node_name,
            options=_node_options(options, sets_up_host=self._runtime is None and os.geteuid() == 0),
        )
        routes = Routes(self.node)
        self._server = HttpServer(
            self.node,
            socket_path=default_socket(options.root_dir),
            port=_own_port(options, self.node, routes),
            routes=routes,
        )
        self._service_manager = ServiceManager()
        self._lock = LockFile(options.lock_file) if options.lock_file is not None else None
        self._cleaning_up = False
        # The first signal counts: a SIGTERM during a clean-up does not turn it into a plain stop.
        self._asked_to_end: asyncio.Queue[signal.Signals] = asyncio.Queue(maxsize=1)

    async def run(self, show: Callable[[Node], Awaitable[None]] | None = None) -> None:
        """Start, run `show` alongside the node, wait for a signal, and stop. Raise what start-up raises."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        start_shared_threads()
        try:
            if not await self._hold_lock():
                return
            self.node.claim()
            # Before the runtime starts: a second agent on the same root must fail before it changes anything.
            self._server.bind()
            await self._run_with_runtime(show)
        finally:
            # Both may be called twice: `_run_node` has stopped them, unless the start failed before it.
            await stop_all([self._server.stop, self.node.stop])
            if self._lock is not None:
                self._lock.release()
        if self._cleaning_up:
            click.echo("every pod is removed", err=True)

    async def _run_with_runtime(self, show: Callable[[Node], Awaitable[None]] | None) -> None:
        if self._runtime is None:
            await self._run_node(show)
            return
        await self._runtime.start()
        try:
            await self._run_node(show)
        finally:
            await (self._runtime.purge() if self._cleaning_up else self._runtime.stop())

    async def _run_node(self, show: Callable[[Node], Awaitable[None]] | None) -> None:
        view: asyncio.Task[None] | None = None
        beating: asyncio.Task[None] | None = None
        resting: asyncio.TimerHandle | None = None
        try:
            await self.node.start(self._server.start)
            tune_garbage_collection()
            resting = asyncio.get_running_loop().call_later(REST_SECONDS, unmap_unused_library_pages)
            # After garbage collection is tuned: systemd starts dependent units now, and pods begin to come.
            self._service_manager.ready()
            beating = asyncio.create_task(beat(self._service_manager, self._trouble), name="watchdog")
            log.info("node %s is up; its socket is %s", self.node.name, default_socket(self.options.root_dir))
            if show is not None:
                view = asyncio.ensure_future(_as_coroutine(show(self.node)))
            number = await self._asked_to_end.get()
            if number is signal.SIGINT and self.options.clean_up:
                self._cleaning_up = True
                log.info("removing every pod")
                await self.node.remove_all_pods()
        finally:
            self._service_manager.stopping()
            if resting is not None:
                resting.cancel()
            for task in (view, beating):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            # Before the agent's own runtime ends, which the node still calls.
            await stop_all([self._server.stop, self.node.stop])

    async def _hold_lock(self) -> bool:
        """Wait for the lock of the lock file, if there is one. Return False if a signal ended the wait."""
        lock = self._lock
        if lock is None:
            return True
        log.info("acquiring the lock of %s", lock.path)
        while not lock.acquire():
            if self._asked_to_end.full():
                return False
            await asyncio.sleep(LOCK_SECONDS)
        if self.options.ends_on_contention:
            lock.watch(self._contended)
        return True

    def _contended(self) -> None:
        log.warning("another process opened or removed %s: this agent ends", self.options.lock_file)
        self._signalled(signal.SIGTERM)

    def _trouble(self) -> str:
        return "; ".join(f"{check}: {error}" for check, error in self.node.healthz() if error)

    def _signalled(self, number: signal.Signals) -> None:
        # A second signal does not interrupt what the first one began.
        if self._asked_to_end.full():
            return
        self._asked_to_end.put_nowait(number)


def _own_port(options: AgentOptions, node: Node, routes: Routes) -> OwnPort | None:
    """Create the node's own port. TLS and the handlers behind the port are loaded only when there is one."""
    config, section = options.config, options.kubengine_config.server
    as_kubelet = options.as_kubelet or options.kubeconfig is not None
    port = options.port if options.port is not None else config.port * as_kubelet
    if not port or not config.enable_server:
        return None
    if options.as_kubelet and options.kubeconfig is None and _asks_api_server(config):
        log.warning(
            "port %d stays closed: authentication.webhook.enabled and authorization.mode Webhook need an API "
            "server; give a --kubeconfig, or set false and AlwaysAllow",
            port,
        )
        return None
    from engine.server.port.server import SecurePort

    address = section.port_address or (config.address if as_kubelet else LOOPBACK)
    return SecurePort(node, address, port, shared=routes)


def _asks_api_server(config: KubeletConfiguration) -> bool:
    return config.authentication.webhook.enabled or config.authorization.mode == "Webhook"


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def _node_options(options: AgentOptions, *, sets_up_host: bool) -> NodeOptions:
    return NodeOptions(
        kubeconfig=options.kubeconfig,
        bootstrap_kubeconfig=options.bootstrap_kubeconfig,
        cert_dir=options.cert_dir,
        credential_programs=options.credential_programs,
        node_ips=options.node_ips,
        external_cloud=options.external_cloud,
        host=HostPlaces() if sets_up_host else None,
    )


def _drop_cgroups(config: KubeletConfiguration) -> None:
    """Turn off what needs root, and tell the user."""
    click.echo("not root: without cgroups and namespaces, pods have states but no processes", err=True)
    config.cgroups_per_qos = False
    config.enforce_node_allocatable = []


def _with_its_weights(config: KubengineConfiguration) -> KubengineConfiguration:
    """Select linear CPU weights, which the built-in runtime always writes, whichever runc the machine has."""
    if config.cgroups.cpu_weight != "auto":
        return config
    cgroups = msgspec.structs.replace(config.cgroups, cpu_weight="linear")
    return msgspec.structs.replace(config, cgroups=cgroups)


def _runtime_directory() -> Path:
    """Return where running objects are recorded until the next boot; in a user namespace /run is not ours."""
    if os.access("/run", os.W_OK):
        return Path("/run/kubengine")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", "kubengine")


def _own_runtime(socket: str, root_dir: Path, cgroup_driver: str, *, hollow: bool) -> _OwnRuntime:
    from engine.api.encoding.digest import sha256
    from engine.runtime.embedded import EmbeddedRuntime
    from engine.runtime.hollow import HollowRuntime
    from engine.runtime.processes import RuntimeCgroups

    if hollow:
        return HollowRuntime(socket, cgroup_driver=cgroup_driver)
    # A directory for each root: two trials on one machine must not clean up each other's containers.
    state = _runtime_directory() / sha256(os.fsencode(root_dir))[:12]
    return EmbeddedRuntime(
        socket=socket, root=root_dir / "runtime", state=state, cgroups=RuntimeCgroups(cgroup_driver)
    )
