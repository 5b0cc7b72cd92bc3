"""Runs postStart and preStop handlers: a command in the container, one HTTP request, or a sleep.

Failures use the wording of kubelet v1.36 in the container's status.
"""

from __future__ import annotations

import asyncio
import json

from engine.api.errors import Refused
from engine.api.pod import Container, ExecAction, HTTPGetAction, LifecycleHandler, Pod
from engine.api.quantity import decimal
from engine.cri.client import RuntimeClient
from engine.cri.records import SandboxRecord
from engine.node.nodeinfo.addresses import HostAddresses

LONGEST_SECONDS = 86_400.0
"""The longest time for a hook of a container that does not end; one day is longer than any sensible hook."""
HTTP_SECONDS = 30.0


class HookRunner:
    """Run the hooks of a node's containers."""

    def __init__(self, client: RuntimeClient, addresses: HostAddresses) -> None:
        self._client = client
        self._addresses = addresses

    async def run(
        self,
        pod: Pod,
        container: Container,
        container_id: str,
        handler: LifecycleHandler,
        sandbox: SandboxRecord | None,
    ) -> None:
        """Run a hook; an HTTP hook without a host goes to the sandbox. Raises as `run_hook` does."""
        ip = sandbox.ips[0] if sandbox is not None and sandbox.ips else self._addresses.first
        await run_hook(self._client, pod, container, container_id, handler, pod_ip=ip)


async def run_hook(
    runtime: RuntimeClient,
    pod: Pod,
    container: Container,
    container_id: str,
    handler: LifecycleHandler,
    *,
    pod_ip: str,
) -> None:
    """Run a hook. Raises `Refused` with what went wrong, and `TimeoutError` if it took too long."""
    async with asyncio.timeout(LONGEST_SECONDS):
        if handler.exec is not None:
            kind, detail = "Exec", f"[{' '.join(handler.exec.command or [])}]"
            failure = await _exec(runtime, container_id, handler.exec)
        elif handler.http_get is not None:
            kind, detail = "HTTP", handler.http_get.path
            failure = await asyncio.to_thread(_get, handler.http_get, container, pod_ip)
        elif handler.sleep is not None:
            await asyncio.sleep(handler.sleep.seconds)
            return
        else:
            raise Refused("Cannot run handler: it is neither exec, httpGet nor sleep", subject=container.name)
    if failure:
        meta = pod.metadata
        whose = f'Container "{container.name}" in Pod "{meta.name}_{meta.namespace}({meta.uid})"'
        raise Refused(f"{kind} lifecycle hook ({detail}) for {whose} failed - error: {failure}")


async def _exec(runtime: RuntimeClient, container_id: str, action: ExecAction) -> str:
    """Run the command and return what went wrong, or an empty text."""
    command = action.command or []
    try:
        answer = await runtime.exec_sync(container_id, command, LONGEST_SECONDS)
    except Refused as error:
        return f'{error.message}, message: ""'
    if answer.exit_code == 0:
        return ""
    errors, output = (part.decode(errors="replace") for part in (answer.stderr, answer.stdout))
    quoted = json.dumps(output + errors, ensure_ascii=False)
    return f"command '{' '.join(command)}' exited with {answer.exit_code}: {errors}, message: {quoted}"


def _get(action: HTTPGetAction, container: Container, pod_ip: str) -> str:
    """Send the request. Any response counts as success, as with the kubelet, even plain HTTP where TLS was
    asked for.
    """
    import http.client
    import ssl
    import urllib.error
    import urllib.request  # imported here because the module takes a megabyte and few nodes run HTTP hooks

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    host = action.host or pod_ip
    port = _port(action.port, container)
    if port is None:
        return f"there is no port named {action.port!r}"
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    headers = {"User-Agent": "kube-lifecycle/1.36", "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers or []}
    failure = ""
    for scheme in ("https", "http") if action.scheme.upper() == "HTTPS" else ("http",):
        url = f"{scheme}://{place}{path}"
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme is ours
            opener.open(request, timeout=HTTP_SECONDS).close()
        except urllib.error.HTTPError:
            return ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            failure = f'Get "{url}": {_in_words(reason, place)}'
            if getattr(reason, "reason", "") != "WRONG_VERSION_NUMBER":
                return failure
        else:
            return ""
    return failure


def _in_words(reason: object, place: str) -> str:
    if isinstance(reason, ConnectionRefusedError) and reason.strerror:
        return f"dial tcp {place}: connect: {reason.strerror.lower()}"
    return str(reason)


def _port(port: int | str, container: Container) -> int | None:
    """Resolve a port given as a number or by the container's name for it."""
    if isinstance(port, int):
        return port
    if (number := decimal(port)) is not None:
        return number
    return next((known.container_port for known in container.ports or [] if known.name == port), None)
