"""The same as `test_fault_walk` for a cluster's node (`walked_membership`).

Without `KUBENGINE_EVERY_FAULT` (`make chaos`) that is each place at which a node by itself touches no file;
with it, every operation.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.cluster_rig import Cluster
from tests.node.faults import WHOLE, file_faults, first_of_each, in_turn
from tests.node.walked_life import LoneLife
from tests.node.walked_membership import MembersLife, prepare_cluster
from tests.node.walking import places_of, walk, with_file_fault


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(0 if WHOLE else 600)
async def test_any_file_operation_of_a_clusters_node_may_fail_once(cluster: Cluster) -> None:
    prepare_cluster(cluster)
    kubeconfig = cluster.server.kubeconfig("system:node:member")
    lives = partial(MembersLife, cluster=cluster, kubeconfig=kubeconfig)
    with file_faults():
        places = await places_of(lives)
        if WHOLE:
            faults = in_turn(range(1, len(places) + 1))
        else:
            faults = first_of_each(places, left_out=await places_of(LoneLife))
        assert len(faults) > 25
        await walk(with_file_fault(fault, lives) for fault in faults)
