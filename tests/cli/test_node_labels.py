"""Labels that a node may give itself."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidInput
from engine.cli.kubelet import check_node_labels


@pytest.mark.parametrize(
    "name",
    [
        "team",
        "example.com/team",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/anything",
        "my.node.kubernetes.io/x",
        "kubelet.kubernetes.io/x",
        "notkubernetes.io/x",
    ],
)
def test_may(name: str):
    check_node_labels({name: "a"})


@pytest.mark.parametrize(
    "name",
    [
        "kubernetes.io/role",
        "node-role.kubernetes.io/worker",
        "xnode.kubernetes.io/x",
        "k8s.io/x",
        "a.k8s.io/x",
        "Bad_Prefix/x",
        "a/",
        "x y",
        "a" * 64,
    ],
)
def test_may_not(name: str):
    with pytest.raises(InvalidInput, match="--node-labels"):
        check_node_labels({name: "a"})


def test_values():
    check_node_labels({"a": ""})
    for value in ("-x", "x" * 64, "a b"):
        with pytest.raises(InvalidInput, match="not a label"):
            check_node_labels({"a": value})
