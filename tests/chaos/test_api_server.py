"""Let an API server come and go every two seconds, and another send watch events without end.

`KUBENGINE_FLAPPING_SECONDS` sets the length of the first, `KUBENGINE_STORM_EVENTS` the events of the second.
"""

from __future__ import annotations

import asyncio
import http.client

from tests.chaos.conftest import MakeMember, Member, meanwhile, repetitions
from tests.cluster_rig import PODS, Object
from tests.node_rig import container
from tests.ports import free_port

FLAPPING = repetitions("KUBENGINE_FLAPPING_SECONDS", 12)
EVENTS = repetitions("KUBENGINE_STORM_EVENTS", 20_000)
UP = DOWN = 2.0
MOST_GROWTH = 16 << 10
"""KiB."""
MOST_REQUESTS = 60
"""Of the agent in each time that the server is there: watches, lists, lease, node, events and statuses."""
IN_A_BATCH = 500


async def test_one_that_flaps(member: MakeMember) -> None:
    async with member() as node:
        for name in "abc":
            await node.cluster.run(name, containers=[container()])
        before = [await node.cluster.ready(name) for name in "abc"]
        flaps = max(int(FLAPPING / (UP + DOWN)), 2)
        sizes: list[tuple[int, int]] = []
        for number in range(flaps):
            await node.server.stop()
            await asyncio.sleep(DOWN)
            asked = len(node.server.requests)
            await node.server.start()
            await asyncio.sleep(UP)
            assert len(node.server.requests) - asked < MOST_REQUESTS * UP
            if number in (flaps // 2, flaps - 1):
                sizes.append((node.rss, node.descriptors))
        await node.wait_for_renewals()
        (rss, descriptors), (later, more) = sizes[0], sizes[-1]
        assert later - rss < MOST_GROWTH
        assert more - descriptors < 10
        await node.cluster.run("late", containers=[container()])
        await node.cluster.ready("late")
        assert node.unready() == []
        for pod in before:
            name = pod["metadata"]["name"]
            now = await node.container(name)
            was = pod["status"]["containerStatuses"][0]
            assert (now["containerID"], now["restartCount"]) == (was["containerID"], 0)
        assert "Traceback" not in node.agent.log()


async def update_annotations(node: Member, done: asyncio.Event) -> None:
    """Change an annotation of the pod `busy` `EVENTS` times, and then set `done`."""
    for number in range(EVENTS):
        pod: Object = node.server.get(f"{PODS}/busy")
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations["changed"] = str(number)
        node.server.update(f"{PODS}/busy", pod)
        if number % IN_A_BATCH == 0:
            await asyncio.sleep(0)
    done.set()


def healthy(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read()
    finally:
        connection.close()


async def test_a_storm_of_watch_events(member: MakeMember) -> None:
    """Keep the lease renewed and `/healthz` answered during the storm, and the memory bounded."""
    port = free_port()
    async with member(healthzPort=port) as node:
        await node.cluster.run("busy", containers=[container()])
        pod = await node.cluster.ready("busy")
        done = asyncio.Event()
        rss = node.rss
        asked = len(node.server.requests)
        async with meanwhile(update_annotations(node, done)):
            answers = 0
            while not done.is_set():
                assert await asyncio.to_thread(healthy, port) == b"ok"
                answers += 1
                await asyncio.sleep(0.05)
        assert answers
        renewals = node.renewals
        await node.wait_for_renewals()
        assert node.rss - rss < 2 * MOST_GROWTH
        assert len(node.server.requests) - asked < 100 + 20 * (node.renewals - renewals + answers)
        now = await node.container("busy")
        assert now["containerID"] == pod["status"]["containerStatuses"][0]["containerID"]
        assert node.unready() == []
