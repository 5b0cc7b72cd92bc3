"""Answer what-ifs over whole clusters with the agent's own kernels.

A `Snapshot` is a cluster as columns, read from users' files (`load_snapshot`) or from a running cluster
(`engine.plan.live`), or generated (`synthesize`).
Questions are functions from a snapshot to an answer table; scenarios name them, sweep their parameters and
assert on the answers; reports show them. May import `engine.api`, `engine.tables`, `engine._fast` and the
decision modules of other packages; never `engine.node`. Its packages, each importing only those before it:
`snapshot`, `reading`, `live`, `history`, `synth`, `placement`, `eviction`, `rightsizing`, `answers`,
`questions`, `report`, `cluster`, `scenario`.
"""

from engine.plan.reading.load import load_snapshot
from engine.plan.snapshot.columnar_file import SnapshotFile, write_snapshot
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.faults import FaultLog, SnapshotFault
from engine.plan.synth.cluster import synthesize

__all__ = [
    "FaultLog",
    "Snapshot",
    "SnapshotFault",
    "SnapshotFile",
    "load_snapshot",
    "synthesize",
    "write_snapshot",
]
