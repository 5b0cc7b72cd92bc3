"""Names of images are told from what is none in the words of the kubelet v1.36."""

from __future__ import annotations

import pytest

from engine.node.images.access import fault_of_name
from tests.node_rig import Rig, container
from tests.waiting import eventually

NAME = '"a b"'
NO_FORM = "invalid reference format"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("busybox", ""),
        ("busybox:latest", ""),
        ("h:5000/a/b@sha256:" + "0" * 64, ""),
        ("[::1]:5000/a", ""),
        ("UPPER/x:1", ""),
        ("1.x_y/a", ""),
        ("x__y/x--y:T_t", ""),
        ("", NO_FORM),
        ("a b", NO_FORM),
        ("a..b", NO_FORM),
        ("x___y", NO_FORM),
        ("a:" + "t" * 129, NO_FORM),
        ("a\n", NO_FORM),
        ("Busybox:1", f"{NO_FORM}: repository name (library/Busybox) must be lowercase"),
        ("UPPER.x_y/a", "repository name must be lowercase"),
        ("a" * 64, f"invalid repository name ({'a' * 64}), cannot specify 64-byte hexadecimal strings"),
        ("b" * 256, "repository name must not be more than 255 characters"),
        ("a@md5:" + "0" * 32, "unsupported digest algorithm"),
        ("a@sha256:" + "0" * 63, "invalid checksum digest length"),
        ("a@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("a:1@T:" + "0" * 32, "invalid checksum digest format"),
    ],
)
def test_faults_are_the_kubelets(name: str, fault: str):
    assert fault_of_name(name) == fault


async def test_a_container_with_an_image_without_a_name_reports_that(rig: Rig):
    await rig.start()
    rig.write("unnamed", {"containers": [container(image="a b")]})

    def waiting() -> tuple[str, str]:
        pod = rig.pod("unnamed")
        statuses = (pod.status.container_statuses if pod is not None else None) or []
        state = statuses[0].state.waiting if statuses else None
        return (state.reason, state.message) if state is not None else ("", "")

    await eventually(lambda: waiting()[0] == "InvalidImageName")
    fault = f"couldn't parse image name {NAME}: {NO_FORM}"
    text = f"Failed to apply default image tag {NAME}: {fault}"
    assert waiting()[1] == text
    assert rig.node is not None
    said = [(event.reason, event.message) for event in rig.node.recorder if event.pod]
    assert ("InspectFailed", text) in said
    assert ("Failed", "Error: InvalidImageName") in said
