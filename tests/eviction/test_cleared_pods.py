"""After an eviction: who is next is judged once the last one's files have gone."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.events import EventRecorder
from engine.api.lifecycle import PodEnd
from engine.api.pod import Pod
from engine.eviction.manager import EvictablePods, EvictionManager
from engine.images.filesystem import read_filesystem
from tests.contexts import node_context
from tests.eviction.private_node import make_pod
from tests.waiting import eventually


async def test_no_pod_is_evicted_while_the_last_ones_volumes_are_removed(tmp_path: Path) -> None:
    pods = [make_pod("first", priority=0), make_pod("second", priority=1)]
    volumes = {pod.uid: tmp_path / "pods" / pod.uid / "volumes" for pod in pods}
    for directory in volumes.values():
        (directory / "kubernetes.io~empty-dir/v").mkdir(parents=True)
    ended: list[str] = []
    queried: list[str] = []

    async def kill(pod: Pod, _end: PodEnd) -> None:
        ended.append(pod.uid)
        queried.clear()

    def pod_cgroup(uid: str) -> None:
        queried.append(uid)

    more_than_there_is = str(read_filesystem(tmp_path).capacity * 2)
    manager = EvictionManager(
        node_context(
            KubeletConfiguration(
                eviction_hard={"nodefs.available": more_than_there_is}, pod_logs_dir=str(tmp_path / "logs")
            ),
            recorder=EventRecorder(time.time),
            root=tmp_path,
        ),
        EvictablePods(
            active=lambda: [pod for pod in pods if pod.uid not in ended], kill=kill, cgroup=pod_cgroup
        ),
    )
    await manager.start()
    try:
        await eventually(lambda: queried.count("uid-first") > 1 or len(ended) > 1)
        assert ended == ["uid-first"]
        shutil.rmtree(volumes["uid-first"])
        await eventually(lambda: ended == ["uid-first", "uid-second"])
    finally:
        await manager.stop()
