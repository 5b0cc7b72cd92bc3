"""Run a node of a cluster with CSI drivers, and create claims, volumes and pods for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from engine.csi.paths import all_devices, pods_volumes, staged
from engine.host.mountinfo import mounts_below
from engine.node import Node
from engine.testing.csi_driver import SampleCsiDriver
from tests.cluster_rig import NODE, Cluster, Joined, Object
from tests.node_rig import container
from tests.waiting import eventually

LEFT = ("globalmount", "vol_data.json")
DRIVER = "sample.csi.example.com"
STORAGE = "/apis/storage.k8s.io/v1"
INLINE: Object = {"csi": {"driver": DRIVER}}
CLAIMED: Object = {"persistentVolumeClaim": {"claimName": "claim"}}


class CsiRig:
    """Run CSI drivers beside the node of `joined`, and stop them with `close`."""

    def __init__(self, joined: Joined, cluster: Cluster, directory: Path) -> None:
        self.joined, self.cluster, self._directory = joined, cluster, directory
        self.drivers: list[SampleCsiDriver] = []
        directory.mkdir()

    @property
    def root(self) -> Path:
        return self.joined.root

    @property
    def node(self) -> Node:
        assert self.joined.node is not None
        return self.joined.node

    async def driver(self, **options: Any) -> SampleCsiDriver:
        """Start a driver and wait until the node has registered it."""
        driver = self.new_driver(**options)
        await driver.start()
        await self.taken_on(driver)
        return driver

    def new_driver(self, name: str = DRIVER, **options: Any) -> SampleCsiDriver:
        driver = SampleCsiDriver(self._directory / name, self.root / "plugins_registry", name, **options)
        self.drivers.append(driver)
        return driver

    async def taken_on(self, driver: SampleCsiDriver, times: int = 1) -> None:
        await eventually(lambda: sum(said.plugin_registered for said in driver.status) >= times)

    def known(self, name: str = DRIVER, **spec: Any) -> Object:
        """Create the driver's CSIDriver object, with the API server's defaults."""
        defaults = {
            "attachRequired": False,
            "podInfoOnMount": False,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "requiresRepublish": False,
        }
        made = {"metadata": {"name": name}, "spec": {**defaults, **spec}}
        return self.cluster.server.create(f"{STORAGE}/csidrivers", made)

    def claim(self, name: str = "claim", handle: str = "h1", **spec: Any) -> None:
        """Create a claim and the volume that it is bound to.

        The volume is the driver's; with `csi=None` it is the one in `spec`.
        """
        given = spec.pop("csi", {})
        source = None if given is None else {"driver": DRIVER, "volumeHandle": handle, **given}
        made = self.cluster.server.create(
            "/api/v1/namespaces/default/persistentvolumeclaims",
            {
                "metadata": {"name": name},
                "spec": {"volumeName": f"pv-{name}"},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            },
        )
        reference = {"namespace": "default", "name": name, "uid": made["metadata"]["uid"]}
        self.cluster.server.create(
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": f"pv-{name}"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "claimRef": reference,
                    "csi": source,
                    **spec,
                },
            },
        )

    async def run(self, source: Object = INLINE, name: str = "p", **spec: Any) -> Object:
        """Create a pod with one volume at /v, and wait until it is Ready."""
        await self.ask(source, name, **spec)
        return await self.cluster.ready(name)

    async def ask(
        self, source: Object = INLINE, name: str = "p", *, block: bool = False, **spec: Any
    ) -> Object:
        used = (
            container(volumeDevices=[{"name": "v", "devicePath": "/v"}])
            if block
            else container(volumeMounts=[{"name": "v", "mountPath": "/v"}])
        )
        volumes = [{"name": "v", **source}]
        return await self.cluster.run(name, containers=[used], volumes=volumes, **spec)

    async def delete(self, name: str = "p") -> None:
        await self.cluster.delete(name)
        await self.cluster.gone(name)

    def published(self, pod: Object, volume: str = "v") -> Path:
        """Return the directory at which a pod's volume is published."""
        uid: str = pod["metadata"]["uid"]
        return pods_volumes(self.root, uid) / volume

    def staged(self, handle: str = "h1") -> Path:
        return staged(self.root, DRIVER, handle)

    def csi_node(self) -> Object:
        found: Object = self.cluster.server.get(f"{STORAGE}/csinodes/n1")
        return found

    def node_ids(self) -> Object:
        node = self.cluster.server.get(NODE)
        said: Object = json.loads(
            node["metadata"].get("annotations", {}).get("csi.volume.kubernetes.io/nodeid", "{}")
        )
        return said

    def messages(self, reason: str = "FailedMount") -> list[str]:
        return [event.message for event in self.node.recorder if event.reason == reason]

    def is_cleaned_up(self) -> bool:
        """Tell whether no mount, staging directory, device or pod directory remains."""
        try:
            return not (self._left() or mounts_below(self.root))
        except OSError:
            return False  # a directory is being removed, or the walk failed this call

    def _left(self) -> list[str]:
        plugins = self.root / "plugins"
        left = [n for _, below, files in os.walk(plugins) for n in (*below, *files) if n in LEFT]
        left += [str(path) for path in all_devices(self.root).glob("*/*")]
        return left + [path.name for path in (self.root / "pods").iterdir()]

    async def close(self) -> None:
        for driver in self.drivers:
            await driver.stop()
