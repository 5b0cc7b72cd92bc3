"""What a kubelet v1.36 makes of a manifest, this node makes of it too: refused, or printed the same.

`data/printed_manifests.jsonl.gz` has a row for each manifest: a name, the text, and the metadata and the spec
that the kubelet's file source (v1.36.2) made of it on a node named `node`, or null where it refused the text.
They try spellings of quantities, tolerations, empty values, and the document itself. The uid and its hash are
left out.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.api.struct import to_builtins
from engine.node.sources.static_pods import static_pod

DATA = Path(__file__).parent / "data" / "printed_manifests.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(DATA.read_bytes()).splitlines()]
KINDS = sorted({name.rpartition("-")[0] if name[-1].isdigit() else name[0] for name, _, _ in ROWS})


def printed(text: str) -> dict[str, Any] | None:
    try:
        (manifest, *_), _ = parse_pods(text.encode(), "x")
        pod = static_pod(manifest, node_name="node", origin="x", seen_at=0.0)
    except InvalidInput:
        return None
    metadata = to_builtins(pod.metadata)
    del metadata["uid"]
    for name in ("hash", "seen", "source"):
        del metadata["annotations"][f"kubernetes.io/config.{name}"]
    if not metadata["annotations"]:
        del metadata["annotations"]
    return {"metadata": metadata, "spec": to_builtins(pod.spec)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_is_printed_as_by_a_kubelet(kind: str) -> None:
    rows = [row for row in ROWS if row[0].startswith(f"{kind}-")]
    assert rows
    for name, text, expected in rows:
        assert printed(text) == expected, (name, text)
