"""The Debian package where systemd is init, for who releases it: `make try-deb`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.node.nodeinfo.machine import kubelet_version
from engine.testing.uml import run_in_uml, systemd_available

ROOT = Path(__file__).parents[2]
PACKAGE = os.environ.get("KUBENGINE_PACKAGE", "")
COMMAND = "/usr/lib/kubengine/bin/python3 -I /usr/bin/kubengine run --config /etc/kubengine/config.yaml"


@pytest.mark.root
@pytest.mark.uml
@pytest.mark.slow
@pytest.mark.skipif(not PACKAGE, reason="needs KUBENGINE_PACKAGE, a package that was built (`make try-deb`)")
@pytest.mark.skipif(not systemd_available(), reason="needs systemd and its bus (Debian: systemd, dbus)")
def test_an_upgrade_under_systemd_restarts_no_pod_and_a_purge_leaves_nothing() -> None:
    seen = run_in_uml(
        f"""
        import pathlib
        sys.path[:0] = [{str(ROOT)!r}]
        from tests.system.package_scenes import from_install_to_purge
        report(from_install_to_purge(pathlib.Path({PACKAGE!r}), pathlib.Path(SCRATCH)))
        """,
        memory="3G",
        timeout=3600,
        systemd=True,
    )
    active = {"ActiveState": "active", "SubState": "running", "unit": "enabled"}
    assert seen["installed"] == active
    assert " ".join(seen["command"]) == COMMAND
    assert seen["kubelet"] == f"Kubernetes {kubelet_version()}"
    assert seen["upgraded"] == active | {"the pod goes on": True, "options": "--log-level=debug"}
    assert seen["removed"] == {"agent": {"ActiveState": "inactive", "Result": "success"}, "pods": 1}
    assert seen["left"] == []
