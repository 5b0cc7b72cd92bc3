"""Volumes whose server does not answer: their pods wait, others run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.node_rig import Rig, container
from tests.silent_file_system import silent_file_system
from tests.waiting import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse"),
]
PODS = 40
"""More than `asyncio.to_thread` has threads on any machine."""


@pytest.mark.parametrize(
    ("mount", "type"),
    [({}, "Directory"), ({"subPath": "below"}, "")],
    ids=["type of hostPath", "subPath"],
)
async def test_other_pods_run(rig: Rig, tmp_path: Path, mount: dict[str, Any], type: str) -> None:
    directory = tmp_path / "served"
    directory.mkdir()
    volume = {"name": "v", "hostPath": {"path": str(directory), "type": type}}
    spec = {
        "containers": [container(volumeMounts=[{"name": "v", "mountPath": "/v", **mount}])],
        "volumes": [volume],
    }
    with silent_file_system(directory):
        await rig.start()
        for number in range(PODS):
            rig.write(f"waits-{number}", spec)
        await eventually(lambda: all(rig.phase(f"waits-{number}") == "Pending" for number in range(PODS)))
        rig.write("other", {"containers": [container()], "volumes": [{"name": "e", "emptyDir": {}}]})
        await eventually(lambda: rig.phase("other") == "Running")
        assert {rig.phase(f"waits-{number}") for number in range(PODS)} == {"Pending"}
        await rig.stop()
