"""Topology policies: choose the NUMA nodes for a pod's resources, and decide whether the pod may start.

Rules: kubelet v1.36 `pkg/kubelet/cm/topologymanager`. Pure; the kernels are in
`engine._fast.devices.topology`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np

from engine._fast.devices import MAX_NODES
from engine._fast.devices import topology as kernels
from engine.api.encoding.go_bool import parse_bool
from engine.api.errors import InvalidInput
from engine.topologymanager.many_nodes import PartialHints, narrowed, positions_that_matter, widened
from engine.topologymanager.search import DeviceCounts, Merged, merge_counts

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")
PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_ALLOWABLE = "max-allowable-numa-nodes"
OPTIONS_FIELD = "topologyManagerPolicyOptions"
DEFAULT_MAX_ALLOWABLE = 8
DENSE_NODES: Final = MAX_NODES
_MOST_DIGITS: Final = 18
"""Digits and a sign that fit 64 bits in any case."""
SYSTEM_NODES = Path("/sys/devices/system/node")


class Numa(msgspec.Struct, frozen=True):
    """Hold the machine's NUMA nodes in ascending order; `distances[i][j]` between the i-th and the j-th."""

    nodes: tuple[int, ...] = (0,)
    distances: tuple[tuple[int, ...], ...] = ()

    def mask(self, nodes: Sequence[int]) -> int:
        """Convert node ids to a mask of positions, ignoring ids that the machine does not have."""
        return sum(1 << i for i, node in enumerate(self.nodes) if node in nodes)

    def ids(self, mask: int) -> tuple[int, ...]:
        """Return the node ids of a mask."""
        return tuple(node for i, node in enumerate(self.nodes) if mask >> i & 1)

    @classmethod
    def of_machine(cls, root: Path = SYSTEM_NODES) -> Numa:
        """Read the nodes from sysfs; without NUMA in the kernel there is one node 0."""
        found: dict[int, tuple[int, ...]] = {}
        for entry in root.glob("node*") if root.is_dir() else ():
            number = re.fullmatch(r"node(\d+)", entry.name)
            if number is not None:
                file = entry / "distance"
                found[int(number[1])] = tuple(map(int, file.read_text().split())) if file.exists() else ()
        nodes = tuple(sorted(found)) or (0,)
        distances = tuple(found.get(node, ()) for node in nodes)
        # A kernel without SLIT tables, or a node that is going offline, has rows of another length.
        return cls(nodes, distances if all(len(row) == len(nodes) for row in distances) else ())


class Hint(msgspec.Struct, frozen=True):
    """Hold a set of NUMA nodes that can provide a resource (a mask of positions, None: any) and whether it is
    preferred.
    """

    mask: int | None
    preferred: bool


ANYWHERE: Final = Hint(None, preferred=False)
"""The hint without a preference: any NUMA nodes will do."""


class TopologyDecision(msgspec.Struct, frozen=True):
    """Hold the merged hint, and whether the policy admits the pod.

    Beyond `DENSE_NODES` nodes a better hint may exist if it is not `proven`: see `search`.
    """

    hint: Hint
    admit: bool
    proven: bool = True


Hints: TypeAlias = "Sequence[Hint] | DeviceCounts | PartialHints | kernels.Flags | None"
"""The hints of one resource. None: no preference. An empty list: no possible placement. Counts represent
their hints. Flags are indexed by mask, shape (2^nodes,), on machines with at most `DENSE_NODES` nodes.
Partial hints are listed for the relevant nodes.
"""


class TopologyPolicy(msgspec.Struct, frozen=True):
    """Apply a named policy with its options, for one machine. `decide` merges the hints of resources."""

    name: str = "none"
    scope: str = "container"
    numa: Numa = msgspec.field(default_factory=Numa)
    prefer_closest: bool = False

    @classmethod
    def from_config(
        cls, name: str, scope: str, options: Mapping[str, str] | None, numa: Numa
    ) -> TopologyPolicy:
        """Create the policy from the kubelet's fields; `InvalidInput` names the invalid field.

        More NUMA nodes than `max-allowable-numa-nodes` (8) are an error unless the policy is none.
        """
        if name not in POLICIES:
            raise InvalidInput(
                f"expected one of {', '.join(POLICIES)}, got {name!r}", subject="topologyManagerPolicy"
            )
        if scope not in SCOPES:
            raise InvalidInput(f"expected container or pod, got {scope!r}", subject="topologyManagerScope")
        if name == "none":
            return cls(name, scope, numa)
        closest, most = _options(options or {})
        if len(numa.nodes) > most:
            raise InvalidInput(
                f"unsupported on machines with more than {most} NUMA Nodes (this one has "
                f"{len(numa.nodes)}); raise {MAX_ALLOWABLE} in {OPTIONS_FIELD}",
                subject=f"topologyManagerPolicy {name}",
            )
        return cls(name, scope, numa, closest)

    def decide(self, providers: Sequence[Mapping[str, Hints] | None]) -> TopologyDecision:
        """Merge the hints of every provider (resource → hints; None or empty means no preference)."""
        if self.name == "none":
            return TopologyDecision(ANYWHERE, True)
        nodes = len(self.numa.nodes)
        single = self.name == "single-numa-node"
        wanted: list[Hints] = []
        for provider in providers:
            # A provider without hints counts as one that takes any nodes (`filterProvidersHints`).
            wanted += provider.values() if provider else [None]
        distances = self._distances() if self.prefer_closest and not single else None
        # Up to DENSE_NODES every set of nodes is listed, as the kubelet does; beyond, only what is needed.
        if nodes > DENSE_NODES and any(hints is not None and not _is_counted(hints) for hints in wanted):
            merged = self._merge_some(wanted, distances, single=single)
        elif nodes > DENSE_NODES:
            merged = merge_counts(nodes, [_counts(hints) for hints in wanted], distances, single=single)
        else:
            families = [_family(nodes, hints, single) for hints in wanted]
            merged = Merged(*kernels.merge(nodes, families, distances))
        everywhere = (1 << nodes) - 1
        # The kubelet's single-numa-node turns a mask of all nodes into no affinity.
        hint = Hint(None if single and merged.mask == everywhere else merged.mask, merged.preferred)
        return TopologyDecision(hint, hint.preferred or self.name == "best-effort", merged.proven)

    def _merge_some(
        self, wanted: Sequence[Hints], distances: kernels.Distances | None, *, single: bool
    ) -> Merged:
        """Merge on a machine with many nodes if not all hints are counts of devices."""
        nodes = len(self.numa.nodes)
        partial = [_Partial(hints, nodes) for hints in wanted if hints is not None]
        positions, whole = positions_that_matter(partial)
        if single:
            return self._one_node(partial)
        families = [_family(len(positions), hints.among(positions), single) for hints in partial]
        if distances is not None:
            distances = np.ascontiguousarray(distances[np.ix_(positions, positions)])
        mask, preferred = kernels.merge(len(positions), families, distances)
        return Merged(widened(mask, positions), preferred, whole)

    def _one_node(self, wanted: Sequence[_Partial]) -> Merged:
        """Apply single-numa-node: the first node that every resource prefers alone."""
        nodes = len(self.numa.nodes)
        for position in range(nodes):
            if all(hints.among((position,))[1] & kernels.PREFERRED for hints in wanted):
                return Merged(1 << position, True)
        return Merged((1 << nodes) - 1, False)

    def _distances(self) -> kernels.Distances | None:
        if not self.numa.distances:
            return None
        return np.array(self.numa.distances, np.int64)


def _options(options: Mapping[str, str]) -> tuple[bool, int]:
    """Return (prefer-closest-numa-nodes, max-allowable-numa-nodes); `InvalidInput` has the
    kubelet's message.
    """
    closest, most = False, DEFAULT_MAX_ALLOWABLE
    for name, value in sorted(options.items()):
        if name == PREFER_CLOSEST:
            try:
                closest = parse_bool(value)
            except ValueError as error:
                raise InvalidInput(f'bad value for option "{name}": {error}', subject=OPTIONS_FIELD) from None
        elif name == MAX_ALLOWABLE:
            # Not `isdigit`, which takes digits of other scripts; `Atoi` has no blanks and underscores either.
            if not re.fullmatch(r"[+-]?[0-9]+", value):
                raise InvalidInput(
                    f'unable to convert policy option to integer "{name}": '
                    f'strconv.Atoi: parsing "{value}": invalid syntax',
                    subject=OPTIONS_FIELD,
                )
            if len(value) > _MOST_DIGITS:
                raise InvalidInput(
                    f'unable to convert policy option to integer "{name}": '
                    f'strconv.Atoi: parsing "{value[:64]}": value out of range',
                    subject=OPTIONS_FIELD,
                )
            most = int(value)
            if most < DEFAULT_MAX_ALLOWABLE:
                raise InvalidInput(
                    f'the minimum value of "{name}" should not be less than {DEFAULT_MAX_ALLOWABLE}',
                    subject=OPTIONS_FIELD,
                )
        else:
            raise InvalidInput(f'unknown Topology Manager Policy option: "{name}"', subject=OPTIONS_FIELD)
    return closest, most


def _is_counted(hints: Hints) -> bool:
    """Return whether hints are counts of devices, or an empty list."""
    return isinstance(hints, DeviceCounts) or (isinstance(hints, Sequence) and not hints)


class _Partial:
    """Present any kind of hints as `PartialHints` on a machine with many nodes."""

    def __init__(self, hints: Hints, nodes: int) -> None:
        self._hints = hints
        self._nodes = nodes

    def weights(self) -> Sequence[int]:
        hints = self._hints
        if isinstance(hints, DeviceCounts):
            return hints.weights(self._nodes)
        if isinstance(hints, Sequence):
            masks = [hint.mask for hint in hints if hint.mask is not None]
            return [sum(mask >> i & 1 for mask in masks) for i in range(self._nodes)]
        assert hints is not None
        assert not isinstance(hints, np.ndarray)
        return hints.weights()

    def among(self, positions: Sequence[int]) -> kernels.Flags:
        hints = self._hints
        if isinstance(hints, Sequence):
            flags = np.zeros(1 << len(positions), np.uint8)
            for hint in hints:
                mask = (1 << len(positions)) - 1 if hint.mask is None else narrowed(hint.mask, positions)
                if mask:
                    flags[mask] |= kernels.PREFERRED if hint.preferred else kernels.ORDINARY
            return flags
        assert hints is not None
        assert not isinstance(hints, np.ndarray)
        return hints.among(positions)


def _counts(hints: Hints) -> DeviceCounts | bool:
    """Return hints as counts, or as True (any node) or False (no node), for machines with many nodes."""
    if hints is None:
        return True
    if isinstance(hints, DeviceCounts):
        return hints
    return False


def _family(nodes: int, hints: Hints, single: bool) -> kernels.Family:
    """Return one resource's hints as flags per mask, and its opinion without a mask."""
    opinion = kernels.NO_MASK
    if hints is None:
        flags, opinion = np.zeros(1 << nodes, np.uint8), kernels.ANY_NODE
    elif not isinstance(hints, Sequence):
        if isinstance(hints, DeviceCounts):
            flags = hints.flags(nodes)
        else:
            flags = hints if isinstance(hints, np.ndarray) else hints.among(range(nodes))
        opinion = kernels.NO_MASK if flags.any() else kernels.NOWHERE
    else:
        flags = np.zeros(1 << nodes, np.uint8)
        opinion = kernels.NO_MASK if hints else kernels.NOWHERE
        for hint in hints:
            if hint.mask is None:
                opinion = max(opinion, kernels.ANY_NODE if hint.preferred else kernels.NOWHERE)
            else:
                flags[hint.mask] |= kernels.PREFERRED if hint.preferred else kernels.ORDINARY
    # `filterSingleNumaHints`: preferred hints of one node, and preferred hints without a mask.
    if single:
        alone = np.zeros(1 << nodes, np.uint8)
        places = [1 << i for i in range(nodes)]
        alone[places] = flags[places] & kernels.PREFERRED
        flags = alone
        opinion = kernels.NO_MASK if opinion == kernels.NOWHERE else opinion
    return flags, opinion
