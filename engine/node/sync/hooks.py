"""Runs postStart and preStop handlers: a command in the container, one HTTP request, or a sleep.

Failures use the wording of kubelet v1.36 in the container's status.
"""

from __future__ import annotations

import asyncio
import json
import os

from engine.api.errors import InvalidInput, Refused
from engine.api.events import WARNING, EventRecorder
from engine.api.pod import Container, ExecAction, HTTPGetAction, LifecycleHandler, Pod
from engine.api.quantity import decimal
from engine.cri.client import RuntimeClient
from engine.cri.records import SandboxRecord
from engine.node.nodeinfo.addresses import HostAddresses

LONGEST_SECONDS = 86_400.0
"""The longest time for a hook of a container that does not end; one day is longer than any sensible hook."""
USER_AGENT = "kube-lifecycle/1.36"


class HookRunner:
    """Run the hooks of a node's containers."""

    def __init__(self, client: RuntimeClient, addresses: HostAddresses, recorder: EventRecorder) -> None:
        self._client = client
        self._addresses = addresses
        self._recorder = recorder

    async def run(
        self,
        pod: Pod,
        container: Container,
        container_id: str,
        handler: LifecycleHandler,
        sandbox: SandboxRecord | None,
    ) -> None:
        """Run a hook; an HTTP hook without a host goes to the sandbox.

        Raises `Refused` with the failure, and `TimeoutError` after LONGEST_SECONDS.
        """
        async with asyncio.timeout(LONGEST_SECONDS):
            if handler.exec is not None:
                kind, detail = "Exec", f"[{' '.join(handler.exec.command or [])}]"
                failure = await self._exec(container_id, handler.exec)
            elif handler.http_get is not None:
                kind, detail = "HTTP", handler.http_get.path
                ip = sandbox.ips[0] if sandbox is not None and sandbox.ips else self._addresses.first
                failure = await self._get(pod, container, handler.http_get, ip)
            elif handler.sleep is not None:
                await asyncio.sleep(handler.sleep.seconds)
                return
            else:
                raise Refused(
                    "Cannot run handler: it is neither exec, httpGet nor sleep", subject=container.name
                )
        if failure:
            meta = pod.metadata
            whose = f'Container "{container.name}" in Pod "{meta.name}_{meta.namespace}({meta.uid})"'
            raise Refused(f"{kind} lifecycle hook ({detail}) for {whose} failed - error: {failure}")

    async def _exec(self, container_id: str, action: ExecAction) -> str:
        """Run the command and return the failure, or an empty text."""
        command = action.command or []
        try:
            answer = await self._client.exec_sync(container_id, command, LONGEST_SECONDS)
        except Refused as error:
            return f'{error.message}, message: ""'
        if answer.exit_code == 0:
            return ""
        errors, output = (part.decode(errors="replace") for part in (answer.stderr, answer.stdout))
        quoted = json.dumps(output + errors, ensure_ascii=False)
        return f"command '{' '.join(command)}' exited with {answer.exit_code}: {errors}, message: {quoted}"

    async def _get(self, pod: Pod, container: Container, action: HTTPGetAction, pod_ip: str) -> str:
        """Send the request and return the failure, or an empty text. Any response counts as success, even
        one of plain HTTP if TLS was asked for: that server gets the request again, without credentials.
        """
        port = _port(action.port, container)
        if port is None:
            return f"there is no port named {action.port!r}"
        host, scheme = action.host or pod_ip, action.scheme.lower() or "http"
        headers = [(header.name, header.value) for header in action.http_headers or []]
        try:
            return await _send(scheme, host, port, action.path, headers)
        except _PlainServer:
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
            failure = await _send("http", host, port, action.path, headers)
        if not failure:
            text = (
                f"request to HTTPS lifecycle hook {host}:{port} got HTTP response, retry with HTTP succeeded"
            )
            self._recorder.pod(pod, WARNING, "LifecycleHTTPFallback", text)
        return failure


class _PlainServer(Exception):
    """Raised if a server answers a TLS handshake without TLS."""


async def _send(scheme: str, host: str, port: int, path: str, headers: list[tuple[str, str]]) -> str:
    """Send a GET and return the failure, or an empty text. Raises `_PlainServer`.

    The kubelet has no time limit here: a preStop hook may answer only when the server has no clients left,
    and the pod's grace period limits it.
    """
    import ssl  # imported here because few nodes run HTTP hooks

    from engine.probes.http_get import HttpGet
    from engine.probes.messages import HTTP_REASONS, Reason

    if not any(name.lower() == "user-agent" for name, _ in headers):
        headers = [("User-Agent", USER_AGENT), *headers]
    get = HttpGet(scheme, host, port, path, headers)
    try:
        reason = await get.run()
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            raise _PlainServer from None
        return f'Get "{get.url}": {error.reason}'
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        return f'Get "{get.url}": dial tcp {host}:{port}: connect: {why}'
    except InvalidInput as error:
        return str(error)
    # The kubelet ignores a body that breaks off.
    return "" if reason in (Reason.NONE, Reason.BODY) else f'Get "{get.url}": {HTTP_REASONS[reason]}'


def _port(port: int | str, container: Container) -> int | None:
    """Resolve a port given as a number or by the container's name for it."""
    if isinstance(port, int):
        return port
    if (number := decimal(port)) is not None:
        return number
    return next((known.container_port for known in container.ports or [] if known.name == port), None)
