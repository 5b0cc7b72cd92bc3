"""Requests a certificate from the cluster by a CertificateSigningRequest."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from engine.api.errors import Refused, Unavailable
from engine.api.meta import ObjectMeta
from engine.api.node import NodeAddress
from engine.api.struct import Struct
from engine.cluster.certificates.openssl import certificate_request, digest, is_ip, public_key
from engine.cluster.client import ApiClient, ApiError
from engine.cluster.watching import ResourceWatch, WatchedResource, WatchHandler

REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ORGANIZATION: Final = "system:nodes"
WAIT_SECONDS: Final = 15 * 60.0


class Wanted(msgspec.Struct, frozen=True):
    """Describe a certificate to request: signer, usages, and names."""

    signer: str
    usages: tuple[str, ...]
    common_name: str
    names: tuple[str, ...] = ()


def client_certificate(node: str) -> Wanted:
    """Return the client certificate to request, for the API server."""
    return Wanted(
        "kubernetes.io/kube-apiserver-client-kubelet",
        ("digital signature", "client auth"),
        f"system:node:{node}",
    )


def serving_certificate(node: str, names: Sequence[str]) -> Wanted:
    """Return the serving certificate to request, for the node's addresses."""
    return Wanted(
        "kubernetes.io/kubelet-serving",
        ("digital signature", "server auth"),
        f"system:node:{node}",
        tuple(names),
    )


def serving_names(addresses: Iterable[NodeAddress]) -> list[str]:
    """Return DNS names, then IP addresses, of a serving certificate; none while the node has no
    IP address.
    """
    names, ips = set(), set()
    for each in addresses:
        if each.type in ("InternalDNS", "ExternalDNS"):
            names.add(each.address)
        elif is_ip(each.address):
            ips.add(each.address)
        elif each.type == "Hostname":
            names.add(each.address)
    return [*sorted(names - {""}), *sorted(ips)] if ips else []


class Condition(Struct):
    """Hold one condition of a request for a certificate."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(Struct):
    conditions: list[Condition] | None = None
    certificate: str = ""


class SigningRequest(Struct):
    """Hold the fields of a CertificateSigningRequest (certificates.k8s.io/v1) that are read."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: _Status = msgspec.field(default_factory=_Status)


def issued(request: SigningRequest) -> bytes | None:
    """Return the signed certificate, or None while it is pending. Raises Refused if it will never
    be signed.
    """
    conditions = {each.type: each for each in request.status.conditions or ()}
    for kind, words in (("Denied", "is denied"), ("Failed", "failed")):
        if kind in conditions:
            condition = conditions[kind]
            raise Refused(
                f"it {words}, reason: {condition.reason}, message: {condition.message}",
                subject=f"certificate signing request {request.metadata.name}",
            )
    if "Approved" not in conditions or not request.status.certificate:
        return None
    try:
        return base64.b64decode(request.status.certificate, validate=True)
    except ValueError:
        subject = f"certificate signing request {request.metadata.name}"
        raise Refused("its signed certificate is not base64", subject=subject) from None


async def request_name(wanted: Wanted, key: bytes) -> str:
    """Return the request's name. It derives from content and key, so that a restarted agent finds the
    request.
    """
    content = (wanted.common_name, ORGANIZATION, *wanted.usages)
    parts = [await public_key(key), *(word.encode() for word in content)]
    return f"node-csr-{_text(digest(''.join(f'{_text(part)}|' for part in parts).encode()))}"


async def request_certificate(
    client: ApiClient, wanted: Wanted, key: bytes, *, seconds: float = WAIT_SECONDS, name: str = ""
) -> bytes:
    """Return the certificate once it is approved and signed.

    With a `name`, an existing request is continued. Raises ApiError or Unavailable if the server cannot be
    reached, Refused if the request is denied or fails, and Unavailable after `seconds`.
    """
    text = await certificate_request(key, wanted.common_name, ORGANIZATION, wanted.names)
    asked = await _ask(client, wanted, text, name)
    try:
        async with asyncio.timeout(seconds):
            return await _signed(client, asked.metadata)
    except TimeoutError:
        raise Unavailable(
            f"it was not signed within {seconds:g} s",
            subject=f"certificate signing request {asked.metadata.name}",
        ) from None


async def _ask(client: ApiClient, wanted: Wanted, text: bytes, name: str) -> SigningRequest:
    value: dict[str, Any] = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name} if name else {"generateName": "csr-"},
        "spec": {
            "signerName": wanted.signer,
            "usages": list(wanted.usages),
            "request": base64.b64encode(text).decode(),
        },
    }
    try:
        return await client.create(REQUESTS, value, SigningRequest)
    except ApiError as error:
        if not name or error.reason != "AlreadyExists":
            raise
    return await client.get(f"{REQUESTS}/{name}", SigningRequest)


async def _signed(client: ApiClient, meta: ObjectMeta) -> bytes:
    signed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subject = f"certificate signing request {meta.name}"

    def changed(request: SigningRequest) -> None:
        if signed.done():
            return
        try:
            if request.metadata.uid != meta.uid:
                raise Refused("it was replaced by another request of the same name", subject=subject)
            certificate = issued(request)
        except Refused as error:
            signed.set_exception(error)
        else:
            if certificate is not None:
                signed.set_result(certificate)

    def gone(_: SigningRequest) -> None:
        if not signed.done():
            signed.set_exception(Refused("it was deleted", subject=subject))

    def replaced(requests: Sequence[SigningRequest]) -> None:
        for request in requests:
            changed(request)

    resource = WatchedResource(REQUESTS, SigningRequest, f"metadata.name={meta.name}")
    watching = asyncio.create_task(
        ResourceWatch(client, resource, WatchHandler(replaced, changed, gone)).run()
    )
    try:
        return await signed
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
