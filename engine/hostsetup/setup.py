"""Sets up a host for a node agent as a kubelet v1.36 does, and maintains the setup while the agent runs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from engine.api.config import KubeletConfiguration
from engine.api.errors import InvalidInput, Refused
from engine.api.events import WARNING, EventRecorder
from engine.host.cgroupfs.mounts import Mounts, find_mounts
from engine.host.stopping import stop_all
from engine.host.tasks import Tasks
from engine.hostsetup.host_places import HostPlaces
from engine.hostsetup.iptables import UtilChains
from engine.hostsetup.own_process import Cgroups, set_oom_score, set_open_files
from engine.hostsetup.system_oom import SystemOom
from engine.hostsetup.tunables import check_tunables, set_tunables

SWAPPED_VOLUMES: Final = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) "
    "might be swapped to disk and should no longer be considered secure."
)
SYSTEM_SECONDS: Final = 60.0
OWN_SECONDS: Final = 300.0
STEP_SECONDS: Final = 30.0

log = logging.getLogger("kubengine.hostsetup")


class HostSetup:
    """Set up the host.

    `check` raises an error on a host that the configuration forbids; `start` sets the host up. Anything that
    the machine lacks, or does not let the agent change, is logged once and skipped.
    """

    def __init__(
        self, config: KubeletConfiguration, places: HostPlaces, *, recorder: EventRecorder, tasks: Tasks
    ) -> None:
        self._config = config
        self._places = places
        self._recorder = recorder
        self._oom = SystemOom(recorder, places.kmsg)
        self._chains = (
            [
                UtilChains(places.iptables, tasks),
                UtilChains(places.ip6tables, tasks, ipv6=True),
            ]
            if config.make_ip_tables_util_chains
            else []
        )
        self._own = tasks.task("own-process")
        self._system = tasks.task("system-cgroups")

    def check(self) -> None:
        """Check the host.

        Raises `Refused` for cgroup v1 with `failCgroupV1`, swap with `failSwapOn`, and different tunables
        with `protectKernelDefaults`; `InvalidInput` for `systemCgroups: /`.
        """
        config = self._config
        if config.fail_cgroup_v1 and find_mounts().version == 1:
            raise Refused("failCgroupV1: the agent is configured not to run on a host using cgroup v1")
        if config.fail_swap_on and swap_is_on(self._places.swaps):
            text = "running with swap on is not supported, please disable swap or set failSwapOn to false"
            raise Refused(text, subject=str(self._places.swaps))
        if config.system_cgroups == "/":
            raise InvalidInput('system container cannot be root ("/")', subject="systemCgroups")
        if config.protect_kernel_defaults:
            check_tunables(self._places.sysctls)

    async def start(self) -> None:
        """Set the host up; failures are logged, and the node runs anyway."""
        if not self._config.protect_kernel_defaults:
            set_tunables(self._places.sysctls)
        for step in (self._raise_open_files, self._check_swap):
            try:
                step()
            except Refused as error:
                log.warning("%s", error)
        await self._oom.start()
        for chains in self._chains:
            await chains.start()
        self._own.start(self._keep_own_process)
        if self._config.system_cgroups:
            self._system.start(self._keep_system_processes)

    async def stop(self) -> None:
        """Stop maintaining the host; its setup remains."""
        chains = [each.stop for each in self._chains]
        await stop_all([self._own.stop, self._system.stop, *chains, self._oom.stop])

    def _raise_open_files(self) -> None:
        set_open_files(self._config.max_open_files)

    def _check_swap(self) -> None:
        """Check for swap. Raises `Refused` if it cannot be read."""
        if swap_is_on(self._places.swaps) and not tmpfs_may_refuse_swap(os.uname().release):
            self._recorder.node(WARNING, "PossibleMemoryBackedVolumesOnDisk", SWAPPED_VOLUMES)

    async def _keep_own_process(self) -> None:
        score, place = _Once(), _Once()
        name = self._config.kubelet_cgroups
        while True:
            with self._own.step(STEP_SECONDS), score.report():
                set_oom_score(self._places.oom_score, self._config.oom_score_adj)
            if name:
                with self._own.step(STEP_SECONDS), place.report():
                    own = os.getpid()
                    groups = mounted(find_mounts())
                    if not groups.holds(name, own):
                        groups.put(name, own)
            await asyncio.sleep(SYSTEM_SECONDS if name else OWN_SECONDS)

    async def _keep_system_processes(self) -> None:
        once = _Once()
        while True:
            with self._system.step(STEP_SECONDS), once.report():
                groups = mounted(find_mounts())
                # In a thread: a machine may have thousands of processes in its root cgroup.
                await asyncio.to_thread(groups.put_system_processes, self._config.system_cgroups)
            await asyncio.sleep(SYSTEM_SECONDS)


class _Once:
    """Log an error, but not the same one twice in a row."""

    def __init__(self) -> None:
        self._last = ""

    @contextmanager
    def report(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            if str(error) != self._last:
                self._last = str(error)
                log.warning("%s", error)
        else:
            self._last = ""


def mounted(mounts: Mounts) -> Cgroups:
    """Return every hierarchy, the devices controller's first: the kubelet looks for processes in that one."""
    holding = mounts.holding("devices") or mounts.hierarchies[0]
    others = [each for each in mounts.hierarchies if each != holding]
    return Cgroups([Path(each.path) for each in (holding, *others)])


def tmpfs_may_refuse_swap(release: str) -> bool:
    """Return whether a kernel (`6.1.0-13-amd64`) supports the mount option noswap of tmpfs, which came with
    6.4.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= (6, 4)


def swap_is_on(file: Path) -> bool:
    """Return whether /proc/swaps lists a device below its heading; a kernel without swap has no such file."""
    try:
        return len(file.read_text().strip().splitlines()) > 1
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(file), errno=error.errno) from error
