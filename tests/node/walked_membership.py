"""The life of a cluster's node, walked through with one fault in it.

An agent registers its node, shows a static pod, and runs a pod of the API server's with volumes of every
kind, variables, a token and an image that asks for a secret; what these come from changes, the pod is
resized, the agent goes and comes back, and the pods are deleted.
"""

from __future__ import annotations

import base64
import json
from itertools import count
from pathlib import Path

from engine.runtime.objects.records import READY, RUNNING
from engine.testing.csi_driver import SampleCsiDriver
from tests.cluster_rig import PODS, Cluster, Joined, Object
from tests.csi_rig import DRIVER, INLINE, STORAGE, CsiRig
from tests.node.walking import Life
from tests.node_rig import container
from tests.waiting import eventually

NAMESPACE = "/api/v1/namespaces/default"
PROJECTED: list[Object] = [
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"secret": {"name": "s"}},
]
_numbers = count(1)


class MembersLife(Life):
    """Live as a node of `cluster` with a name of its own. `prepare_cluster` has created the objects that
    all lives share."""

    driver: SampleCsiDriver

    def __init__(self, directory: Path, cluster: Cluster, kubeconfig: Path) -> None:
        super().__init__(directory)
        self.cluster = cluster
        self.rig = self.joined = Joined(directory, self.runtime.socket)
        number = next(_numbers)
        self.joined.name, self.joined.kubeconfig = f"member-{number}", kubeconfig
        self.web, self.map, self.claim = f"web-{number}", f"map-{number}", f"claim-{number}"
        self.csi = CsiRig(self.joined, cluster, directory / "d")

    async def prepare(self) -> None:
        self.driver = self.csi.new_driver()
        await self.driver.start()
        self.csi.claim(self.claim)
        self.cluster.server.create(f"{NAMESPACE}/configmaps", self._config_map("before"))

    async def clear(self) -> None:
        await self.csi.close()

    async def live(self) -> None:
        await self.start()
        self.rig.write("static", {"containers": [container()]})
        await self._run()
        pod = await self.cluster.ready(self.web)
        await self.cluster.ready(f"static-{self.joined.name}")
        self.cluster.server.update(f"{NAMESPACE}/configmaps/{self.map}", self._config_map("after"))
        await eventually(lambda: self._published(pod, "configmap/map/said") == "after")
        resources = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "20m"}}}]}
        await self.cluster.client.patch(f"{PODS}/{self.web}/resize", {"spec": resources}, Object)
        await self.cluster.wait_for(self.web, _resized)
        before = self._running()
        assert len(before) == 2
        await self.stop()
        await self.start()
        await eventually(self._all_here)
        await self.cluster.ready(self.web)
        assert self._running() == before, "a container was started again"
        await self.cluster.delete(self.web)
        await self.cluster.gone(self.web)
        (self.rig.manifests / "static.yaml").unlink()
        await self.cluster.gone(f"static-{self.joined.name}")
        await eventually(self._nothing_runs)
        await eventually(self.csi.is_cleaned_up)
        await self.stop()
        assert not list(self.rig.root.rglob(".*.new"))

    async def _run(self) -> None:
        name = {"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}
        sources = {
            "map": {"configMap": {"name": self.map}},
            "secret": {"secret": {"secretName": "s"}},
            "projected": {"projected": {"sources": PROJECTED}},
            "downward": {"downwardAPI": {"items": [name]}},
            "empty": {"emptyDir": {"medium": "Memory"}},
            "claim": {"persistentVolumeClaim": {"claimName": self.claim}},
            "inline": INLINE,
        }
        mounts: list[Object] = [{"name": name, "mountPath": f"/{name}"} for name in sources]
        mounts.append({"name": "map", "mountPath": "/part", "subPath": "said"})
        runs = container(
            image="registry.example.com/private:1",
            volumeMounts=mounts,
            env=[{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            resources={"requests": {"cpu": "10m"}},
        )
        await self.cluster.run(
            self.web,
            self.joined.name,
            containers=[runs],
            volumes=[{"name": name, **source} for name, source in sources.items()],
            imagePullSecrets=[{"name": "registry"}],
            securityContext={"fsGroup": 77},
        )

    def _config_map(self, text: str) -> Object:
        return {"metadata": {"name": self.map}, "data": {"said": text}}

    def _published(self, pod: Object, path: str) -> str:
        """Return the content of a file in the pod's volumes."""
        return (self.rig.root / "pods" / pod["metadata"]["uid"] / f"volumes/kubernetes.io~{path}").read_text()

    def _running(self) -> set[str]:
        return {c.id for c in self.runtime.service.records.containers.values() if c.state == RUNNING}

    def _all_here(self) -> bool:
        return {pod.metadata.name for pod in self.csi.node.pods()} == {self.web, f"static-{self.joined.name}"}

    def _nothing_runs(self) -> bool:
        sandboxes = self.runtime.service.records.sandboxes.values()
        return not self.csi.node.pods() and not any(sandbox.state == READY for sandbox in sandboxes)


def _resized(pod: Object | None) -> bool:
    (status,) = (pod or {})["status"]["containerStatuses"]
    return bool(status.get("resources", {}).get("requests") == {"cpu": "20m"})


def prepare_cluster(cluster: Cluster) -> None:
    """Create the objects that all lives share."""
    registry = {"auths": {"registry.example.com": {"username": "u", "password": "p"}}}
    for name, data in (("s", {"k": "v"}), ("registry", {".dockerconfigjson": json.dumps(registry)})):
        kind = "kubernetes.io/dockerconfigjson" if name == "registry" else "Opaque"
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        made = {"metadata": {"name": name}, "type": kind, "data": encoded}
        cluster.server.create(f"{NAMESPACE}/secrets", made)
    known = {
        "attachRequired": False,
        "podInfoOnMount": True,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "fsGroupPolicy": "File",
        "requiresRepublish": False,
    }
    cluster.server.create(f"{STORAGE}/csidrivers", {"metadata": {"name": DRIVER}, "spec": known})
