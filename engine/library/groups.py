"""Compute the cgroups of a node from its pods, its capacity and its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Literal

from engine.api.amounts.cpu_weight import WeightFormula
from engine.api.errors import InvalidInput
from engine.api.kubengine_config import CgroupsSection
from engine.api.pod import Pod
from engine.api.quantity import Quantity
from engine.cgroups.plan import PlannedGroup, plan
from engine.library.documents import ConfigLike, PodLike, config_of, pod_of


def cgroup_tree(
    pods: Iterable[PodLike],
    capacity: Mapping[str, str | Quantity],
    config: ConfigLike | None = None,
    *,
    version: Literal[1, 2] = 2,
    cpu_weight: WeightFormula = "logarithmic",
) -> list[PlannedGroup]:
    """Return every cgroup that a node has for these pods, each with its files and their contents; root first.

    `capacity` is the node's, as in a Node's status: {"cpu": "8", "memory": "32Gi"}. `version` is that of
    cgroups. `cpu_weight` is the formula of cgroup v2's weights: logarithmic for kubelets from 1.35, runc from
    1.3.2 and crun from 1.23, linear for older ones. A pod without a uid is `podNAMESPACE-NAME` in the paths.
    Raise `InvalidInput` that names the field.
    """
    amounts = {name: _quantity(name, amount) for name, amount in capacity.items()}
    typed = [_with_uid(pod_of(pod)) for pod in pods]
    return plan(typed, config_of(config), CgroupsSection(), amounts, version=version, formula=cpu_weight)


def _with_uid(pod: Pod) -> Pod:
    if not pod.metadata.uid:
        pod = deepcopy(pod)
        pod.metadata.uid = pod.full_name.replace("/", "-")
    return pod


def _quantity(name: str, amount: str | Quantity) -> Quantity:
    if isinstance(amount, Quantity):
        return amount
    try:
        return Quantity.parse(amount)
    except InvalidInput as error:
        raise InvalidInput(error.message, subject=f"capacity of {name}") from None
