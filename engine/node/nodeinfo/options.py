"""Holds what a node is created with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from engine.eviction.readings import NodeView
from engine.hostsetup.host_places import HostPlaces
from engine.node.images.access import CredentialPrograms

CERTIFICATES: Final = "pki"


class NodeOptions(msgspec.Struct, frozen=True):
    """Hold the options of a node beyond its context.

    `view` tells what counts as the node for eviction, by default the whole machine. `kubeconfig` names the
    API server, if any, and `bootstrap_kubeconfig` how to get credentials for it, which creates a missing
    `kubeconfig`. `cert_dir` is the directory of certificates, by default `pki` in the agent's directory.
    `node_ips` are the node's addresses, as `engine.node.nodeinfo.addresses.parse_node_ips` returns them.
    `credential_programs` are the credential providers for image registries. `host` names what of the machine
    the agent sets up as a kubelet does (`engine.hostsetup`) and whose shutdowns it follows; None leaves the
    machine as it is. `external_cloud` leaves the Node's initialization and addresses to a cloud's controller
    manager.
    """

    view: NodeView | None = None
    kubeconfig: Path | None = None
    bootstrap_kubeconfig: Path | None = None
    cert_dir: Path | None = None
    credential_programs: CredentialPrograms | None = None
    node_ips: Sequence[str] = ()
    host: HostPlaces | None = None
    external_cloud: bool = False
