"""Describes requests for pods' certificates (PodCertificateRequest), and what becomes of them. Pure.

Source: kubelet v1.36 (`pkg/kubelet/podcertificate`) and certificates.k8s.io/v1beta1.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.pod import Pod
from engine.api.references import PodCertificateProjection
from engine.api.struct import PartlyShown, Struct
from engine.cluster.certificates.pem import certificates_only
from engine.cluster.certificates.request import Condition

API_VERSION: Final = "certificates.k8s.io/v1beta1"
RESOURCE: Final = "podcertificaterequests"
DENIED: Final = "Denied"
FAILED: Final = "Failed"
ISSUED: Final = "Issued"
_VERBS: Final = {DENIED: "was denied", FAILED: "failed"}


class _Status(Struct):
    conditions: list[Condition] | None = None
    certificate_chain: str = ""
    begin_refresh_at: datetime | None = None
    not_after: datetime | None = None


class PodCertificateRequest(Struct):
    """Hold the fields of a PodCertificateRequest that are read."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: _Status = msgspec.field(default_factory=_Status)


class Issued(PartlyShown, frozen=True):
    """Hold a signed chain (PEM), and when to renew it and when it expires in Unix seconds."""

    HIDDEN = frozenset(("chain",))
    chain: bytes
    refresh_at: float
    not_after: float


class Ended(msgspec.Struct, frozen=True):
    """Hold the condition that ended a request without a certificate: `type` is Denied or Failed."""

    type: str
    reason: str
    message: str

    @property
    def state(self) -> str:
        """Return the state as the metric names it."""
        return self.type.lower()

    def refusal(self) -> str:
        """Return what keeps the volume from being set up, in the kubelet's words."""
        return f"PodCertificateRequest was permanently {self.state}: {self._why(' ')}"

    def event(self, request: str) -> str:
        """Return the text of the pod's event; `request` is the namespace and the name."""
        return f"PodCertificateRequest {request} {_VERBS[self.type]}, {self._why(', ')}"

    def _why(self, between: str) -> str:
        return f"reason={_quoted(self.reason)}{between}message={_quoted(self.message)}"


Outcome = Issued | Ended


class PodCertificate(PartlyShown, frozen=True):
    """Hold a private key (PKCS #8) and the certificates for it, both PEM."""

    HIDDEN = frozenset(("key", "chain"))
    key: bytes
    chain: bytes


def certificate_sources(pod: Pod) -> Iterator[tuple[str, int, PodCertificateProjection]]:
    """Yield each podCertificate source with the name of its volume and its index there."""
    for volume in pod.spec.volumes or ():
        for index, source in enumerate((volume.projected and volume.projected.sources) or ()):
            if source.pod_certificate is not None:
                yield volume.name, index, source.pod_certificate


def outcome(request: PodCertificateRequest) -> Outcome | None:
    """Return what became of a request, or None while it is pending."""
    status = request.status
    for condition in status.conditions or ():
        if condition.type in _VERBS:
            return Ended(condition.type, condition.reason, condition.message)
        # The API server demands both times of an issued request.
        if condition.type == ISSUED and status.begin_refresh_at is not None and status.not_after is not None:
            return Issued(
                certificates_only(status.certificate_chain),
                status.begin_refresh_at.timestamp(),
                status.not_after.timestamp(),
            )
    return None


def new_request(
    pod: Pod,
    source: PodCertificateProjection,
    stub: bytes,
    *,
    node: tuple[str, str],
    account: tuple[str, str],
) -> dict[str, Any]:
    """Return the request to create. `stub` is the signed PKCS #10 request (DER), which names nothing; `node`
    and `account` are names with uids.
    """
    meta = pod.metadata
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
    spec: dict[str, Any] = {
        "signerName": source.signer_name,
        "podName": meta.name,
        "podUID": meta.uid,
        "serviceAccountName": account[0],
        "serviceAccountUID": account[1],
        "nodeName": node[0],
        "nodeUID": node[1],
        "stubPKCS10Request": base64.b64encode(stub).decode(),
    }
    if source.max_expiration_seconds is not None:
        spec["maxExpirationSeconds"] = source.max_expiration_seconds
    if source.user_annotations:
        spec["unverifiedUserAnnotations"] = source.user_annotations
    return {
        "apiVersion": API_VERSION,
        "kind": "PodCertificateRequest",
        "metadata": {"namespace": meta.namespace, "generateName": "req-", "ownerReferences": [owner]},
        "spec": spec,
    }


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
