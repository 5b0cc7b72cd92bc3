"""Run containers as real processes with namespaces, cgroups and file systems, by way of shims.

Everything that must outlive this process is in the state directory or belongs to a shim. A start has two
steps: the shim prepares and reports its identity, the runtime records that, and only then the shim
continues. So whenever this process dies, the next one knows every running container.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.errors import InvalidInput, Refused
from engine.host.trees import remove_tree
from engine.runtime import cdi, hierarchy, oci, requests, usage
from engine.runtime.addresses import PodNetwork
from engine.runtime.commands import ProcessCommands
from engine.runtime.files import ContainerFiles
from engine.runtime.images.store import ImageStore
from engine.runtime.objects.backend import Listener
from engine.runtime.objects.failures import NoSuchObject
from engine.runtime.objects.records import (
    CREATED,
    EXITED,
    NOT_READY,
    READY,
    RUNNING,
    Records,
    RuntimeContainer,
    Sandbox,
)
from engine.runtime.shim import linux
from engine.runtime.spawning import Conversation, Spawner
from engine.runtime.state import BackendNotes, StateDirectory
from engine.runtime.watching import Watcher, lives, send_signal, wait_until
from engine.wire import cri_v1_pb2 as cri

STARTS_AT_ONCE = 16
LOST = 255


log = logging.getLogger("kubengine.runtime")


@dataclass(frozen=True)
class RuntimeCgroups:
    """Configure how the runtime creates the cgroups of containers.

    `driver` is `cgroupfs` or `systemd`, `mount` the directory below which hierarchies are mounted, and
    `cpu_weight` the formula of cgroup v2 weights, which should match that of the pods' cgroups.
    """

    driver: str = "cgroupfs"
    mount: Path = Path("/sys/fs/cgroup")
    cpu_weight: WeightFormula = "linear"


class ProcessBackend:
    """Run containers: `root` holds images and writable layers, `state` the running objects; `hierarchy`
    manages cgroups.
    """

    name = "kubengine"

    def __init__(
        self,
        *,
        root: Path,
        state: Path,
        cgroups: RuntimeCgroups,
        pod_cidr: str | None = None,
        archives: Path | None = None,
        overlay: bool = True,
        cdi_directories: Sequence[Path] = cdi.DIRECTORIES,
    ) -> None:
        if os.geteuid() != 0:
            raise Refused(
                "containers need root (namespaces, cgroups, mounts), of the host or of a user namespace "
                "(unshare --user --map-root-user …); other users can run the hollow runtime",
                subject="embedded runtime",
            )
        self.root = root.absolute()
        self.state = StateDirectory(state.absolute())
        self.images = ImageStore(self.root, archives=archives, layers_in_use=self._layers_in_use)
        self.network = PodNetwork(self.state.path, pod_cidr)
        self._hierarchy = hierarchy.RuntimeHierarchy(cgroups.mount, weights=cgroups.cpu_weight)
        self._driver = cgroups.driver
        self._files = ContainerFiles(self.root, self.images, overlay=overlay)
        self._cdi_directories = cdi_directories
        self._spawner = Spawner(self.state.path)
        self._notes: dict[str, BackendNotes] = {}
        self._watcher = Watcher()
        self._usage = usage.RuntimeContainerUsage()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._links_loaded: asyncio.Task[ModuleType] | None = None
        self.commands = ProcessCommands(
            self._spawner, self.state, lambda container: self._notes[container.id]
        )
        self._lock = -1
        self._listener: Listener | None = None
        self._records = Records()

    # Life of the backend

    async def start(self, records: Records, listener: Listener) -> None:
        """Adopt running pods. Raise Refused if another runtime uses the state directory."""
        self._records, self._listener = records, listener
        self.state.open()
        self.images.open()
        self._files.open()
        # Before anything is adopted: a second runtime would kill or delete what the first one runs.
        self._take_lock()
        for sandbox, notes in list(self.state.load_sandboxes()):
            await self._adopt_sandbox(sandbox, notes)
        for container, notes in list(self.state.load_containers(records.sandboxes)):
            await self._adopt_container(container, notes)
        for directory in list(self.state.half_made()):
            await asyncio.to_thread(hierarchy.remove, self._hierarchy.named(directory.name))
            self.state.forget_directory(directory)
        await self._files.keep(records.containers)
        # It takes 0.2 s, in which the runtime can answer already; only a pod on the bridge waits for it.
        self._links_loaded = asyncio.create_task(asyncio.to_thread(import_module, "engine.runtime.links"))
        self.network.open(ip for sandbox in records.sandboxes.values() for ip in sandbox.ips)
        await self._spawner.start()

    async def stop(self) -> None:
        self._watcher.close()
        await self._spawner.stop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def remove_everything(self) -> None:
        """Remove bridge, default cgroup and files, after `start` and the removal of all pods."""
        self.network.remove()
        parent = "kubengine.slice" if self._driver == "systemd" else "kubengine"
        for directory in self._hierarchy.directories(parent):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
        await self.stop()
        for path in (self.state.path, *(self.root / name for name in ("containers", "images", "layers"))):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(remove_tree, path)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    # Sandboxes

    async def run_sandbox(self, sandbox: Sandbox) -> None:
        requests.check_sandbox(sandbox)
        parent = sandbox.config.linux.cgroup_parent
        notes = BackendNotes(cgroup=hierarchy.container_path(parent, sandbox.id, self._driver))
        on_bridge = not requests.host_network(sandbox)
        if on_bridge:
            if self._links_loaded is not None:
                await self._links_loaded
            sandbox.ips = [self.network.take()]
        # Before the first process exists: a runtime that starts after a crash finds and removes what is half
        # made.
        self.state.save_sandbox(sandbox, notes)
        try:
            async with self._starts:
                groups = self._hierarchy.make(notes.cgroup)
                network = self.network.join(sandbox.id, sandbox.ips[0]) if on_bridge else None
                directory = self.state.directory(sandbox)
                request = requests.sandbox_request(sandbox, directory, groups, network)
                talk = await self._spawner.ask(request)
                try:
                    await self._bring_up(sandbox, notes, talk)
                finally:
                    talk.close()
        except BaseException:
            # Shielded: a cancelled caller must not leave a process behind that nobody knows.
            await asyncio.shield(self._discard_sandbox(sandbox, notes))
            raise
        self._notes[sandbox.id] = notes
        self._watcher.watch(sandbox.id, sandbox.pid, lambda: self._sandbox_gone(sandbox))

    async def _bring_up(self, sandbox: Sandbox, notes: BackendNotes, talk: Conversation) -> None:
        message = await talk.receive()
        if "error" in message:
            raise Refused(message["error"], subject=f"sandbox {sandbox.config.metadata.name!r}")
        sandbox.pid, sandbox.start_time = message["pid"], message["start_time"]
        directory = self.state.directory(sandbox)
        (directory / "hosts").write_text(requests.hosts_file(sandbox))
        (directory / "resolv.conf").write_text(requests.resolv_conf(sandbox))
        (directory / "hostname").write_text(requests.hostname(sandbox) + "\n")
        for name in ("hosts", "resolv.conf", "hostname"):
            # Whatever the umask of the runtime is, users in containers must be able to read them.
            (directory / name).chmod(0o644)
        # Recorded before `go`: the process may run on its own only when the next runtime would adopt it.
        notes.made = True
        sandbox.state = READY
        self.state.save_sandbox(sandbox, notes)
        talk.go()

    async def stop_sandbox(self, sandbox: Sandbox) -> None:
        notes = self._notes.get(sandbox.id)
        if notes is None:
            return
        await self._watcher.kill(sandbox.id, sandbox.pid, sandbox.start_time)
        sandbox.pid = 0
        self._release_address(sandbox)
        await asyncio.to_thread(hierarchy.remove, self._hierarchy.directories(notes.cgroup))
        sandbox.state = NOT_READY
        self.state.save_sandbox(sandbox, notes)

    async def remove_sandbox(self, sandbox: Sandbox) -> None:
        self.state.forget(sandbox)
        self._notes.pop(sandbox.id, None)
        self._usage.forget(sandbox.id)

    async def _discard_sandbox(self, sandbox: Sandbox, notes: BackendNotes) -> None:
        """Undo a sandbox that was never complete."""
        send_signal(sandbox.pid, sandbox.start_time, signal.SIGKILL)
        await asyncio.to_thread(hierarchy.remove, self._hierarchy.directories(notes.cgroup))
        self._release_address(sandbox)
        self.state.forget(sandbox)

    def _release_address(self, sandbox: Sandbox) -> None:
        for address in sandbox.ips:
            self.network.give_back(address)
        sandbox.ips = []

    def _sandbox_gone(self, sandbox: Sandbox) -> None:
        if sandbox.state == READY and self._listener is not None:
            self._listener.sandbox_died(sandbox)
            self.state.save_sandbox(sandbox, self._notes[sandbox.id])

    async def _adopt_sandbox(self, sandbox: Sandbox, notes: BackendNotes) -> None:
        if notes.made:
            await wait_until(lambda: self.state.up(sandbox) or not lives(sandbox.pid, sandbox.start_time))
        if not (notes.made and self.state.up(sandbox)):
            await self._discard_sandbox(sandbox, notes)
            return
        self._notes[sandbox.id] = notes
        self._records.add_sandbox(sandbox)
        if lives(sandbox.pid, sandbox.start_time):
            self._watcher.watch(sandbox.id, sandbox.pid, lambda: self._sandbox_gone(sandbox))
        else:
            sandbox.state, sandbox.pid = NOT_READY, 0
            hierarchy.remove(self._hierarchy.directories(notes.cgroup))

    # Containers

    async def create_container(self, container: RuntimeContainer, image: cri.Image) -> None:
        stored = self.images.get(image.id)
        if stored is None:
            raise NoSuchObject("was removed in the meantime", subject=f"image {image.id}")
        sandbox = container.sandbox
        parent = sandbox.config.linux.cgroup_parent
        path = hierarchy.container_path(parent, container.id, self._driver)
        target = self._target(container)
        files = await self._files.make(container, stored)
        self._name_image_volumes(container)
        try:
            request = requests.container_request(
                container,
                stored,
                config=cdi.with_devices(container.config, self._cdi_directories),
                directory=self.state.directory(container),
                rootfs=files.rootfs,
                cgroups=self._hierarchy.directories(path),
                cgroup_views=self._hierarchy.views(path),
                cgroup2=self._hierarchy.v2,
                etc=self.state.directory(sandbox),
                image_volumes=files.volumes,
                target=target,
            )
            notes = BackendNotes(
                cgroup=path,
                layers=files.layers,
                request=request,
                stop_signal=requests.stop_signal(container.config, stored.config),
            )
            self.state.save_container(container, notes)
        except BaseException:
            self.state.forget(container)
            await self._files.remove(container)
            raise
        self._notes[container.id] = notes

    async def start_container(self, container: RuntimeContainer) -> None:
        notes = self._notes[container.id]
        # The target may have restarted since the container was created; its pid could belong to another
        # process.
        if notes.request["pid_namespace"] == "target":
            notes.request["target_start_time"] = linux.start_time(notes.request["target"])
        try:
            async with self._starts:
                self._make_cgroup(container, notes)
                talk = await self._spawner.ask(notes.request)
                try:
                    await self._let_it_run(container, notes, talk)
                finally:
                    talk.close()
        except BaseException as error:
            # The caller gets the container back as created: only the record on disk says that its start
            # failed, for a runtime that starts after a crash in between.
            container.shim, container.pid = 0, 0
            ended = replace(
                container, state=EXITED, exit_code=128, finished_at=time.time_ns(), reason="StartError",
                message=str(error),
            )  # fmt: skip
            self.state.save_container(ended, notes)
            groups = self._hierarchy.directories(notes.cgroup)
            await asyncio.shield(asyncio.to_thread(hierarchy.remove, groups))
            raise

    async def _let_it_run(self, container: RuntimeContainer, notes: BackendNotes, talk: Conversation) -> None:
        subject = f"container {container.config.metadata.name!r}"
        message = await talk.receive()
        if "error" in message:
            raise Refused(message["error"], subject=subject)
        container.pid, container.start_time = message["pid"], message["start_time"]
        container.shim, container.shim_start_time = message["shim"], message["shim_start_time"]
        uid, gid, groups = message["user"]
        container.user = cri.ContainerUser(
            linux=cri.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=groups)
        )
        self.state.save_container(container, notes)
        talk.go()
        message = await talk.receive()
        if "error" in message:
            raise Refused(message["error"], subject=subject)
        container.started_at = message["started"]
        self._watcher.watch(container.id, container.shim, lambda: self._container_gone(container))

    async def stop_container(self, container: RuntimeContainer, grace: float) -> None:
        if grace > 0:
            send_signal(container.pid, container.start_time, self._notes[container.id].stop_signal)
            if await self._watcher.ended(container.id, grace):
                return
        await self._watcher.kill(container.id, container.pid, container.start_time)

    async def remove_container(self, container: RuntimeContainer) -> None:
        notes = self._notes[container.id]
        await asyncio.to_thread(hierarchy.remove, self._hierarchy.directories(notes.cgroup))
        self.state.forget(container)
        # After the record: files without a record are removed at the next start, a record without files would
        # be adopted.
        await self._files.remove(container)
        del self._notes[container.id]
        self._usage.forget(container.id)
        if notes.layers and self.images.get(container.image_id) is None:
            await asyncio.to_thread(self.images.collect)

    async def reopen_log(self, container: RuntimeContainer) -> None:
        if not container.log_path:
            return
        # The shim holds the log file and opens it again.
        send_signal(container.shim, container.shim_start_time, signal.SIGUSR1)
        for _ in range(200):
            if Path(container.log_path).exists():
                return
            await asyncio.sleep(0.01)
        raise Refused("the new log file did not appear", subject=container.log_path)

    async def update_resources(
        self, container: RuntimeContainer, wanted: cri.LinuxContainerResources
    ) -> None:
        notes = self._notes[container.id]
        if container.state == RUNNING:
            self._hierarchy.apply(notes.cgroup, wanted)
        current = container.config.linux.resources
        # MergeFrom would append to the repeated field instead of replacing it.
        if wanted.hugepage_limits:
            del current.hugepage_limits[:]
        current.MergeFrom(wanted)
        self.state.save_container(container, notes)

    def _make_cgroup(self, container: RuntimeContainer, notes: BackendNotes) -> None:
        security = container.config.linux.security_context
        self._hierarchy.make(notes.cgroup)
        self._hierarchy.apply(notes.cgroup, container.config.linux.resources)
        devices = [
            cri.Device(host_path=d["host"], permissions=d["permissions"]) for d in notes.request["devices"]
        ]
        self._hierarchy.allow_devices(notes.cgroup, None if security.privileged else devices)

    def _container_gone(self, container: RuntimeContainer) -> None:
        """Record that the container's shim has ended."""
        notes = self._notes.get(container.id)
        if notes is None or container.state == EXITED or self._listener is None:
            return
        ending = self.state.ending(container)
        # The shim was killed without a record: its container may still run, unwatched, and must not go on so.
        if ending is None:
            send_signal(container.pid, container.start_time, signal.SIGKILL)
            hierarchy.remove(self._hierarchy.directories(notes.cgroup))
            self._listener.container_exited(
                container, exit_code=LOST, finished_at=time.time_ns(), reason="Error",
                message="the process that watched it was killed",
            )  # fmt: skip
        else:
            self._listener.container_exited(
                container,
                exit_code=ending.exit_code,
                finished_at=ending.finished_at,
                reason="OOMKilled" if ending.oom_kills else "",
            )
        try:
            self.state.save_container(container, notes)
        except Refused as error:
            log.error("%s; its exit status will be read again at the next start", error)

    async def _adopt_container(self, container: RuntimeContainer, notes: BackendNotes) -> None:
        self._notes[container.id] = notes
        self._records.add_container(container)
        if container.state == EXITED or not container.shim:
            return
        # The crash may have come between `go` and the start of the program.
        await wait_until(lambda: self.state.started(container) > 0 or not _shim_lives(container))
        started = self.state.started(container)
        if not started:
            container.state, container.pid, container.shim = CREATED, 0, 0
            hierarchy.remove(self._hierarchy.directories(notes.cgroup))
            self.state.save_container(container, notes)
            return
        container.state, container.started_at = RUNNING, started
        # A shim that has written the end may still be on its way out.
        if _shim_lives(container) and self.state.ending(container) is None:
            self._watcher.watch(container.id, container.shim, lambda: self._container_gone(container))
        else:
            self._container_gone(container)

    # Stats

    async def container_stats(self, containers: Sequence[RuntimeContainer]) -> list[cri.ContainerStats]:
        def read() -> list[cri.ContainerStats]:
            found = []
            for container in containers:
                notes = self._notes.get(container.id)
                if notes is not None:
                    groups = self._hierarchy.directories(notes.cgroup)
                    upper = self._files.upper(container)
                    found.append(self._usage.container(container, groups, upper, str(self.root)))
            return found

        return await asyncio.to_thread(read)

    async def sandbox_stats(self, sandbox: Sandbox) -> cri.LinuxPodSandboxStats:
        groups = self._hierarchy.directories(str(Path(self._notes[sandbox.id].cgroup).parent))
        return cri.LinuxPodSandboxStats(
            cpu=self._usage.cpu(sandbox.id, groups),
            memory=usage.memory(groups),
            network=usage.network(sandbox.pid) if sandbox.ips else None,
            process=usage.processes(groups),
        )

    def info(self, record: Sandbox | RuntimeContainer) -> dict[str, str]:
        notes = self._notes[record.id]
        facts: dict[str, Any] = {"pid": record.pid, "cgroupPath": notes.cgroup}
        if isinstance(record, RuntimeContainer):
            spec = oci.runtime_spec(notes.request, notes.cgroup, record.config.linux.resources, record.user)
            facts |= {"sandboxID": record.sandbox.id, "shim": record.shim, "runtimeSpec": spec}
        else:
            facts |= {"bridge": self.network.bridge, "ips": record.ips}
        return {"info": json.dumps(facts)}

    # Parts

    def _take_lock(self) -> None:
        self._lock = os.open(self.state.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise Refused("another runtime uses it", subject=str(self.state.path)) from None

    def _layers_in_use(self) -> set[str]:
        return {layer for notes in self._notes.values() for layer in notes.layers}

    def _name_image_volumes(self, container: RuntimeContainer) -> None:
        """Name the images of the volumes in a container's status, as PullImage names them (KEP-5365)."""
        for mount in container.config.mounts:
            image = self.images.get(mount.image.image) if mount.image.image else None
            if image is not None:
                mount.image.image_ref = image.id

    def _target(self, container: RuntimeContainer) -> RuntimeContainer | None:
        options = container.config.linux.security_context.namespace_options
        if options.pid != cri.TARGET:
            return None
        target = self._records.container(options.target_id)
        if target.sandbox is not container.sandbox or target.state != RUNNING:
            raise InvalidInput(
                "must be a running container of the same pod", subject=f"target {options.target_id}"
            )
        return target


def _shim_lives(container: RuntimeContainer) -> bool:
    return lives(container.shim, container.shim_start_time)
