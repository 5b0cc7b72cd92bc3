"""The runtime's cgroup driver comes before the configuration's."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.errors import Refused
from engine.cri.client import RuntimeClient
from engine.metrics import Registry
from engine.node.node import cgroup_driver
from engine.runtime.hollow import HollowRuntime
from engine.server import exposition
from engine.wire import cri_v1_pb2 as cri
from tests.node_rig import Rig


class Answering(RuntimeClient):
    """Answer RuntimeConfig with `answer`; None stands for a runtime without that method."""

    def __init__(self, answer: cri.RuntimeConfigResponse | None) -> None:
        super().__init__("/run/none.sock")
        self.answer = answer

    async def runtime_config(self) -> cri.RuntimeConfigResponse | None:
        return self.answer


async def test_the_driver_of_the_runtime_replaces_the_configured_one(tmp_path: Path) -> None:
    socket = tmp_path / "cri.sock"
    runtime = HollowRuntime(socket, cgroup_driver="cgroupfs")
    await runtime.start()
    rig = Rig(tmp_path, socket, cgroup_driver="systemd")
    try:
        node = await rig.start()
        assert node.config.cgroup_driver == "cgroupfs"
        assert rig.config.cgroup_driver == "systemd", "the caller's configuration stays as it is"
    finally:
        await rig.close()
        await runtime.purge()


@pytest.mark.parametrize(
    ("answer", "driver"),
    [
        (None, "systemd"),
        (cri.RuntimeConfigResponse(), "systemd"),
        (
            cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS)),
            "cgroupfs",
        ),
    ],
    ids=["unimplemented", "no answer for Linux", "cgroupfs"],
)
async def test_a_runtime_that_does_not_say_leaves_the_configured_one(
    answer: cri.RuntimeConfigResponse | None, driver: str
) -> None:
    registry = Registry()
    assert await cgroup_driver(Answering(answer), "systemd", registry) == driver
    losing_support = 'kubelet_cri_losing_support{version="1.37.0"} 1' in "".join(exposition(registry))
    assert losing_support is (answer is None)


async def test_an_unknown_driver_is_refused() -> None:
    linux = cri.LinuxRuntimeConfiguration(cgroup_driver=7)  # type: ignore[arg-type]
    answer = Answering(cri.RuntimeConfigResponse(linux=linux))
    with pytest.raises(Refused, match=r"none\.sock: names an unknown cgroup driver: 7"):
        await cgroup_driver(answer, "systemd", Registry())
