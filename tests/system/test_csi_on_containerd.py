"""A storage driver's volumes, a file system and a block device, in containers of a real containerd."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.cluster.client import ApiClient
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.host.mounts import unmount_below
from engine.testing.apiserver import ApiServer
from engine.testing.containerd import Containerd
from tests.cluster_rig import Cluster, Joined
from tests.csi_rig import CsiRig
from tests.disks import disk
from tests.system.busybox import WAIT, container
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.containerd]

SHOW = "{ cat /files/in; stat -c %F /dev/data; head -c 9 /dev/data; } > /files/n; mv /files/n /files/out; "
FILES = {"name": "files", "mountPath": "/files"}
DISK = {"name": "disk", "devicePath": "/dev/data"}


@pytest.fixture
async def csi(tmp_path: Path, containerd: Containerd) -> AsyncIterator[CsiRig]:
    async with ApiServer(tmp_path / "api") as server:
        config = load_kubeconfig(server.kubeconfig("admin"))
        client = ApiClient(config, Credentials(config, clock=lambda: 0.0), user_agent="test")
        with tempfile.TemporaryDirectory(prefix="kc-") as directory:
            short = Path(directory)
            joined = Joined(short, containerd.socket)
            joined.kubeconfig = server.kubeconfig("system:node:n1")
            rig = CsiRig(joined, Cluster(server, client), short / "d")
            await joined.start()
            yield rig
            await joined.close()
            await rig.close()
            unmount_below(short)
        client.close()


async def test_containers_have_a_drivers_files_and_its_device(csi: CsiRig, tmp_path: Path) -> None:
    csi.known()
    csi.claim("files", "files")
    csi.claim("disk", "disk", volumeMode="Block")
    driver = await csi.driver()
    (driver.volume("files") / "in").write_text("in\n")
    with disk(tmp_path / "disk") as device:
        device.write_bytes(b"on a disk")
        os.mknod(driver.volumes / "disk", stat.S_IFBLK | 0o600, device.stat().st_rdev)
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("files", "disk")]
        main = container("c", SHOW + WAIT, volumeMounts=[FILES], volumeDevices=[DISK])
        await csi.cluster.run("p", containers=[main], volumes=volumes)
        out = driver.volume("files") / "out"
        await eventually(out.exists)
        assert out.read_text() == "in\nblock special file\non a disk"
        await csi.cluster.ready("p")
        await csi.joined.restart()
        await csi.taken_on(driver, times=2)
        await csi.delete()
        await eventually(csi.is_cleaned_up)
    methods = [call.method for call in driver.calls if call.method.endswith(("blishVolume", "stageVolume"))]
    assert methods.count("NodeUnpublishVolume") == methods.count("NodeUnstageVolume") == 2
