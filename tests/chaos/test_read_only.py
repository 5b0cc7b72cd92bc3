"""The file system of the agent's directory turns read-only under it, and becomes writable again.

`KUBENGINE_READ_ONLY_TURNS` says how often.
"""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from tests.chaos.conftest import MakeMember, Member, repetitions
from tests.cluster_rig import Object
from tests.node_rig import container
from tests.waiting import eventually

pytestmark = pytest.mark.root

TURNS = repetitions("KUBENGINE_READ_ONLY_TURNS", 1)
PRIVATE = ["unshare", "--mount"]
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
"""Mounts over the directory: a file system with files open for writing cannot be remounted read-only."""
WRITABLE = 'umount "$0"'
VOLUMES = [{"name": "v", "emptyDir": {}}]
MOUNTS = [{"name": "v", "mountPath": "/v"}]


async def turn(node: Member, command: str) -> None:
    inside = ["nsenter", "-t", str(node.agent.pid), "--mount", "sh", "-c", command, str(node.agent.root)]
    await asyncio.to_thread(subprocess.run, inside, check=True)


async def run(node: Member, name: str) -> None:
    await node.cluster.run(name, containers=[container(volumeMounts=MOUNTS)], volumes=VOLUMES)


async def test_pods_stay_and_what_waited_is_done(member: MakeMember) -> None:
    async with member(within=PRIVATE) as node:
        for name in ("stays", "goes"):
            await run(node, name)
            await node.cluster.ready(name)
        before = await node.container("stays")
        for number in range(TURNS):
            await turn(node, READ_ONLY)
            new = f"new-{number}"
            await run(node, new)

            def reports_the_change(new: str = new) -> bool:
                return any("ead-only" in text for text in messages(node, new))

            await eventually(reports_the_change)
            await node.cluster.delete("goes")
            await node.wait_for_renewals()
            assert (await node.container("stays"))["containerID"] == before["containerID"]
            await turn(node, WRITABLE)
            await node.cluster.ready(new)
            await node.cluster.gone("goes")
            await node.cluster.delete(new)
            await node.cluster.gone(new)
            await run(node, "goes")
            await node.cluster.ready("goes")
        now = await node.container("stays")
        assert (now["containerID"], now["restartCount"]) == (before["containerID"], 0)
        assert node.unready() == []
        assert "Traceback" not in node.agent.log()
        await node.cluster.delete("goes")
        await node.cluster.gone("goes")
        left = [path.name for path in (node.agent.root / "pods").iterdir()]
        assert len(left) == 1, "of the pod that stays"


def messages(node: Member, pod: str) -> list[str]:
    events: list[Object] = node.server.list("/api/v1/namespaces/default/events")
    return [each.get("message", "") for each in events if each["involvedObject"]["name"] == pod]


async def test_an_agent_that_starts_there_ends_with_the_path(member: MakeMember) -> None:
    async with member(within=PRIVATE) as node:
        await node.agent.kill()
        node.agent.within([*PRIVATE, "sh", "-c", f'{READ_ONLY}; exec "$@"', str(node.agent.root)])
        await node.agent.start()
        await eventually(lambda: node.agent.status is not None)
        assert node.agent.status == 1
        last = node.agent.log().splitlines()[-1]
        assert last.startswith("Error: "), last
        assert str(node.agent.root) in last
        assert "ead-only" in last
