"""The embedded runtime dies at any moment; containers, their logs and exit codes don't."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.cri.client import RuntimeClient
from engine.runtime.embedded import EmbeddedRuntime
from engine.runtime.hollow import HollowRuntime
from engine.runtime.shim.linux import start_time
from engine.wire import cri_v1_pb2 as cri
from tests.runtime.pods import Pods, assert_nothing_left
from tests.runtime.stream_clients import Spdy
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root


class Process:
    """Run `kubengine runtime` in another process, with its files below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "r.sock"
        self.options = ["--root", str(directory / "root"), "--state", str(directory / "state")]
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await self._run("--socket", str(self.socket), *self.options)
        client = RuntimeClient(str(self.socket))

        async def answers() -> bool:
            assert self.process is not None
            assert self.process.returncode is None
            if not self.socket.exists():
                return False
            try:
                await client.version()
            except Exception:
                return False
            return True

        await eventually(answers)
        await client.close()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        await self.process.wait()

    async def command(self, *arguments: str) -> str:
        process = await self._run(*arguments)
        out, _ = await process.communicate()
        assert process.returncode == 0, out
        return out.decode()

    async def _run(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.cli", "runtime", *arguments, stdout=asyncio.subprocess.PIPE
        )


@asynccontextmanager
async def separate_runtime(
    directory: Path, archive: Path, cgroup_root: str
) -> AsyncIterator[tuple[Process, Pods]]:
    runtime = Process(directory)
    await runtime.command("import", "--root", str(directory / "root"), str(archive))
    await runtime.start()
    client = RuntimeClient(str(runtime.socket))
    pods = Pods(client, directory, cgroup_root, "embedded")
    bridge = ""
    try:
        yield runtime, pods
        await pods.note_processes()
        bridge = EmbeddedRuntime(
            socket=runtime.socket, root=directory / "root", state=directory / "state"
        ).processes.network.bridge
    finally:
        await client.close()
        await runtime.kill(signal.SIGTERM)
        await runtime.command("purge", *runtime.options)
    await assert_nothing_left(directory / "root", directory / "state", bridge, cgroup_root, pods.pids)


async def test_containers_survive_a_killed_runtime(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    async with separate_runtime(tmp_path, busybox_archive, private_cgroup_root) as (runtime, pods):
        sandbox = await pods.pod()
        address = (await pods.client.pod_sandbox_status(sandbox)).status.network.ip
        counter = await pods.shell("i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done", sandbox)
        flag = tmp_path / "flag"
        flag.mkdir()
        mount = cri.Mount(host_path=str(flag), container_path="/flag")
        ends_meanwhile = await pods.shell(
            "while [ ! -e /flag/go ]; do sleep 0.01; done; echo bye; exit 9", sandbox, mounts=[mount]
        )
        dead = await pods.shell("exit 5", sandbox)
        await pods.ended(dead)
        created = await pods.create(sandbox, "sleep", "1000")
        before = await pods.status(counter)

        await runtime.kill()
        (flag / "go").touch()
        await asyncio.sleep(0.3)
        await runtime.start()

        after = await pods.status(counter)
        assert after.state == cri.CONTAINER_RUNNING
        assert after.started_at == before.started_at
        status = (await pods.client.pod_sandbox_status(sandbox)).status
        assert (status.state, status.network.ip) == (cri.SANDBOX_READY, address)
        ended = await pods.ended(ends_meanwhile)
        assert (ended.exit_code, ended.reason) == (9, "Error")
        assert pods.log(ended) == [("stdout", "F", "bye")]
        assert (await pods.status(dead)).exit_code == 5
        assert (await pods.status(created)).state == cri.CONTAINER_CREATED
        await pods.client.start_container(created)
        answer = await pods.client.exec_sync(counter, ["echo", "still here"], 10)
        assert answer.stdout == b"still here\n"
        await pods.client.stop_container(counter, 0)
        numbers = [int(text) for _, _, text in pods.log(await pods.status(counter))]
        assert numbers == list(range(len(numbers)))
        second = await pods.pod()
        assert (await pods.client.pod_sandbox_status(second)).status.network.ip != address


async def test_a_new_runtime_attaches_to_old_containers(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    async with separate_runtime(tmp_path, busybox_archive, private_cgroup_root) as (runtime, pods):
        container = await pods.start(await pods.pod(), "/bin/sh", stdin=True)
        await runtime.kill()
        await runtime.start()
        request = cri.AttachRequest(container_id=container, stdin=True, stdout=True)
        url = (await pods.client._runtime("Attach", request, cri.AttachResponse)).url
        async with await Spdy.connect(url, "v4.channel.k8s.io") as client:
            _, stdin, stdout = [await client.open(streamtype=name) for name in ("error", "stdin", "stdout")]
            client.send(stdin, b"echo still here\n")
            await client.until(lambda: client.received[stdout] == b"still here\n")


async def test_killed_while_pods_are_being_made(
    tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> None:
    """Whatever was under way is either there and usable or gone without a trace."""
    async with separate_runtime(tmp_path, busybox_archive, private_cgroup_root) as (runtime, pods):
        for delay in (0.01, 0.03, 0.05, 0.08, 0.15):

            async def make() -> None:
                sandbox = await pods.pod()
                await pods.start(sandbox, "sleep", "1000")
                await pods.start(sandbox, "sleep", "1000")

            making = [asyncio.create_task(make()) for _ in range(6)]
            await asyncio.sleep(delay)
            await runtime.kill()
            await asyncio.gather(*making, return_exceptions=True)
            await runtime.start()
            await pods.note_processes()
            sandboxes = {s.id: s for s in await pods.client.list_pod_sandboxes()}
            assert all(s.state == cri.SANDBOX_READY for s in sandboxes.values())
            containers = await pods.client.list_containers()
            assert {c.pod_sandbox_id for c in containers} <= set(sandboxes)
            for container in containers:
                state = container.state
                status = await pods.status(container.id)
                assert state in (cri.CONTAINER_CREATED, cri.CONTAINER_RUNNING), status
                if container.state == cri.CONTAINER_RUNNING:
                    await pods.client.exec_sync(container.id, ["true"], 10)
            listed = {c.id for c in containers} | set(sandboxes)
            top = Path("/sys/fs/cgroup/memory", private_cgroup_root.strip("/"))

            async def nobody_runs_unknown(top: Path = top, listed: set[str] = listed) -> bool:
                groups = [g for g in top.glob("*/*") if g.is_dir() and g.name not in listed]
                return not any((group / "cgroup.procs").read_text() for group in groups)

            await eventually(nobody_runs_unknown)
            for sandbox in sandboxes:
                await pods.client.remove_pod_sandbox(sandbox)


async def test_lost_shim_takes_its_container_along(embedded: Pods) -> None:
    container = await embedded.start(await embedded.pod(), "sleep", "1000")
    facts = json.loads((await embedded.client.container_status(container, verbose=True)).info["info"])
    began = start_time(facts["pid"])
    os.kill(facts["shim"], signal.SIGKILL)
    status = await embedded.ended(container)
    assert (status.exit_code, status.reason) == (255, "Error")
    assert "killed" in status.message
    assert start_time(facts["pid"]) != began


async def test_lost_sandbox_process_makes_the_pod_not_ready(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    info = (await embedded.client.pod_sandbox_status(sandbox, verbose=True)).info
    os.kill(json.loads(info["info"])["pid"], signal.SIGKILL)

    async def not_ready() -> bool:
        status = (await embedded.client.pod_sandbox_status(sandbox)).status
        return status.state == cri.SANDBOX_NOTREADY

    await eventually(not_ready)
    await embedded.client.remove_pod_sandbox(sandbox)


async def test_lost_spawner_is_replaced(embedded: Pods) -> None:
    sandbox = await embedded.pod()
    [spawner] = [
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/stat")
        if _is_spawner_of_this_process(entry)
    ]
    os.kill(spawner, signal.SIGKILL)
    container = await embedded.start(sandbox, "sleep", "1000")
    assert (await embedded.status(container)).state == cri.CONTAINER_RUNNING


async def test_two_runtimes_do_not_share_a_state_directory(embedded: Pods) -> None:
    second = EmbeddedRuntime(
        socket=embedded.directory / "other.sock",
        root=embedded.directory / "root",
        state=embedded.directory / "state",
    )
    with pytest.raises(Refused, match="another runtime"):
        await second.start()
    await second.service.stop()


async def test_other_users_get_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match="containers need root"):
        EmbeddedRuntime(socket=tmp_path / "r.sock", root=tmp_path / "root", state=tmp_path / "state")
    hollow = HollowRuntime(tmp_path / "r.sock")
    await hollow.start()
    await hollow.purge()
    assert list(tmp_path.iterdir()) == []


def _is_spawner_of_this_process(stat: Path) -> bool:
    try:
        name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
    except (OSError, IndexError):
        return False
    state, parent = fields.split()[:2]
    return name == "kubengine-spawn" and int(parent) == os.getpid() and state != "Z"


SLOW_PARENT = """
import os, sys, time
from engine.runtime.shim import sandbox

out = os.dup(1)

class Report:
    def send(self, message):
        os.write(out, repr(message).encode())
    def close(self):
        pass
    def may_go(self):
        os._exit(0)

def slow_fork(fork=os.fork):
    child = fork()
    if child:
        os.waitpid(child, 0)
    return child

os.fork = slow_fork
os.setsid()
os._exit(sandbox.run(
    {"host_ipc": False, "host_pid": False, "host_network": True, "forwards": [], "sysctls": {},
     "cgroups": [], "directory": sys.argv[1]}, Report()))
"""


def test_a_sandbox_knows_itself_however_slow_its_parent_is(tmp_path: Path) -> None:
    """The parent runs again only after the sandbox has pivoted away from /proc and is done."""
    arguments = [sys.executable, "-c", SLOW_PARENT, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=True)
    message = ast.literal_eval(done.stdout)
    assert message.keys() == {"pid", "start_time"}
    assert message["start_time"] > 0
