"""Holds what a node is created with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.cluster.certificates.serving import ServingCertificate
from engine.eviction.readings import NodeView
from engine.hostsetup.host_places import HostPlaces
from engine.node.images.access import CredentialPrograms


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of a node beyond its context.

    `view` tells what counts as the node for eviction, by default the whole machine. `kubeconfig` names the
    API server, if any, and `bootstrap_kubeconfig` how to get credentials for it. `serving` is the certificate
    of the node's own server, `cert_dir` the directory of certificates, and `node_ips` are the configured
    addresses. `credential_programs` are the credential providers for image registries. `host` names what of
    the machine the agent sets up and whose shutdowns it follows; None leaves the machine as it is.
    `external_cloud` leaves the Node's initialization and addresses to a cloud's controller manager.
    """

    serving: ServingCertificate
    cert_dir: Path
    view: NodeView | None = None
    kubeconfig: Path | None = None
    bootstrap_kubeconfig: Path | None = None
    credential_programs: CredentialPrograms | None = None
    node_ips: Sequence[str] = ()
    host: HostPlaces | None = None
    external_cloud: bool = False
