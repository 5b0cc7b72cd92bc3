"""Agents killed -9 at many points, with device pods that come, go and are edited while none is there.

No device is ever in two containers that run, and whoever runs with devices has its entry in the checkpoint.
`KUBENGINE_CRASH_POINTS` says how many points (`make chaos`: 1,000), `KUBENGINE_CRASH_SEED` which.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from engine.devices.checkpoint import decode
from engine.runtime.hollow import HollowRuntime
from engine.testing.device_plugin import SampleDevicePlugin
from tests.waiting import eventually

GPU = "example.com/gpu"
POINTS = int(os.environ.get("KUBENGINE_CRASH_POINTS", "100"))
SEED = int(os.environ.get("KUBENGINE_CRASH_SEED", "1"))
LAST_OPERATION = 150
LIFETIME = 0.6
LONG_LIFE = 10  # each so many-th agent lives until a pod runs with a device, however slow the machine is
NEVER = 10**9
NAMES = "abcdef"
CONTAINER_RUNNING = 1


class Campaign:
    """A runtime and a plugin that live, manifests, and agents that die."""

    def __init__(self, directory: Path, runtime: HollowRuntime, seed: int) -> None:
        self.directory = directory
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.runtime = runtime
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        self.most = 0
        start = runtime.backend.start_container

        async def checked(container: object) -> object:
            answer = await start(container)
            self.check_devices()
            return answer

        runtime.backend.start_container = checked  # type: ignore[method-assign]

    def change(self) -> None:
        """One manifest comes, goes, or is another pod from now on."""
        path = self.manifests / f"{self.chance.choice(NAMES)}.json"
        if path.exists() and self.chance.random() < 0.4:
            path.unlink()
            return
        amounts = {"limits": {GPU: self.chance.choice((0, 1, 1, 2))}}
        image = f"busybox:{self.chance.randrange(10**6)}"
        container = {"name": "c", "image": image, "imagePullPolicy": "IfNotPresent", "resources": amounts}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{path.stem}"}, "spec": spec}
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(json.dumps(pod))
        unfinished.replace(path)

    def wanted(self) -> bool:
        """Whether any pod asks for a device."""
        pods = [json.loads(path.read_text()) for path in self.manifests.glob("*.json")]
        return any(pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in pods)

    def running(self) -> dict[str, set[str]]:
        """Devices of the containers that run, by the pod's uid."""
        found: dict[str, set[str]] = {}
        for container in self.runtime.service.records.containers.values():
            ids = {e.key: e.value.decode() for e in container.config.envs}.get("EXAMPLE_COM_GPU")
            if ids and container.state == CONTAINER_RUNNING:
                found.setdefault(container.sandbox.config.metadata.uid, set()).update(ids.split(","))
        return found

    def check_devices(self) -> None:
        running = self.running()
        ids = [id for held in running.values() for id in held]
        self.most = max(self.most, len(ids))
        if len(ids) != len(set(ids)):
            self.faults.append(f"given twice: {running}")

    def check_checkpoint(self) -> None:
        path = self.directory / "root/device-plugins/kubelet_internal_checkpoint"
        running = self.running()
        kept: dict[str, set[str]] = {}
        if path.exists():
            for entry in decode(path.read_bytes()).pod_device_entries or ():
                kept.setdefault(entry.pod_uid, set()).update(entry.devices)
        lost = {uid: ids for uid, ids in running.items() if not ids <= kept.get(uid, set())}
        if lost:
            self.faults.append(f"lost from the checkpoint: {lost}, it has {kept}")


async def test_no_crash_gives_a_device_twice_or_loses_one():
    with tempfile.TemporaryDirectory(prefix="kx-") as short:
        async with HollowRuntime(Path(short) / "cri.sock") as runtime:
            campaign = Campaign(Path(short), runtime, SEED)
            agents = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("forking_agents.py")),
                short,
                str(runtime.socket),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            plugin_dir = Path(short) / "root/device-plugins"
            plugin_dir.mkdir(parents=True)
            plugin = SampleDevicePlugin(GPU, plugin_dir / "gpu.sock", count=4)
            await plugin.start()
            plugin.follow(plugin_dir)
            try:
                for point in range(POINTS):
                    for _ in range(campaign.chance.randrange(3)):
                        campaign.change()
                    last = campaign.chance.randint(1, LAST_OPERATION)
                    long = point % LONG_LIFE == LONG_LIFE - 1
                    agents.stdin.write(b"%d\n" % (NEVER if long else last))
                    pid = int(await asyncio.wait_for(agents.stdout.readline(), 240))
                    died = asyncio.ensure_future(agents.stdout.readline())
                    if long:
                        await eventually(lambda: campaign.running() or not campaign.wanted())
                    await asyncio.wait({died}, timeout=LIFETIME)
                    if not died.done():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    await asyncio.wait_for(died, 240)
                    campaign.check_devices()
                    campaign.check_checkpoint()
                    assert not campaign.faults, f"at point {point}: {campaign.faults}"
            finally:
                agents.kill()
                await agents.wait()
                await plugin.stop()
            assert campaign.most, "no pod ever ran with a device"
