"""postStart and preStop handlers: exec in the container, one HTTP request, or a sleep."""

from __future__ import annotations

import asyncio

from engine.api.errors import Refused
from engine.api.pod import Container, HTTPGetAction, LifecycleHandler, Pod
from engine.cri.client import RuntimeClient

HTTP_SECONDS = 30.0


async def run_hook(
    runtime: RuntimeClient,
    pod: Pod,
    container: Container,
    container_id: str,
    handler: LifecycleHandler,
    *,
    pod_ip: str,
    timeout: float,
) -> None:
    """Raises `Refused` saying what the hook did wrong; `TimeoutError` when it took too long."""
    async with asyncio.timeout(timeout if timeout > 0 else None):
        if handler.exec is not None:
            answer = await runtime.exec_sync(container_id, handler.exec.command or [], timeout)
            if answer.exit_code != 0:
                raise Refused(
                    f"command exited with {answer.exit_code}", subject=f"{pod.full_name}/{container.name}"
                )
        elif handler.http_get is not None:
            await asyncio.to_thread(_get, handler.http_get, container, pod_ip, min(timeout, HTTP_SECONDS))
        elif handler.sleep is not None:
            await asyncio.sleep(handler.sleep.seconds)


def port_number(port: int | str, container: Container) -> int:
    """A port by number or by the container's name for it. Raises `Refused`."""
    if isinstance(port, str) and not port.isdigit():
        for known in container.ports or []:
            if known.name == port:
                return known.container_port
        raise Refused(f"there is no port named {port!r}", subject=container.name)
    return int(port)


def _get(action: HTTPGetAction, container: Container, pod_ip: str, timeout: float) -> None:
    import http.client  # a megabyte that few nodes' hooks need

    host = action.host or pod_ip
    port = port_number(action.port, container)
    seconds = timeout if timeout > 0 else HTTP_SECONDS
    connection: http.client.HTTPConnection
    if action.scheme.upper() == "HTTPS":
        import ssl

        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    headers = {header.name: header.value for header in action.http_headers or []}
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    try:
        connection.request("GET", path, headers={"User-Agent": "kube-lifecycle/1.32", **headers})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"GET {path}: {error}", subject=f"{host}:{port}") from error
    finally:
        connection.close()
    if status >= 400:
        raise Refused(f"GET {path} answered {status}", subject=f"{host}:{port}")
