"""Real drivers through a real scheduler: from a claim's template to a device in a container, and back.

The sample driver of `engine.testing` always runs; `test-driver` of the Kubernetes tree and
`dra-example-kubeletplugin` of kubernetes-sigs/dra-example-driver run if KUBE_BIN has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import KubeletConfiguration
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.credentials import Credentials
from engine.cluster.kubeconfig import load_kubeconfig
from engine.node import Node
from engine.node.nodeinfo.options import NodeOptions
from engine.testing.dra_driver import SampleDraDriver
from engine.testing.pytest_plugin import running_containerd2
from tests.cluster.control_plane import ControlPlane, Object, binaries, shown
from tests.runtime.pods import embedded_runtime
from tests.system.busybox import WAIT, container
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root]

NAMESPACE = "/api/v1/namespaces/default"
PODS = f"{NAMESPACE}/pods"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
CDI = Path("/var/run/cdi")
"""Where runtimes look for specifications; the drivers write some of their own there, and remove them."""

DEVICES = 2


@dataclass
class LiveDriver:
    """Describe a driver that has published DEVICES devices: its name, a pattern of the variables by which
    a container learns of a device, and a pattern of the CDI file of a prepared claim."""

    name: str
    variables: str
    specification: str
    ended: Callable[[], str] = lambda: ""
    """Says why the driver's process has ended; empty while it runs."""


class Site:
    """Hold the node n1 of a real cluster with a scheduler and controllers, and do what users do."""

    def __init__(self, plane: ControlPlane, admin: ApiClient, node: Node, root: Path) -> None:
        self.plane, self.admin, self.node, self.root = plane, admin, node, root

    async def create(self, path: str, name: str, **fields: Any) -> Object:
        return await self.admin.create(path, {"metadata": {"name": name}, **fields}, Object)

    async def wants(self, driver: LiveDriver) -> None:
        """Create a class of the driver's devices, and a template of claims for one of them."""
        selector = {"cel": {"expression": f"device.driver == '{driver.name}'"}}
        await self.create(f"{RESOURCE}/deviceclasses", driver.name, spec={"selectors": [selector]})
        exactly = {"deviceClassName": driver.name}
        claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        templates = CLAIMS.replace("resourceclaims", "resourceclaimtemplates")
        await self.create(templates, "one-device", spec={"spec": claim})

    async def run(self, name: str) -> None:
        """Create a pod whose container `user` has a device of a claim, and whose container `other` has
        none."""
        script = f"env > /dev/termination-log; {WAIT}"
        spec = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-device"}],
            "containers": [
                container("user", script, resources={"claims": [{"name": "gpu"}]}),
                container("other", script),
            ],
        }
        await self.create(PODS, name, spec=spec)

    async def until(self, name: str, phase: str) -> Object:
        return await shown(self.admin, f"{PODS}/{name}", lambda pod: pod["status"].get("phase") == phase)

    async def environment(self, name: str, of: str) -> list[str]:
        """Wait until a container has written its environment, and return the names of its variables."""
        pod = await self.admin.get(f"{PODS}/{name}", Object)
        told = self.root / "pods" / pod["metadata"]["uid"] / "containers" / of

        def lines() -> list[str]:
            return [line for path in told.glob("*") for line in path.read_text().splitlines()]

        await eventually(lambda: any(line.startswith("PATH=") for line in lines()))
        return [line.partition("=")[0] for line in lines()]

    async def delete(self, name: str) -> None:
        with contextlib.suppress(ApiError):
            await self.admin.delete(f"{PODS}/{name}", {})
        await eventually(lambda: self.has_none(PODS, name))

    async def named(self, path: str, part: str) -> list[str]:
        listed = await self.admin.get(path, Object)
        names = [each["metadata"]["name"] for each in listed["items"]]
        return [name for name in names if part in name]

    async def has_none(self, path: str, part: str) -> bool:
        return not await self.named(path, part)

    async def running(self) -> list[str]:
        listed = await self.admin.get(PODS, Object)
        pods = [each for each in listed["items"] if each["status"].get("phase") == "Running"]
        return [pod["metadata"]["name"] for pod in pods]

    def claims(self) -> list[dict[str, Any]]:
        """Return the claims that the node reports as prepared."""
        described = self.node.components["devices"].describe()  # type: ignore[attr-defined]
        return list(described["claims"])


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    found = binaries()
    if not (found / "kube-scheduler").is_file() or not (found / "kube-controller-manager").is_file():
        pytest.skip("needs kube-scheduler and kube-controller-manager in KUBE_BIN")
    with ControlPlane(tmp_path, found) as running:
        running.start_controllers()
        yield running
        assert running.refused("system:node:n1") == []


@pytest.fixture(params=["embedded", pytest.param("containerd 2", marks=pytest.mark.containerd)])
async def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, busybox_archive: Path, private_cgroup_root: str
) -> AsyncIterator[Path]:
    if request.param == "containerd 2":
        with running_containerd2(tmp_path, busybox_archive) as containerd:
            yield containerd.socket
        return
    async with embedded_runtime(tmp_path / "runtime", busybox_archive, private_cgroup_root) as pods:
        yield pods.client.socket


@pytest.fixture
async def site(
    plane: ControlPlane, runtime: Path, tmp_path: Path, private_cgroup_root: str
) -> AsyncIterator[Site]:
    config = KubeletConfiguration(
        cgroup_root=private_cgroup_root,
        eviction_hard={"memory.available": "0%"},
        image_gc_high_threshold_percent=100,
        pod_logs_dir=str(tmp_path / "logs"),
        resolv_conf="",
    )
    access = load_kubeconfig(plane.admin)
    admin = ApiClient(access, Credentials(access, clock=time.time), user_agent="test")
    with tempfile.TemporaryDirectory(prefix="kl-") as short:
        root = Path(short) / "root"
        options = NodeOptions(kubeconfig=plane.node)
        node = Node(config=config, runtime_endpoint=str(runtime), root=root, name="n1", options=options)
        await node.start()
        try:
            await shown(admin, f"{NAMESPACE}/serviceaccounts/default", bool)
            yield Site(plane, admin, node, root)
        finally:
            admin.close()
            await node.remove_all_pods()
            await node.stop()


@pytest.fixture(params=["sample", "test-driver", "dra-example-kubeletplugin"])
async def driver(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[LiveDriver]:
    before = set(CDI.glob("*"))
    program = binaries() / request.param
    if request.param == "sample":
        running = sample(site)
    elif program.is_file():
        running = foreign(site, program)
    else:
        pytest.skip(f"needs {request.param} in KUBE_BIN")
    async with running as live:
        try:
            await published(site, live)
            yield live
        finally:
            await site.node.remove_all_pods()  # while their driver can still unprepare
    for path in set(CDI.glob("*")) - before:
        path.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def sample(site: Site) -> AsyncIterator[LiveDriver]:
    name = "dra.example.com"
    driver = SampleDraDriver(site.root / "d", site.root / "plugins_registry", name, cdi=CDI)
    try:
        await driver.start()
        await eventually(lambda: any(told.plugin_registered for told in driver.status))
        devices = [{"name": f"device-{number}"} for number in range(DEVICES)]
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": name, "nodeName": "n1", "pool": pool, "devices": devices}
        await site.create(f"{RESOURCE}/resourceslices", "sample", spec=spec)
        yield LiveDriver(name, r"DRA_pool_dev_", rf"{re.escape(name)}-[0-9a-f-]{{36}}\.json")
        assert driver.wrong == []
        assert driver.prepared == {}
    finally:
        await driver.stop()


@contextlib.asynccontextmanager
async def foreign(site: Site, program: Path) -> AsyncIterator[LiveDriver]:
    registry, plugins = site.root / "plugins_registry", site.root / "plugins"
    if program.name == "test-driver":
        live = LiveDriver("test-driver.cdi.k8s.io", r"claim_\w+_gpu$", r".*test-driver.*\.json")
        (plugins / live.name).mkdir(parents=True)
        arguments = [
            "kubelet-plugin", f"--num-devices={DEVICES}", f"--cdi-dir={CDI}", f"--datadir={plugins}",
            f"--plugin-registration-path={registry}",
        ]  # fmt: skip
    else:
        live = LiveDriver("gpu.example.com", r"GPU_DEVICE_\d+$", r".*gpu.*claim.*|.*gpu.*[0-9a-f-]{36}.*")
        arguments = [
            f"--num-devices={DEVICES}", f"--cdi-root={CDI}", f"--kubelet-plugins-directory-path={plugins}",
            f"--kubelet-registrar-directory-path={registry}",
        ]  # fmt: skip
    CDI.mkdir(parents=True, exist_ok=True)
    path = site.root / "driver.log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, f"--kubeconfig={site.plane.admin}", "--node-name=n1", stdout=log, stderr=log
        )
    live.ended = lambda: "" if process.returncode is None else path.read_text()
    try:
        yield live
        assert not live.ended(), live.ended()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def published(site: Site, driver: LiveDriver) -> None:
    """Wait until the scheduler can allocate the driver's devices."""
    async with asyncio.timeout(PATIENCE):
        while True:
            listed = await site.admin.get(f"{RESOURCE}/resourceslices", Object)
            devices = [
                device
                for each in listed["items"]
                if each["spec"]["driver"] == driver.name
                for device in each["spec"].get("devices", ())
            ]
            if len(devices) == DEVICES:
                return
            assert not driver.ended(), driver.ended()
            await asyncio.sleep(0.1)


async def test_pods_get_their_devices_and_give_them_back(site: Site, driver: LiveDriver) -> None:
    def specifications() -> list[str]:
        return [path.name for path in CDI.glob("*") if re.fullmatch(driver.specification, path.name)]

    await site.wants(driver)
    for name in ("a", "b", "c"):
        await site.run(name)

    async def all_given() -> bool:
        return len(await site.running()) == DEVICES

    await eventually(all_given)
    running = await site.running()
    waits = ({"a", "b", "c"} - set(running)).pop()
    for name in running:
        assert any(re.match(driver.variables, each) for each in await site.environment(name, "user"))
        assert not any(re.match(driver.variables, each) for each in await site.environment(name, "other"))
    devices = {(device["pool"], device["device"]) for claim in site.claims() for device in claim["devices"]}
    assert len(devices) == DEVICES, "no device is given twice"
    assert len(specifications()) >= DEVICES

    await site.delete(running[0])
    await site.until(waits, "Running")
    assert any(re.match(driver.variables, each) for each in await site.environment(waits, "user"))

    for name in ("a", "b", "c"):
        await site.delete(name)
    assert site.claims() == []
    assert specifications() == []
    await eventually(lambda: site.has_none(CLAIMS, ""))
