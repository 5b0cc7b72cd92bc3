"""Fail the n-th request to the API server, for every n: the life of a cluster's node (`walked_membership`)
with one fault in it, and the pods are right.

Without `KUBENGINE_EVERY_FAULT` (`make chaos`) that is the first request of each sort, with some fault.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import count, cycle, product
from pathlib import Path

import pytest

from engine.testing.apiserver import ApiServerFault
from tests.cluster_rig import Cluster
from tests.node.faults import WHOLE
from tests.node.walked_membership import MembersLife, prepare_cluster
from tests.node.walking import walk, with_request_fault

KINDS: tuple[ApiServerFault | int, ...] = (
    ApiServerFault.DROP, ApiServerFault.RESET, ApiServerFault.LOST, ApiServerFault.FREEZE,
    ApiServerFault.HANG, ApiServerFault.MALFORMED, ApiServerFault.GO_AWAY,
    401, 403, 429, 500, 503,
)  # fmt: skip
OWN_NAME = re.compile(r"[^/]+-\d[^/]*")
_users = count(1)


class FaultedMember(MembersLife):
    """Live as a user of its own, whose `nth` request of a sort (method, path) fails as `kind` says."""

    def __init__(
        self,
        directory: Path,
        cluster: Cluster,
        sort: tuple[str, str] | None,
        nth: int,
        kind: ApiServerFault | int,
    ) -> None:
        self.user = f"system:node:walked-{next(_users)}"
        kubeconfig = cluster.server.kubeconfig(self.user, token=self.user)
        super().__init__(directory, cluster, kubeconfig)
        if sort is not None:
            method, path = sort
            cluster.server.fail(
                kind,
                method=method,
                path=path,
                user=self.user,
                skip=nth - 1,
                retry_after=1 if kind == 429 else None,
            )

    async def clear(self) -> None:
        await super().clear()
        self.cluster.server.disconnect(self.user)


async def sorts_of(cluster: Cluster) -> Counter[tuple[str, str]]:
    """Count a node's requests by kind in a life without a fault; placeholders replace its own names."""
    lives: list[FaultedMember] = []

    def life(directory: Path) -> FaultedMember:
        lives.append(FaultedMember(directory, cluster, None, 0, 500))
        return lives[-1]

    assert not await with_request_fault(life, "no fault")
    return Counter(
        (seen.method, f"^{OWN_NAME.sub('[^/]+', seen.path)}$")
        for seen in cluster.server.requests
        if seen.user == lives[0].user
    )


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_request_to_the_api_server_may_fail_once(cluster: Cluster) -> None:
    prepare_cluster(cluster)
    sorts = await sorts_of(cluster)
    assert len(sorts) > 20
    if WHOLE:
        every = ((sort, nth) for sort, times in sorts.items() for nth in range(1, times + 1))
        faults = [(sort, nth, kind) for (sort, nth), kind in product(every, KINDS)]
    else:
        faults = [(sort, 1, kind) for sort, kind in zip(sorts, cycle(KINDS), strict=False)]
    await walk(
        with_request_fault(
            partial(FaultedMember, cluster=cluster, sort=sort, nth=nth, kind=kind), f"{nth}. {sort} {kind}"
        )
        for sort, nth, kind in faults
    )
