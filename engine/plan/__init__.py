"""What-ifs over whole clusters, answered by the agent's own kernels.

A `Snapshot` is a cluster as columns, read from what users have (`load_snapshot`) or made up (`synthesize`).
Questions are functions from a snapshot to an answer table; scenarios name them, sweep their parameters and
assert on the answers; reports show them. May touch `engine.api`, `engine.tables`, `engine._fast` and the
modules of other rooms that decide; never `engine.node`.
"""

from engine.plan.faults import Fault, FaultLog
from engine.plan.load import load_snapshot
from engine.plan.snapshot import Snapshot
from engine.plan.snapshot_file import SnapshotFile, write_snapshot
from engine.plan.synth import synthesize

__all__ = ["Fault", "FaultLog", "Snapshot", "SnapshotFile", "load_snapshot", "synthesize", "write_snapshot"]
