"""What a pod of a cluster asks of its runtime is told to it, with all that the runtime here has not got.

On the test server, and on a real one where KUBE_BIN says so: neither refuses nor drops one of these fields.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.node.runtime_view.runtime_health import HandlerFeatures, RuntimeFeatures
from engine.runtime.hollow import HollowRuntime
from engine.wire import cri_v1_pb2 as cri
from tests.cluster.control_plane import Object, Plane, shown
from tests.cluster.objects import NAMESPACE, gone, is_ready, make, run

WITHOUT = {"automountServiceAccountToken": False}
ENDS = {"runtime.kubengine.dev/exit-after.c": "10ms", "runtime.kubengine.dev/exit-code.c": "42"}


async def test_users_profiles_and_groups_of_a_pod_reach_the_runtime(
    plane: Plane,
    start: Callable[[Path], Any],
    runtime: HollowRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    can = RuntimeFeatures(
        supplemental_groups_policy=True, handlers={"": HandlerFeatures(user_namespaces=True)}
    )
    monkeypatch.setattr(RuntimeFeatures, "of", lambda _: can)
    monkeypatch.setattr("engine.node.running_node.app_armor_enabled", lambda: True)
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    context = {
        "supplementalGroups": [7],
        "supplementalGroupsPolicy": "Strict",
        "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 30000"}],
        "appArmorProfile": {"type": "RuntimeDefault"},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "own/p.json"},
    }
    main = {
        "name": "c",
        "image": "busybox:1",
        "securityContext": {
            "procMount": "Unmasked",
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"},
        },
        "volumeMounts": [{"name": "model", "mountPath": "/model"}],
    }
    volumes = [{"name": "model", "image": {"reference": "model:1"}}]
    spec = {"hostUsers": False, "securityContext": context, "containers": [main], "volumes": volumes}
    await run(plane, "own", {**spec, **WITHOUT})
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/own", is_ready)
    (sandbox,) = [s.config for s in runtime.service.records.sandboxes.values()]
    (made,) = [c.config for c in runtime.service.records.containers.values()]
    users = sandbox.linux.security_context.namespace_options.userns_options
    assert (users.mode, users.uids[0].host_id % 65536, users.uids[0].length) == (cri.POD, 0, 65536)
    assert users.uids[0].host_id > 0
    assert (tmp_path / "root/pods" / pod["metadata"]["uid"] / "userns").exists()
    assert dict(sandbox.linux.sysctls) == {"net.ipv4.ip_local_port_range": "20000 30000"}
    told = made.linux.security_context
    assert told.namespace_options.userns_options == users
    assert (list(told.supplemental_groups), told.supplemental_groups_policy) == ([7], cri.Strict)
    assert (list(told.masked_paths), list(told.readonly_paths)) == ([], [])
    assert told.apparmor.localhost_ref == "mine"
    assert told.seccomp.localhost_ref == str(tmp_path / "root/seccomp/own/p.json")
    assert [
        mount.image.user_specified_image for mount in made.mounts if mount.container_path == "/model"
    ] == ["model:1"]
    await gone(plane, "own")


async def test_a_container_restarts_where_its_rule_applies(
    plane: Plane, start: Callable[[Path], Any]
) -> None:
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    main = {"name": "c", "image": "busybox:1", "restartPolicy": "Never", "restartPolicyRules": rules}
    spec = {"restartPolicy": "Never", "containers": [main], **WITHOUT}
    await run(plane, "rules", spec, annotations=ENDS)

    def again(pod: Object) -> bool:
        statuses = pod.get("status", {}).get("containerStatuses", ())
        return any(each["restartCount"] > 0 for each in statuses)

    pod = await shown(plane.admin, f"{NAMESPACE}/pods/rules", again)
    assert pod["status"]["phase"] == "Running"
    (status,) = pod["status"]["containerStatuses"]
    assert status["lastState"]["terminated"]["exitCode"] == 42
    await gone(plane, "rules")
