"""Names that would make another request of it: they stay names, and nobody else's watches break off.

An API server takes any text as the name of a pod's claim or secret. On the test server, and on a real one
where KUBE_BIN says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import Object, Plane, shown
from tests.cluster.objects import NAMESPACE, encoded, gone, is_ready, make, mounting, run, wait_for_event
from tests.waiting import eventually

pytestmark = pytest.mark.root

WITHOUT = {"automountServiceAccountToken": False}
CLAIMS = {
    "up": ("../../kube-system/secrets/s", "may not contain '/'"),
    "query": ("c?watch=1", "not found"),
    "line": ("c\r\nx: y", "not found"),
    "self": ("..", "may not be '..'"),
}
SECRETS = {"two-terms": "s,metadata.namespace=kube-system", "secret-line": "s\r\nx: y"}


async def test_a_name_that_would_ask_for_something_else_is_a_name(
    plane: Plane, start: Callable[[Path], Any], tmp_path: Path
) -> None:
    await start(plane.node)
    await shown(plane.admin, "/api/v1/nodes/n1", is_ready)
    await make(plane, "serviceaccounts", "default")
    await make(plane, "secrets", "s", data={"k": encoded("1")})
    await run(plane, "well", mounting({"secret": {"secretName": "s"}}, **WITHOUT))
    pod = await shown(plane.admin, f"{NAMESPACE}/pods/well", is_ready)
    for name, (claim, _) in CLAIMS.items():
        await run(plane, name, mounting({"persistentVolumeClaim": {"claimName": claim}}, **WITHOUT))
    for name, secret in SECRETS.items():
        await run(plane, name, mounting({"secret": {"secretName": secret}}, **WITHOUT))
    for name, (_, words) in CLAIMS.items():
        await wait_for_event(plane, name, "Unable to attach or mount volumes: ", "failed to fetch PVC", words)
    for name, secret in SECRETS.items():
        await wait_for_event(
            plane, name, f'MountVolume.SetUp failed for volume "v" : secret "{secret}" not found'
        )
    await plane.admin.patch(f"{NAMESPACE}/secrets/s", {"data": {"k": encoded("2")}}, Object)
    file = tmp_path / "root/pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~secret/v/k"
    await eventually(lambda: file.read_text() == "2")
    asked = [path for path in plane.requests_of_node() if "kube-system" in path or ".." in path]
    assert asked == []
    for name in ("well", *CLAIMS, *SECRETS):
        await gone(plane, name)
