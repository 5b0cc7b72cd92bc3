"""Hold the labels and taints of all nodes, decoded once, and group nodes by the labels that a rule reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.admission.selectors import selects
from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.api.scheduling import NodeSelector
from engine.plan.snapshot.columns import Snapshot
from engine.plan.snapshot.kept import once_per_snapshot

Nodes: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = Mapping[str, str]

_NOTHING: dict[str, str] = {}
# Called for each of many nodes: `map` with the method itself takes half of a loop's time.
_label = dict[str, str].get


class NodeLabels:
    """Hold `labels` and `taints` of every node, in the order of the snapshot; none without a Node object.

    Raise `InvalidInput` for a Node object that cannot be read.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        decode = msgspec.json.Decoder(_Document).decode
        unknown = _Document()
        texts = snapshot.nodes["document"].to_pylist()
        try:
            documents = [decode(text) if text else unknown for text in texts]
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(str(error), subject="nodes.document") from None
        self._names = snapshot.node_names
        self.labels: list[dict[str, str]] = [one.metadata.labels or _NOTHING for one in documents]
        self.taints: list[Sequence[Taint]] = [one.spec.taints or () for one in documents]
        self._domains: dict[str, tuple[NDArray[np.int32], int]] = {}
        self._distinct: dict[str, int] = {}
        self._groups: dict[tuple[str, ...], tuple[list[int], NDArray[np.int64]]] = {}

    def domains_of(self, key: str) -> tuple[NDArray[np.int32], int]:
        """Return int32[nodes]: the domain of each node, -1 without the label; and the number of domains."""
        found = self._domains.get(key)
        if found is None:
            values = pa.array(list(map(_label, self.labels, repeat(key))), pa.large_string())
            coded = values.dictionary_encode()
            found = self._domains[key] = coded.indices.fill_null(-1).to_numpy(), len(coded.dictionary)
        return found

    def distinct(self, key: str) -> int:
        """Return the number of domains, of which the nodes without the label are one."""
        found = self._distinct.get(key)
        if found is None:
            domain, count = self.domains_of(key)
            found = self._distinct[key] = count + int((domain < 0).any())
        return found

    @cached_property
    def taint_sets(self) -> tuple[list[tuple[Taint, ...]], NDArray[np.int64]]:
        """Return the distinct sets of taints, the empty one first, and int64[nodes]: the set of each node."""
        numbers: dict[bytes, int] = {}
        distinct: list[tuple[Taint, ...]] = [()]
        codes = np.zeros(len(self.taints), np.int64)
        for node, taints in enumerate(self.taints):
            if taints:
                number = numbers.setdefault(encode_json(taints), len(distinct))
                if number == len(distinct):
                    distinct.append(tuple(taints))
                codes[node] = number
        return distinct, codes

    def selected(self, selector: NodeSelector | None) -> Nodes:
        """Return bool[nodes]: the nodes that a selector matches; None matches every node."""
        if selector is None:
            return np.ones(len(self.labels), bool)
        return self.where(selector, lambda labels, name: selects(selector, labels, name))

    def where(
        self, selector: NodeSelector | None, matches: Callable[[Labels, str], bool], *keys: str
    ) -> Nodes:
        """Return bool[nodes]: the nodes whose labels and name match.

        `matches` reads only the labels with these `keys` and those that the selector names, and the name only
        for the fields of the selector: nodes that do not differ in them are asked once.
        """
        terms = (selector.node_selector_terms if selector is not None else None) or ()
        if any(term.match_fields for term in terms):
            pairs = zip(self.labels, self._names, strict=True)
            return np.fromiter((matches(*pair) for pair in pairs), bool, len(self._names))
        read = {one.key for term in terms for one in term.match_expressions or ()}
        first, group = self._grouped(tuple(sorted(read.union(keys))))
        matching = [matches(self.labels[node], self._names[node]) for node in first]
        found: Nodes = np.array(matching, bool)[group]
        return found

    def _grouped(self, keys: tuple[str, ...]) -> tuple[list[int], NDArray[np.int64]]:
        """Return the first node of each group with equal values of labels, and int64[nodes]: the groups."""
        found = self._groups.get(keys)
        if found is None:
            code = np.zeros(len(self.labels), np.int64)
            for key in keys:
                domain, count = self.domains_of(key)
                code = np.unique(code * (count + 1) + domain + 1, return_inverse=True)[1]
            _, first, group = np.unique(code, return_index=True, return_inverse=True)
            found = self._groups[keys] = first.tolist(), group
        return found


@once_per_snapshot
def labels_of_nodes(snapshot: Snapshot) -> NodeLabels:
    """Return the labels of the nodes of a snapshot."""
    return NodeLabels(snapshot)


class _Meta(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, gc=False):
    taints: list[Taint] | None = None


class _Document(msgspec.Struct, gc=False):
    """Hold the parts of a Node object that placement needs of every node; amounts would take longest to
    decode.
    """

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
