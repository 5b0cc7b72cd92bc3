"""A node on a real containerd, and the steps of probe scenarios on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.api.config import CrashLoopBackOffConfig
from engine.api.duration import Duration
from engine.api.pod import Pod
from engine.api.status import ContainerStatus
from engine.node import Node
from engine.probes.manager import ProbeManager
from tests.node_rig import Rig
from tests.system.busybox import WAIT, container


class ScenarioNode:
    """Run pods with one container or sidecar `app`, which runs a shell script and has probes."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        slowest = CrashLoopBackOffConfig(max_container_restart_period=Duration(1))
        rig.config = msgspec.structs.replace(rig.config, crash_loop_back_off=slowest)
        self._manifests: dict[str, Path] = {}

    @property
    def node(self) -> Node:
        assert self.rig.node is not None
        return self.rig.node

    @property
    def manager(self) -> ProbeManager:
        found = self.node.components["probes"]
        assert isinstance(found, ProbeManager)
        return found

    def run(
        self,
        script: str,
        *,
        name: str = "p",
        sidecar: bool = False,
        main: str = WAIT,
        grace: int = 1,
        **probes: Any,
    ) -> None:
        """Write a manifest; probes are as in one, except that `ms` holds the annotation's times.

        A sidecar is next to a container `main`, which runs that script.
        """
        times = {type: probe.pop("ms") for type, probe in probes.items() if "ms" in probe}
        app = container(
            "app", script, **{f"{type}Probe": {"periodSeconds": 1, **probe} for type, probe in probes.items()}
        )
        spec: dict[str, Any] = {"containers": [app], "terminationGracePeriodSeconds": grace}
        if sidecar:
            spec |= {
                "initContainers": [{**app, "restartPolicy": "Always"}],
                "containers": [container("main", main)],
            }
        annotation = msgspec.json.encode({"app": times}).decode()
        self._manifests[name] = self.rig.write(name, spec, annotations={"kubengine.dev/probes": annotation})

    def delete(self, name: str = "p") -> None:
        self._manifests[name].unlink()

    def pod(self, name: str = "p") -> Pod:
        found = self.rig.pod(name)
        assert found is not None
        return found

    def statuses(self, name: str = "p") -> dict[str, ContainerStatus]:
        pod = self.rig.pod(name)
        if pod is None:
            return {}
        found = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
        return {status.name: status for status in found}

    def restarts(self, name: str = "p", container: str = "app") -> int:
        status = self.statuses(name).get(container)
        return status.restart_count if status is not None else 0

    def ready(self, name: str = "p") -> bool:
        status = self.statuses(name).get("app")
        return status is not None and status.ready

    def running(self, name: str, container: str) -> bool:
        status = self.statuses(name).get(container)
        return status is not None and status.state is not None and status.state.running is not None

    def probe(self, type: str, name: str = "p") -> dict[str, Any]:
        probes: list[dict[str, Any]] = self.manager.describe(pod=self.pod(name).uid)["probes"]
        return next(probe for probe in probes if probe["type"] == type)

    def container_id(self, name: str = "p") -> str:
        (status,) = self.pod(name).status.container_statuses or []
        return status.container_id.rpartition("/")[2]

    def messages(self, reason: str = "Unhealthy") -> list[str]:
        return [event.message for event in self.node.recorder if event.reason == reason]

    def times(self, reason: str, text: str = "", *, container: str = "") -> list[float]:
        """Return the times of events with a reason, of one container or of any."""
        return [
            e.at
            for e in self.node.recorder
            if e.reason == reason and text in e.message and container in ("", e.container)
        ]

    def outcomes(self, name: str = "p") -> dict[str, int]:
        (probe,) = self.manager.describe(pod=self.pod(name).uid)["probes"]
        found: dict[str, int] = probe["outcomes"]
        return found
