"""Collect slices, claims, their templates, classes and taint rules of dynamic resource allocation."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from engine.api.encoding.json_text import encode_json
from engine.api.errors import InvalidInput
from engine.api.meta import ObjectMeta
from engine.api.struct import decode_hook, to_builtins
from engine.plan.claims.objects import KINDS, as_v1
from engine.plan.reading.templates import Unusable
from engine.plan.snapshot.columns import DYNAMIC_RESOURCE_FIELDS

_DECODERS = {kind: msgspec.json.Decoder(struct, dec_hook=decode_hook) for kind, struct in KINDS.items()}


class DynamicRows:
    """Collect objects of resource.k8s.io, of any version, in the shape of v1."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], str] = {}

    def add(self, kind: str, data: bytes) -> None:
        """Add an object. Raise `Unusable` with the faulty field as subject."""
        if b"v1beta1" in data:
            data = encode_json(as_v1(kind, msgspec.json.decode(data)))
        try:
            read = _DECODERS[kind].decode(data)
        except InvalidInput as error:
            raise Unusable(error.message, subject=error.subject) from None
        meta = read.metadata
        read.metadata = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)
        self._rows[kind, meta.namespace, meta.name] = encode_json(to_builtins(read)).decode()

    def table(self) -> pa.Table:
        """Return one row per object, as `docs/snapshot-format.md` describes it."""
        kinds, namespaces, names = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        columns = (kinds, namespaces, names, list(self._rows.values()))
        return pa.table(
            {
                name: pa.array(column, kind)
                for (name, kind), column in zip(DYNAMIC_RESOURCE_FIELDS.items(), columns, strict=True)
            }
        )
