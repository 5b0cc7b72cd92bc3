"""Hold the labels and taints of all nodes as columns, and group nodes by the labels that a rule reads.

A snapshot file has these columns (`label_columns`), so that a question decodes no Node object for them. For
any other snapshot they are computed from the Node objects on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Final, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from engine.admission.selectors import selects
from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.node import Taint
from engine.api.scheduling import NodeSelector
from engine.plan.snapshot.columns import LABEL, REPEATED_TEXT, TAINTS, Snapshot
from engine.plan.snapshot.distinct import numbered
from engine.plan.snapshot.lazy_table import Table, coded, value_of
from engine.plan.snapshot.results import once_per_snapshot

Nodes: TypeAlias = NDArray[np.bool_]
Labels: TypeAlias = Mapping[str, str]

MOST_KEYS: Final = 1000
"""Label keys up to which a file gets a column for each: keys that name one node each would be as many."""

_NOTHING: dict[str, str] = {}
# Called for each of many nodes: `map` with the method itself takes half of a loop's time.
_label = dict[str, str].get
_taints = msgspec.json.Decoder(list[Taint])


class NodeLabels:
    """Answer questions about the labels and taints of every node, in the order of the snapshot; a node
    without a Node object has none.

    Raise `InvalidInput` for a Node object that cannot be read.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._names, self._nodes = snapshot.node_names, snapshot.nodes
        self._source: _Source = (
            _Columns(snapshot.nodes) if TAINTS in snapshot.nodes.column_names else _Documents(snapshot)
        )
        self._domains: dict[str, tuple[NDArray[np.int32], pa.Array]] = {}
        self._values: dict[str, list[str]] = {}
        self._groups: dict[tuple[str, ...], tuple[list[int], NDArray[np.int32]]] = {}

    def of(self, node: int) -> Labels:
        """Return all labels of a node."""
        text = value_of(self._nodes, "document", node)
        return _document.decode(text).metadata.labels or _NOTHING if text else _NOTHING

    def values_of(self, key: str) -> tuple[NDArray[np.int32], list[str]]:
        """Return int32[nodes] that numbers the values of a label, -1 without the label; and the values."""
        domain, values = self._column(key)
        if key not in self._values:
            self._values[key] = values.to_pylist()
        return domain, self._values[key]

    def domains_of(self, key: str) -> tuple[NDArray[np.int32], int]:
        """Return int32[nodes]: the domain of each node, -1 without the label; and the number of domains.

        A part of a cluster may have no node in some of them.
        """
        domain, values = self._column(key)
        return domain, len(values)

    def with_label(self, key: str) -> Nodes:
        """Return bool[nodes]: whether each node has a label. Its values are not numbered for that."""
        found = self._domains.get(key)
        return found[0] >= 0 if found is not None else self._source.there(key)

    def _column(self, key: str) -> tuple[NDArray[np.int32], pa.Array]:
        found = self._domains.get(key)
        if found is None:
            column = self._source.label(key)
            domain = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            found = self._domains[key] = domain, column.dictionary
        return found

    @cached_property
    def taint_sets(self) -> tuple[list[tuple[Taint, ...]], NDArray[np.int64]]:
        """Return the distinct sets of taints, the empty one first, and int64[nodes]: the set of each node."""
        texts, codes = self._source.taints()
        known = [tuple(_taints.decode(text)) if text else () for text in texts]
        return [(), *known], codes.astype(np.int64) + 1

    def selected(self, selector: NodeSelector | None) -> Nodes:
        """Return bool[nodes]: the nodes that a selector matches; None matches every node."""
        if selector is None:
            return np.ones(len(self._names), bool)
        return self.where(selector, lambda labels, name: selects(selector, labels, name))

    def where(
        self, selector: NodeSelector | None, matches: Callable[[Labels, str], bool], *keys: str
    ) -> Nodes:
        """Return bool[nodes]: the nodes whose labels and name match.

        `matches` reads only the labels with these `keys` and those that the selector names, and the name only
        for the fields of the selector: nodes that do not differ in them are asked once.
        """
        terms = (selector.node_selector_terms if selector is not None else None) or ()
        read = {one.key for term in terms for one in term.match_expressions or ()}
        wanted = tuple(sorted(read.union(keys)))
        if any(term.match_fields for term in terms):
            asked = range(len(self._names))
            return np.array([matches(self._some(node, wanted), self._names[node]) for node in asked], bool)
        first, group = self.grouped(wanted)
        matching = [matches(self._some(node, wanted), self._names[node]) for node in first]
        found: Nodes = np.array(matching, bool)[group]
        return found

    def grouped(self, keys: tuple[str, ...]) -> tuple[list[int], NDArray[np.int32]]:
        """Return the first node of each group with equal values of labels, and int32[nodes]: the groups."""
        found = self._groups.get(keys)
        if found is None:
            code = np.zeros(len(self._names), np.int64)
            for key in keys:
                domain, count = self.domains_of(key)
                code = numbered(code * (count + 1) + domain + 1)[1].astype(np.int64)
            first, group = numbered(code)
            found = self._groups[keys] = first.tolist(), group
        return found

    def _some(self, node: int, keys: Sequence[str]) -> Labels:
        """Return the labels of a node with these keys."""
        columns = ((key, *self.values_of(key)) for key in keys)
        return {key: values[domain[node]] for key, domain, values in columns if domain[node] >= 0}


class _Source(Protocol):
    """Give the labels and taints of nodes, from wherever a snapshot has them."""

    def label(self, key: str) -> pa.DictionaryArray: ...

    def there(self, key: str) -> Nodes: ...

    def taints(self) -> tuple[list[str], NDArray[np.int32]]:
        """Return distinct lists of taints as JSON, empty for none, and int32[nodes] that numbers them."""
        ...


class _Columns:
    """Read labels and taints from the columns of a file."""

    def __init__(self, nodes: Table) -> None:
        self._nodes = nodes

    def label(self, key: str) -> pa.DictionaryArray:
        if LABEL + key not in self._nodes.column_names:
            return pa.array([None] * self._nodes.num_rows, REPEATED_TEXT)
        column = self._nodes[LABEL + key].combine_chunks()
        # A column of some nodes keeps the values of all, each of which would be a domain without nodes.
        return column.cast(pa.string()).dictionary_encode()

    def there(self, key: str) -> Nodes:
        if LABEL + key not in self._nodes.column_names:
            return np.zeros(self._nodes.num_rows, bool)
        found: Nodes = self._nodes[LABEL + key].is_valid().to_numpy()
        return found

    def taints(self) -> tuple[list[str], NDArray[np.int32]]:
        return coded(self._nodes, TAINTS)


class _Documents:
    """Decode labels and taints from the Node objects, once."""

    def __init__(self, snapshot: Snapshot) -> None:
        decode, unknown = _document.decode, _Document()
        texts = snapshot.nodes["document"].to_pylist()
        try:
            documents = [decode(text) if text else unknown for text in texts]
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(str(error), subject="nodes.document") from None
        self._labels: list[dict[str, str]] = [one.metadata.labels or _NOTHING for one in documents]
        self._taints: list[Sequence[Taint]] = [one.spec.taints or () for one in documents]

    @property
    def keys(self) -> list[str]:
        """Return the keys that any node has, in the order of their first node."""
        return list(dict.fromkeys(key for labels in self._labels for key in labels))

    def label(self, key: str) -> pa.DictionaryArray:
        values = pa.array(list(map(_label, self._labels, repeat(key))), pa.string())
        return values.dictionary_encode()

    def there(self, key: str) -> Nodes:
        return np.array([key in labels for labels in self._labels], bool)

    def taints(self) -> tuple[list[str], NDArray[np.int32]]:
        texts: dict[str, int] = {}
        codes = [
            texts.setdefault(encode_json(taints).decode() if taints else "", len(texts))
            for taints in self._taints
        ]
        return list(texts), np.array(codes, np.int32)


@once_per_snapshot
def labels_of_nodes(snapshot: Snapshot) -> NodeLabels:
    """Return the labels of the nodes of a snapshot."""
    return NodeLabels(snapshot)


def instance_types(snapshot: Snapshot) -> list[str]:
    """Return the instance type of each node, from its label; an empty text if it has none."""
    kinds, names = labels_of_nodes(snapshot).values_of("node.kubernetes.io/instance-type")
    return [names[kind] if kind >= 0 else "" for kind in kinds.tolist()]


def label_columns(snapshot: Snapshot) -> dict[str, pa.DictionaryArray]:
    """Return the columns of labels and taints that a file holds; none if there are more than `MOST_KEYS`
    keys, if a Node object cannot be read, or if the snapshot has such columns already.
    """
    if any(name == TAINTS or name.startswith(LABEL) for name in snapshot.nodes.column_names):
        return {}
    try:
        documents = _Documents(snapshot)
    except InvalidInput:
        # A question that needs the labels names the object; others can do without it.
        return {}
    keys = documents.keys
    if len(keys) > MOST_KEYS:
        return {}
    texts, codes = documents.taints()
    taints = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.string()))
    return {TAINTS: taints} | {LABEL + key: documents.label(key) for key in keys}


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


_document = msgspec.json.Decoder(_Document)
