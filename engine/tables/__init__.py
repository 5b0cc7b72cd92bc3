"""What decisions read: NumPy columns with one row per pod or image, kept current row by row.

`PodTable` is one node (or a few), `ClusterTables` many nodes' rows end to end with an offsets array, both
over the same `PodColumns`, whose docstring lists each column with its dtype and unit. Rows keep their
number until they are removed and are then reused; no Python object is kept per row but its name.
May touch `engine.api` and `engine._fast`.

    table = PodTable.from_pods(pods)            # row order = order of the pods
    row = table.add(pod); table.update(pod); table.remove(pod.uid)
    table.columns.ranking[MEMORY_ID, row]       # bytes, as preemption and eviction see it
    table.columns.requests[CPU_ID, row]         # milli-CPU, as admission sees it
    id = table.resources.intern("example.com/gpu")

    eviction_order(table.columns, table.rows(), "memory", usage, known)    # rows, first to go first

    ClusterTables.from_arrays(node_names=…, allocatable=…, pod_limit=…, offsets=…, requests=…)
"""

from engine.tables.amounts import PodEntry, pod_entry, requests_of
from engine.tables.cluster import ABSENT, ClusterTables
from engine.tables.columns import (
    BEST_EFFORT,
    BURSTABLE,
    CPU_LIMITED,
    CRITICAL,
    DO_NOT_PREEMPT_ANNOTATION,
    GUARANTEED,
    HAS_PRIORITY,
    LIVE,
    MEMORY_LIMITED,
    MIRROR,
    PROTECTED,
    QOS_CODES,
    QOS_NAMES,
    STATIC,
    PodColumns,
)
from engine.tables.eviction import eviction_order
from engine.tables.images import NEVER, ImageCells, ImageColumns, ImageTable
from engine.tables.names import CPU_ID, EPHEMERAL_STORAGE_ID, MEMORY_ID, PODS_ID, ResourceNames
from engine.tables.pods import PodTable

__all__ = [
    "ABSENT",
    "BEST_EFFORT",
    "BURSTABLE",
    "CPU_ID",
    "CPU_LIMITED",
    "CRITICAL",
    "DO_NOT_PREEMPT_ANNOTATION",
    "EPHEMERAL_STORAGE_ID",
    "GUARANTEED",
    "HAS_PRIORITY",
    "LIVE",
    "MEMORY_ID",
    "MEMORY_LIMITED",
    "MIRROR",
    "NEVER",
    "PODS_ID",
    "PROTECTED",
    "QOS_CODES",
    "QOS_NAMES",
    "STATIC",
    "ClusterTables",
    "ImageCells",
    "ImageColumns",
    "ImageTable",
    "PodColumns",
    "PodEntry",
    "PodTable",
    "ResourceNames",
    "eviction_order",
    "pod_entry",
    "requests_of",
]
