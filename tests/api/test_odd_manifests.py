"""What a kubelet v1.36 says of manifests with one odd value each, this node says too.

`data/odd_manifests.json` has the kubelet's verdicts, a letter for each value of a field: T where it took the
manifest, R where it refused it. They were recorded with v1.36.2 from what its file source does with a
manifest: decoding, defaults, `ValidatePodCreate` and the check for references to API objects.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from engine.api.documents import parse_pods
from engine.api.errors import InvalidInput
from engine.node.sources.static_pods import static_pod
from tests.api.odd_manifests import PATHS, manifests

ROOT = Path(__file__).resolve().parents[2]
VERDICTS: dict[str, str] = json.loads((Path(__file__).parent / "data" / "odd_manifests.json").read_text())


@cache
def volumes_refused() -> list[str]:
    """Those of which docs/pod-fields.md says that this node refuses them."""
    refused = (ROOT / "docs" / "pod-fields.md").read_text().partition("## Refused")[2].partition("\n## ")[0]
    lines = [line for line in refused.splitlines() if line.startswith("| `volumes[].")]
    return [f"spec.{line.split('`')[1]}" for line in lines]


def refusal(manifest: object) -> str:
    try:
        (pod,), _ = parse_pods(json.dumps(manifest).encode(), "a.json")
        static_pod(pod, node_name="node", origin="a.json", seen_at=0.0)
    except InvalidInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", PATHS)
def test_a_field_is_judged_as_by_a_kubelet(path: str) -> None:
    wrong = []
    refused_whole = path.startswith(tuple(volumes_refused()))
    for (value, manifest), verdict in zip(manifests(path), VERDICTS[path], strict=True):
        ours = refusal(manifest)
        if bool(ours) != (verdict == "R" or refused_whole):
            wrong.append((value, verdict, ours))
    assert not wrong


def test_every_field_was_recorded() -> None:
    assert sorted(VERDICTS) == sorted(PATHS)
