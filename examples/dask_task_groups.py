"""Dask workers whose tasks have cgroups of their own: limits, explained OOM kills, eviction under pressure.

A Dask worker has one memory limit for all its tasks, and one greedy task takes the worker with it.
`TaskGroups` is an executor for a worker that runs each task in a process and a cgroup of its own:

    groups = TaskGroups(manager, budget="8Gi", task="1Gi", threads=4)
    async with Worker(scheduler, executor={"default": groups}): ...

- A task gets its CPU share and its memory limit by the kubelet's formulas, as a pod of these resources would.
- A task beyond its limit is killed alone; its future fails with `TaskOutOfMemory`.
- Above `pressure` of the budget, tasks are evicted in the kubelet's order, those furthest above what they
  requested first, and their futures fail with `TaskEvicted` and the reason. Dask retries them if asked to.

`manager` is a `CgroupManager`: with root on the machine's cgroups, without root in a delegated subtree
(`delegated_mounts`). See `cgroup_manager`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from engine import KubeletConfiguration, Pod, convert, rank
from engine.api.quantity import Quantity
from engine.cgroups.manager import CgroupManager
from engine.host.cgroupfs.mounts import delegated_mounts

CHILD = """
import os, pickle, sys
os.dup2(2, 1)  # what the task prints must not get between the bytes of its result
import cloudpickle
with os.fdopen(int(sys.argv[1]), "rb") as given, os.fdopen(int(sys.argv[2]), "wb") as result:
    function, arguments, named = pickle.load(given)
    try:
        answer = (True, function(*arguments, **named))
    except BaseException as error:
        answer = (False, error)
    result.write(cloudpickle.dumps(answer))
"""
MEMORY_FILES = {1: "memory.usage_in_bytes", 2: "memory.current"}
OOM_FILES = {1: "memory.oom_control", 2: "memory.events"}


class TaskOutOfMemory(MemoryError):
    """Raised for a task that the kernel killed at the memory limit of its cgroup."""


class TaskEvicted(RuntimeError):
    """Raised for a task that ended to relieve the pressure on memory; it may be tried again."""


@dataclass(slots=True)
class RunningTask:
    """Represent a task as a pod for the node's rules, with the process that runs it."""

    pod: dict[str, Any]
    path: str
    process: subprocess.Popen[bytes]
    evicted: str = ""

    @property
    def uid(self) -> str:
        uid: str = self.pod["metadata"]["uid"]
        return uid


class TaskGroups(Executor):
    """Run each task in a cgroup of its own, `threads` of them at a time.

    `task` is what a task requests, `limit` what it may use at most (default: twice the request), both
    quantities; `cpu` is its share. `budget` bounds all tasks together; above `pressure` of it, one task is
    evicted per look, every `seconds`.
    """

    def __init__(
        self,
        manager: CgroupManager,
        *,
        budget: str,
        task: str,
        limit: str | None = None,
        cpu: str = "1",
        threads: int = 1,
        pressure: float = 0.9,
        seconds: float = 0.2,
    ) -> None:
        self._manager = manager
        self._high = int(Quantity.parse(budget).value * pressure)
        most = limit or str(2 * Quantity.parse(task).value)
        self._resources = {"requests": {"cpu": cpu, "memory": task}, "limits": {"memory": most}}
        self._seconds = seconds
        self._names = itertools.count(1)
        self._tasks: dict[str, RunningTask] = {}
        self._lock = threading.Lock()
        """Guards the manager and the table of tasks; never held while a task runs."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="task-group")
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="task-pressure", daemon=True)
        self._watcher.start()

    # The protocol of executors

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a task; its future fails with the task's error, `TaskOutOfMemory` or `TaskEvicted`."""
        payload = cloudpickle.dumps((function, arguments, named))
        return self._threads.submit(self._run, payload)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill what still runs, and remove its cgroups."""
        self._closed.set()
        with self._lock:
            for task in self._tasks.values():
                task.process.kill()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        self._watcher.join()

    # One task

    def _run(self, payload: bytes) -> Any:
        task, given, result = self._start()
        try:
            with contextlib.suppress(BrokenPipeError), os.fdopen(given, "wb") as pipe:
                pipe.write(payload)
            with os.fdopen(result, "rb") as pipe:
                answer = pipe.read()
            status = task.process.wait()
            return self._result(task, status, answer)
        finally:
            task.process.kill()
            task.process.wait()
            with self._lock:
                del self._tasks[task.uid]
                self._manager.remove_pod(task.uid, wait=5.0)

    def _start(self) -> tuple[RunningTask, int, int]:
        """Start a process, and put it into its cgroup before it gets its task."""
        uid = f"task-{os.getpid()}-{next(self._names)}"
        containers = [{"name": "task", "resources": self._resources}]
        pod = {"metadata": {"name": uid, "uid": uid}, "spec": {"containers": containers}}
        with self._lock:
            path = self._manager.create_pod(convert(pod, Pod, uid))
        read_task, given = os.pipe()
        result, write_result = os.pipe()
        command = [sys.executable, "-c", CHILD, str(read_task), str(write_result)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(read_task, write_result))
        os.close(read_task)
        os.close(write_result)
        task = RunningTask(pod, path, process)
        with self._lock:
            self._tasks[uid] = task
        for hierarchy in self._manager.mounts.hierarchies:
            Path(f"{hierarchy.path}{path}/cgroup.procs").write_text(str(process.pid))
        return task, given, result

    def _result(self, task: RunningTask, status: int, answer: bytes) -> Any:
        if task.evicted:
            raise TaskEvicted(task.evicted)
        if status == -signal.SIGKILL and self._oom_kills(task):
            most = Quantity.parse(self._resources["limits"]["memory"]).value
            raise TaskOutOfMemory(f"killed at its memory limit of {most >> 20} MiB")
        if not answer:
            raise RuntimeError(f"the process of the task ended with status {status}")
        succeeded, value = pickle.loads(answer)
        if not succeeded:
            raise value
        return value

    # Memory

    def _file(self, path: str, name: str) -> Path:
        return self._manager.mounts.directory("memory", path) / name

    def _oom_kills(self, task: RunningTask) -> int:
        text = self._file(task.path, OOM_FILES[self._manager.mounts.version]).read_text()
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)

    def _watch(self) -> None:
        while not self._closed.wait(self._seconds):
            with self._lock:
                self._relieve()

    def _relieve(self) -> None:
        """Evict the first task in the kubelet's order if all together use too much."""
        name = MEMORY_FILES[self._manager.mounts.version]
        usage = {}
        for task in self._tasks.values():
            with contextlib.suppress(OSError):  # it has just ended
                usage[task.uid] = int(self._file(task.path, name).read_text())
        used = sum(usage.values())
        if used <= self._high or not usage:
            return
        ranked = rank([task.pod for uid, task in self._tasks.items() if uid in usage], usage)
        first = self._tasks[ranked[0].uid]
        high = self._high >> 20
        first.evicted = (
            f"evicted at {used >> 20} MiB of {high} MiB that all tasks may use: {ranked[0].reason}"
        )
        first.process.kill()


def cgroup_manager(budget: str, cpus: int, *, root: str = "", delegated: str | None = None) -> CgroupManager:
    """Return a started manager for `budget` bytes of memory, in the cgroup `root` (with root), or in the
    directory of a delegated subtree."""
    manager = CgroupManager(
        config=KubeletConfiguration(cgroup_root=root or "/", eviction_hard={}),
        capacity={"cpu": cpus * 1000, "memory": Quantity.parse(budget).value, "pid": 1000},
        mounts=delegated_mounts(delegated) if delegated else None,
    )
    manager.start()
    return manager
