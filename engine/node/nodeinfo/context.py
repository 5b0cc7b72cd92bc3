"""What a node is given, before anything of it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.api.config import KubeletConfiguration
from engine.api.decisions import Decisions
from engine.api.events import EventRecorder
from engine.api.kubengine_config import KubengineConfiguration
from engine.cluster.certificates.serving import ServingCertificate
from engine.eviction.readings import NodeView
from engine.host.tasks import Tasks
from engine.metrics import Registry
from engine.node.images.access import CredentialPrograms


@dataclass(frozen=True, slots=True)
class NodeContext:
    """`root` is the node's own directory, `clock` gives Unix seconds. `view` says what counts as the node
    for eviction, the whole machine by default; `kubeconfig` which API server it belongs to, none without,
    and `bootstrap_kubeconfig` how it gets there. `serving` is what its own server shows, `cert_dir` where
    certificates are kept, `node_ips` which addresses it was given. `credential_programs` are asked for
    credentials for an image's repository."""

    config: KubeletConfiguration
    kubengine_config: KubengineConfiguration
    name: str
    root: Path
    clock: Callable[[], float]
    registry: Registry
    tasks: Tasks
    recorder: EventRecorder
    decisions: Decisions
    serving: ServingCertificate
    cert_dir: Path
    view: NodeView | None = None
    kubeconfig: Path | None = None
    bootstrap_kubeconfig: Path | None = None
    credential_programs: CredentialPrograms | None = None
    node_ips: Sequence[str] = ()
