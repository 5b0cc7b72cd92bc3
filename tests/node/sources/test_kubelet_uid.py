"""Static pods' uids against those that a kubelet v1.36 gave the same manifests on node n1."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from engine.api.defaults import apply_defaults
from engine.api.documents import parse_pods
from engine.node.sources.kubelet_uid import kubelet_uid
from engine.node.sources.static_pods import static_pod
from tests.programs import printed

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "kubelet_uids.jsonl").read_text().splitlines()
]

ROOT = Path(__file__).parents[3]
CALLS_OF_THE_FIRST = 400
"""Python calls of the printing modules for the first uid of a process; each later one takes about 60."""


def uid_of(manifest: dict[str, Any], *, node_name: str = "n1", path: str = "") -> str:
    path = path or f"{manifest['metadata']['name']}.json"
    (pod,), _ = parse_pods(json.dumps(manifest).encode(), path)
    metadata = deepcopy(pod.metadata)
    apply_defaults(pod)
    return kubelet_uid(pod, metadata=metadata, place=f"host:{node_name}file:{path}")


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["manifest"]["metadata"]["name"])
def test_is_what_the_kubelet_gives(recorded: dict[str, Any]) -> None:
    assert uid_of(recorded["manifest"]) == recorded["uid"]


def test_every_part_counts() -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    spec = {"containers": [{"name": "c", "image": "busybox:1"}]}
    slower = {"containers": [{**spec["containers"][0], "command": ["sleep"]}]}
    uids = {
        uid_of({**manifest, "spec": spec}),
        uid_of({**manifest, "spec": spec}, node_name="n2"),
        uid_of({**manifest, "spec": spec}, path="b.json"),
        uid_of({**manifest, "spec": slower}),
    }
    assert len(uids) == 4


def test_a_manifest_that_the_kubelet_cannot_print_gets_its_digest_as_uid() -> None:
    manifest = b"""
apiVersion: v1
kind: Pod
metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}
spec: {containers: [{name: c, image: "busybox:1"}]}
"""
    uids = [
        static_pod(parse_pods(manifest, "a")[0][0], node_name="n1", origin="a", seen_at=1.0, uid_of=choice)
        for choice in (lambda pod, digest, new: new(), lambda pod, digest, new: digest)
    ]
    assert uids[0].uid == uids[1].uid


def test_the_first_uid_of_a_process_costs_few_calls() -> None:
    """Printers are built while the first pod is printed, so that it pays for the structures that it has."""
    program = (
        "import json, sys\n"
        "from tests.node.sources.test_kubelet_uid import RECORDED, uid_of\n"
        "calls = 0\n"
        "def count(frame, event, _):\n"
        "    global calls\n"
        "    calls += event == 'call' and 'kubelet_' in frame.f_code.co_filename\n"
        "manifest = min((each['manifest'] for each in RECORDED), key=lambda each: len(json.dumps(each)))\n"
        "sys.setprofile(count)\n"
        "uid_of(manifest)\n"
        "sys.setprofile(None)\n"
        "print(calls)\n"
    )
    assert int(printed(program)) <= CALLS_OF_THE_FIRST
