"""Find the API server and the user of a person: kubectl's files and contexts, or a pod's service account."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.api.errors import InvalidInput
from engine.cluster.kubeconfig import Kubeconfig, load_kubeconfigs, parse_kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_context(
    kubeconfig: str, context: str, environment: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT
) -> Kubeconfig:
    """Return the context to use, by kubectl's rules.

    The first of these applies: the file `kubeconfig`; the files that `KUBECONFIG` lists, merged;
    `~/.kube/config`; the service account of the pod that this process runs in. Raise `InvalidInput` if there
    is none, or if no file has the `context`.
    """
    if kubeconfig:
        return load_kubeconfigs([Path(kubeconfig)], context)
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(":") if part]
    # kubectl skips listed files that do not exist, so that one setting serves several machines.
    found = [path for path in named or [_home(environment)] if path.exists()]
    if found:
        return load_kubeconfigs(found, context)
    if host := environment.get("KUBERNETES_SERVICE_HOST"):
        return _of_service_account(host, environment.get("KUBERNETES_SERVICE_PORT", "443"), account)
    searched = ", ".join(map(str, named or [_home(environment)]))
    raise InvalidInput(
        f"no such file: {searched}; name one with --kubeconfig or KUBECONFIG", subject="kubeconfig"
    )


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME", "/root")) / ".kube" / "config"


def _of_service_account(host: str, port: str, account: Path) -> Kubeconfig:
    address = f"[{host}]" if ":" in host else host
    text = f"""
current-context: pod
contexts: [{{name: pod, context: {{cluster: pod, user: pod}}}}]
clusters: [{{name: pod, cluster: {{server: "https://{address}:{port}", certificate-authority: ca.crt}}}}]
users: [{{name: pod, user: {{tokenFile: token}}}}]
"""
    return parse_kubeconfig(text.encode(), account / "kubeconfig")
