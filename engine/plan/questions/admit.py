"""Compute how many copies of a pod fit on every node, and what excludes the next one."""

from __future__ import annotations

import numpy as np

from engine.admission.asked_pod import PodParameters
from engine.admission.predicates import host_ports
from engine.api.pod import Pod
from engine.plan.answers.answer import Answer, Rows, coded
from engine.plan.placement.fit import NodeUse, fit, node_use
from engine.plan.reading.requested_pods import requested_pods
from engine.plan.snapshot.columns import Snapshot


class AdmitParameters(PodParameters, kw_only=True, forbid_unknown_fields=True):
    """Parameters of admit: the pod."""


def admit(snapshot: Snapshot, parameters: AdmitParameters) -> Answer:
    """Return per node and pod `admits` (amount: how many copies fit, one after another; reason: the check
    that excludes the next one) or `refuses` (reason: the check that fails).
    """
    rows = Rows(snapshot.node_names)
    pods = requested_pods(snapshot, parameters)
    use = node_use(snapshot)
    for pod in pods:
        _add_pod(rows, use, pod)
    return rows.answer(sort=True)


def _add_pod(rows: Rows, use: NodeUse, pod: Pod) -> None:
    """Add a row for one pod on each node."""
    checked = fit(use, pod)
    fits, first = checked.copies()
    names = [f"OutOf{name}" for name in checked.resources]
    # A second copy would use the same host ports.
    if any(True for _ in host_ports(pod)):
        first = np.where(fits > 1, len(names), first)
        names.append("NodePorts")
        fits = np.minimum(fits, 1)
    refused = np.zeros(len(fits), bool)
    refused[list(checked.other)] = True
    name = pod.metadata.name
    for node, failures in checked.other.items():
        rows.add(node, "refuses", name, failures[0].reason, 0, "pods")
    nodes = np.flatnonzero(~refused & (fits > 0))
    rows.block(nodes, "admits", name, coded(first[nodes], names), fits[nodes], "pods")
    nodes = np.flatnonzero(~refused & (fits == 0))
    rows.block(nodes, "refuses", name, coded(first[nodes], names), fits[nodes], "pods")
