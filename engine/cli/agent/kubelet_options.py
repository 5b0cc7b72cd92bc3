"""Define the options by which a command reads a kubelet's node: its port, its files and its runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from engine.cli.agent.paths import ROOT_DIR

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option(
        "--kubelet",
        "url",
        default="https://127.0.0.1:10250",
        show_default=True,
        metavar="URL",
        help="The kubelet's port, or http://127.0.0.1:10255 for its read-only port.",
    ),
    click.option("--client-certificate", "certificate", type=_FILE, help="Certificate for its port."),
    click.option("--client-key", "key", type=_FILE, help="Its key."),
    click.option("--token-file", type=_FILE, help="A bearer token instead of a certificate."),
    click.option(
        "--certificate-authority", "authority", type=_FILE, help="What signed the kubelet's certificate."
    ),
    click.option("--insecure-skip-tls-verify", "unverified", is_flag=True, help="Trust any certificate."),
    click.option("--config", type=_FILE, help="The kubelet's configuration, if its port does not show it."),
    click.option(
        "--root-dir",
        "root",
        default=ROOT_DIR,
        show_default=True,
        metavar="DIR",
        help="The kubelet's root directory.",
        type=click.Path(file_okay=False, path_type=Path),
    ),
    click.option(
        "--runtime-endpoint", "runtime", default="", metavar="SOCKET", help="By default as configured."
    ),
    click.option(
        "--kubeconfig", type=_FILE, help="Read labels, taints and conditions of the Node from the API."
    ),
)


def kubelet_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command gets them as `options: ShadowOptions`."""

    @functools.wraps(function)
    def run(
        *,
        url: str,
        certificate: Path | None,
        key: Path | None,
        token_file: Path | None,
        authority: Path | None,
        unverified: bool,
        config: Path | None,
        root: Path,
        runtime: str,
        kubeconfig: Path | None,
        **given: Any,
    ) -> None:
        from engine.shadow.kubelet_reader import KubeletAccess
        from engine.shadow.watch import ShadowOptions

        access = KubeletAccess(url, certificate, key, token_file, authority, unverified)
        function(options=ShadowOptions(access, root, config, runtime, kubeconfig), **given)

    decorated: Callable[..., None] = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
