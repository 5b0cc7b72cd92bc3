"""A signer of pods' certificates: it answers PodCertificateRequests through the API, as a controller does."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api.timestamps import rfc3339
from engine.cluster.certificates.openssl import certificate_facts
from engine.cluster.client import ApiClient
from engine.testing.apiserver import Authority
from tests.waiting import PATIENCE, eventually

GROUP = "/apis/certificates.k8s.io/v1beta1"
REQUESTS = f"{GROUP}/podcertificaterequests"
SIGNER = "example.com/s"
Object = dict[str, Any]


class Signer:
    """Sign with a throw-away authority in `directory`; `admin` may do everything."""

    def __init__(self, admin: ApiClient, directory: Path) -> None:
        self._admin = admin
        self.authority = Authority(directory)

    async def requests(self) -> list[Object]:
        """Return all requests, the oldest first."""
        listed = await self._admin.get(REQUESTS, Object)
        return sorted(listed["items"], key=lambda each: int(each["metadata"]["resourceVersion"]))

    async def pending(self, count: int = 1) -> list[Object]:
        """Wait for so many requests without a condition, and return them."""
        found: list[Object] = []

        async def enough() -> bool:
            found[:] = [r for r in await self.requests() if not r.get("status", {}).get("conditions")]
            return len(found) == count

        await eventually(enough, every=0.05)
        return found

    async def issue(self, request: Object, refresh_at: Callable[[float, float], float] | None = None) -> str:
        """Sign for a day and return the chain; `refresh_at` takes the begin and the end in Unix seconds."""
        leaf = await asyncio.to_thread(self.sign, base64.b64decode(request["spec"]["stubPKCS10Request"]))
        facts = await certificate_facts(leaf)
        begin, end = facts.not_before, facts.not_after
        chain = leaf.decode() + self.authority.certificate.read_text()
        due = refresh_at(begin, end) if refresh_at is not None else (begin + end) / 2
        times = {"notBefore": begin, "beginRefreshAt": due, "notAfter": end}
        status = {name: rfc3339(seconds) for name, seconds in times.items()}
        status |= {"certificateChain": chain, "conditions": [_condition("Issued", "Signed", "")]}
        await self._answer(request, status)
        return chain

    async def refuse(self, request: Object, kind: str, reason: str, message: str) -> None:
        await self._answer(request, {"conditions": [_condition(kind, reason, message)]})

    async def delete(self, request: Object) -> None:
        await self._admin.delete(_path(request), {})

    def sign(self, stub: bytes) -> bytes:
        """Verify a request (DER) and return a certificate (PEM) that is valid for a day."""
        key = ["-CA", str(self.authority.certificate), "-CAkey", str(self.authority.key)]
        command = ["openssl", "x509", "-req", "-inform", "DER", *key, "-days", "1", "-set_serial", "7"]
        run = subprocess.run(command, input=stub, check=True, capture_output=True, timeout=PATIENCE)
        return run.stdout

    async def _answer(self, request: Object, status: Object) -> None:
        await self._admin.patch(f"{_path(request)}/status", {"status": status}, Object)


def source(key_type: str = "ED25519", **fields: Any) -> Object:
    """Return a podCertificate source that writes the bundle to `bundle.pem`."""
    wanted = {"signerName": SIGNER, "keyType": key_type, "credentialBundlePath": "bundle.pem"}
    return {"podCertificate": {**wanted, **fields}}


def _path(request: Object) -> str:
    meta = request["metadata"]
    return f"{GROUP}/namespaces/{meta['namespace']}/podcertificaterequests/{meta['name']}"


def _condition(kind: str, reason: str, message: str) -> Object:
    begun = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": begun}
