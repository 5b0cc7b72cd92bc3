"""Requests the first client certificate with the bootstrap kubeconfig (kubelet v1.36).

The name of the request derives from its key, which is stored in a file until the certificate is signed. A
restarted agent thus finds its own request.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

from engine.api.errors import InvalidInput, KubengineError, Refused
from engine.cluster.certificates.openssl import new_key, public_key
from engine.cluster.certificates.request import client_certificate, request_certificate, request_name
from engine.cluster.client import ApiClient
from engine.cluster.kubeconfig import Kubeconfig
from engine.host.files import replace_file

WAIT_SECONDS: Final = 3600.0
KEY: Final = "kubelet-client.key.tmp"


def kubeconfig_text(bootstrap: Kubeconfig, certificate: Path) -> str:
    """Return a kubeconfig (YAML) with the bootstrap's server and `certificate`, which contains its key."""
    cluster = bootstrap.cluster
    fields: dict[str, str | bool] = {
        "server": cluster.server,
        "certificate-authority": cluster.certificate_authority,
        "certificate-authority-data": cluster.certificate_authority_data,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "tls-server-name": cluster.tls_server_name,
        "proxy-url": cluster.proxy_url,
    }
    sections = "\n".join(f"    {name}: {json.dumps(value)}" for name, value in fields.items() if value)
    pair = json.dumps(str(certificate))
    return f"""apiVersion: v1
kind: Config
clusters:
- name: default-cluster
  cluster:
{sections}
contexts:
- name: default-context
  context:
    cluster: default-cluster
    namespace: default
    user: default-auth
current-context: default-context
users:
- name: default-auth
  user:
    client-certificate: {pair}
    client-key: {pair}
"""


def write_kubeconfig(path: Path, bootstrap: Kubeconfig, certificate: Path) -> None:
    """Write the kubeconfig. Raises Refused naming the path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(error.strerror or str(error), subject=str(path), errno=error.errno) from error
    replace_file(path, kubeconfig_text(bootstrap, certificate))


async def first_certificate(client: ApiClient, node: str, directory: Path) -> tuple[bytes, bytes]:
    """Return a signed certificate and its key; `client` uses the bootstrap credentials.

    Raises ApiError, Refused and Unavailable as `request_certificate` does.
    """
    key = await _kept_key(directory / KEY)
    wanted = client_certificate(node)
    name = await request_name(wanted, key)
    certificate = await request_certificate(client, wanted, key, seconds=WAIT_SECONDS, name=name)
    with contextlib.suppress(OSError):
        (directory / KEY).unlink()  # the key is used for one certificate only
    return certificate, key


async def _kept_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
        await public_key(key)
    except (OSError, KubengineError):
        key = await new_key()
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(error.strerror or str(error), subject=str(path.parent)) from error
        replace_file(path, key)
    return key
