"""Paths as a kubelet has them, and back from a name to whom it belongs."""

from __future__ import annotations

from pathlib import Path

from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.cri import paths

POD = Pod(metadata=ObjectMeta(name="web-0", namespace="shop", uid="u-1"))


def test_logs_lie_by_pod_container_and_attempt_and_lead_back_to_the_pod() -> None:
    directory = paths.pod_log_directory(paths.POD_LOGS, POD)
    assert directory == Path("/var/log/pods/shop_web-0_u-1")
    assert paths.pod_of_log_directory(directory) == "u-1"
    assert paths.container_log("app", 3) == "app/3.log"
    assert paths.logged_attempts(["0.log", "3.log", "3.log.20260101-000000.gz", "x.log", "4.txt"]) == [
        0,
        3,
        3,
    ]


def test_a_log_link_is_found_by_its_container_and_names_it() -> None:
    link = paths.log_link("shop", "web-0", "app", "c0ffee")
    assert link == Path("/var/log/containers/web-0_shop_app-c0ffee.log")
    assert link.match(paths.links_of("c0ffee"))
    assert paths.container_of_link(link) == "c0ffee"


def test_volumes_and_termination_messages_are_in_the_pod_directory() -> None:
    directory = paths.pod_directory(Path("/var/lib/kubelet"), "u-1")
    volume = paths.volume_path(directory, paths.EMPTY_DIR, "scratch")
    assert volume == Path("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/scratch")
    assert paths.termination_message_path(directory, "app", 0) == Path(
        "/var/lib/kubelet/pods/u-1/containers/app/0"
    )
