"""A node's own port on a real socket, behind it a test API server and a node that the test describes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import msgspec

from engine.api.config import KubeletConfiguration
from engine.api.meta import ObjectMeta
from engine.api.pod import Container, Pod, PodSpec
from engine.api.struct import decode_hook
from engine.cri.records import RUNNING, ContainerRecord, PodRecord, SandboxRecord
from engine.node.logs.container_access import ContainerAccess
from engine.server.port.server import SecurePort
from engine.testing.apiserver import Authority, CertificatePair
from tests.ports import free_port
from tests.server.served import Answer, View, parse

LIMIT = 20.0


@dataclass
class Shown:
    """Stand in for a manager of a serving certificate that has this pair, or none."""

    pair: CertificatePair | None

    async def start(self) -> None:
        """Do nothing: there is no certificate to request."""


class Runtime:
    """Answer the port as a runtime does, with the addresses of streams, and record the calls."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append((name, {"": arguments, **named}))
            if self.error is not None:
                raise self.error
            return self.url

        return ask


@dataclass
class SecuredView(View):
    """Represent a node n1 with one running pod `default/p` of one container `c`."""

    name: str = "n1"
    api: Any = None
    serving_certificate: Shown = field(default_factory=lambda: Shown(None))
    runtime: Runtime = field(default_factory=Runtime)
    records: dict[str, PodRecord] = field(default_factory=dict)
    logs: Path = Path("/nowhere")

    def __post_init__(self) -> None:
        self.known = [running_pod()]
        self.records["u"] = PodRecord(
            "u",
            "p",
            "default",
            [SandboxRecord("s", True, 0, 1.0)],
            [ContainerRecord("id", "c", "s", RUNNING, 0, 1.0, log_path=str(self.logs / "p" / "0.log"))],
        )
        self.containers = ContainerAccess(
            self.runtime,  # type: ignore[arg-type]
            pods=lambda: self.known,
            held=lambda uid: self.records.get(uid) or PodRecord(uid, "", ""),
            pod_logs=self.logs,
            checkpoints=self.logs / "checkpoints",
        )


def running_pod() -> Pod:
    status = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "i",
                "containerID": "containerd://id", "state": {"running": {}},
            }
        ],
    }  # fmt: skip
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="default", uid="u"),
        spec=PodSpec(containers=[Container(name="c")]),
    )
    return msgspec.convert(
        {**msgspec.to_builtins(pod, enc_hook=str), "status": status}, Pod, dec_hook=decode_hook
    )


@dataclass
class Secured:
    """Hold a listening secure port and send requests to it; `authority` signs the clients' certificates."""

    view: SecuredView
    port: SecurePort
    number: int
    authority: Authority

    async def ask(
        self,
        method: str,
        target: str,
        *,
        token: str = "",
        certificate: CertificatePair | None = None,
        headers: Iterable[str] = (),
    ) -> Answer:
        lines = [f"{method} {target} HTTP/1.1", "Host: n", "Connection: close", *headers]
        lines += [f"Authorization: Bearer {token}"] if token else []
        data = await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode(), certificate)
        return parse(data)

    async def several(
        self,
        asked: Iterable[tuple[str, str]],
        *,
        token: str = "",
        certificate: CertificatePair | None = None,
    ) -> list[tuple[int, bytes]]:
        """Send requests (method, target) one after the other; return their statuses and bodies.

        They use one connection as long as the server keeps it open.
        """
        reader, writer = await self.connect(certificate)
        headers = [("host", "n"), *([("authorization", f"Bearer {token}")] if token else [])]
        http, answers = h11.Connection(h11.CLIENT), []
        async with asyncio.timeout(LIMIT):
            for method, target in asked:
                writer.write(http.send(h11.Request(method=method, target=target, headers=headers)) or b"")
                writer.write(http.send(h11.EndOfMessage()) or b"")
                status, body = 0, b""
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        http.receive_data(await reader.read(65536))
                    elif isinstance(event, h11.Response):
                        status = event.status_code
                    elif isinstance(event, h11.Data):
                        body += event.data
                answers.append((status, body))
                if http.our_state is h11.DONE:
                    http.start_next_cycle()
                else:
                    writer.transport.abort()
                    reader, writer = await self.connect(certificate)
                    http = h11.Connection(h11.CLIENT)
        writer.transport.abort()
        return answers

    async def raw(self, data: bytes, certificate: CertificatePair | None = None) -> bytes:
        async with asyncio.timeout(LIMIT):
            reader, writer = await self.connect(certificate)
            try:
                writer.write(data)
                return await reader.read(-1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def connect(
        self, certificate: CertificatePair | None = None, **tls: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        for name, value in tls.items():
            setattr(context, name, value)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        return await asyncio.open_connection("127.0.0.1", self.number, ssl=context)


def configured(**fields: Any) -> KubeletConfiguration:
    return KubeletConfiguration(read_only_port=free_port(), healthz_port=free_port(), **fields)
