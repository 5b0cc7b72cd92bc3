"""Holds the CPUs and memory of each NUMA node of a machine, and what containers have for themselves.

A snapshot stores them as two JSON texts per node: `processors`, which machines of one kind share, and
`pinning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from engine.api import cpu_set as cpu_sets
from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.cpumanager.topology import CpuTopology, Processor
from engine.memorymanager.state import NodeState

PROCESSORS, PINNING = "processors", "pinning"
MOST_NODES = 64
"""An agent aligns up to this many NUMA nodes."""


class PinnedState(msgspec.Struct):
    """Hold what the CPU and memory managers of a node keep; None where a snapshot does not tell.

    `reserved` and `exclusive` are lists of CPUs, `memory` is the state of each NUMA node.
    """

    reserved: str | None = None
    exclusive: str | None = None
    memory: dict[int, NodeState] | None = None


@dataclass(frozen=True, slots=True)
class NodeCpus:
    """Hold the CPUs of one node of the cluster. Sets of CPUs are integers with bit N for CPU N."""

    topology: CpuTopology
    reserved: int | None
    exclusive: int | None
    memory: Mapping[int, NodeState] | None


def processors_text(processors: list[Processor]) -> str:
    """Encode processors for the column. Raises `InvalidInput` if they are no machine's."""
    text = encode_json(sorted(processors)).decode()
    _topology(text)
    return text


def pinning_text(pinning: PinnedState) -> str:
    """Encode what the managers of a node keep for the column."""
    return encode_json(pinning).decode()


def pinned_state(pinning: str) -> PinnedState:
    """Decode the column of a node. Raise `InvalidInput`."""
    try:
        return msgspec.json.decode(pinning or "{}", type=PinnedState)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(str(error), subject=f"nodes.{PINNING}") from None


def node_cpus(processors: str, pinning: str) -> NodeCpus | None:
    """Decode the two columns of a node; None if its CPUs are not known. Raises `InvalidInput`."""
    if not processors:
        return None
    topology = _topology(processors)
    kept = pinned_state(pinning)
    return NodeCpus(
        topology,
        None if kept.reserved is None else cpu_sets.parse(kept.reserved, f"nodes.{PINNING}"),
        None if kept.exclusive is None else cpu_sets.parse(kept.exclusive, f"nodes.{PINNING}"),
        kept.memory,
    )


@lru_cache(maxsize=256)
def _topology(text: str) -> CpuTopology:
    try:
        found = [
            Processor(*one) for one in msgspec.json.decode(text, type=list[tuple[int, int, int, int, int]])
        ]
        if any(not 0 <= one.cpu <= cpu_sets.MAX_CPU or not 0 <= one.node < 2**31 for one in found):
            raise ValueError(f"expected CPUs from 0 to {cpu_sets.MAX_CPU} on NUMA nodes from 0 on")
        if len({one.node for one in found}) > MOST_NODES:
            raise ValueError(f"has CPUs on more than {MOST_NODES} NUMA nodes")
        if len({one.cpu for one in found}) < len(found):
            raise ValueError("lists a CPU twice")
        return CpuTopology(found)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(str(error), subject=f"nodes.{PROCESSORS}") from None
