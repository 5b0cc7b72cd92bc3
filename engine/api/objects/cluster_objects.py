"""Types of the objects that pods refer to, as far as a node reads them. Secrets never appear in a text."""

from __future__ import annotations

import msgspec

from engine.api.meta import ObjectMeta
from engine.api.struct import Struct, written


class ConfigMap(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    data: dict[str, str] | None = None
    binary_data: dict[str, bytes] | None = None
    immutable: bool | None = None


class ServiceAccount(Struct):
    """Represent a core/v1 ServiceAccount, with only the fields that image credential providers need."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class Secret(Struct):
    """Represent a core/v1 Secret; its `data` is decoded."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    type: str = ""
    data: dict[str, bytes] | None = None
    immutable: bool | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"


class ServicePort(Struct):
    port: int
    name: str = ""
    protocol: str = written("TCP")


class ServiceSpec(Struct):
    cluster_ip: str = ""
    ports: list[ServicePort] | None = None


class Service(Struct):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class RuntimeClass(Struct):
    """Name the runtime handler for pods of this class (node.k8s.io/v1)."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    handler: str = ""


class ClusterTrustBundleSpec(Struct):
    """Hold certificates as PEM in `trust_bundle`, and the signer that they belong to, if any."""

    signer_name: str = ""
    trust_bundle: str = ""


class ClusterTrustBundle(Struct):
    """Hold certificates that are trusted for a signer, or by everyone who knows the name
    (certificates.k8s.io).
    """

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ClusterTrustBundleSpec = msgspec.field(default_factory=ClusterTrustBundleSpec)


class BoundObjectReference(Struct):
    kind: str
    name: str
    uid: str
    api_version: str = written("v1")


class TokenRequestSpec(Struct):
    audiences: list[str] | None = None
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(Struct):
    """Hold a token and the time of its expiry as RFC 3339."""

    token: str = ""
    expiration_timestamp: str = ""

    def __repr__(self) -> str:
        return f"TokenRequestStatus(until {self.expiration_timestamp})"


class TokenRequest(Struct):
    """Request a token of a service account, whose subresource it is (authentication.k8s.io/v1)."""

    api_version: str = written("authentication.k8s.io/v1")
    kind: str = written("TokenRequest")
    spec: TokenRequestSpec = msgspec.field(default_factory=TokenRequestSpec)
    status: TokenRequestStatus = msgspec.field(default_factory=TokenRequestStatus)
