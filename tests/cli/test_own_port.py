"""Where the node's own port is, and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.config import (
    KubeletAuthentication,
    KubeletAuthorization,
    KubeletConfiguration,
    WebhookAuthentication,
)
from engine.api.kubengine_config import KubengineConfiguration, ServerSection
from engine.cli.agent.process import AgentOptions, AgentProcess

CLUSTER, ALONE, KUBELET = "cluster", "alone", "kubelet"
NO_WEBHOOKS = {
    "authentication": KubeletAuthentication(webhook=WebhookAuthentication(enabled=False)),
    "authorization": KubeletAuthorization(mode="AlwaysAllow"),
}


@pytest.mark.parametrize(
    ("kind", "port", "fields", "section", "expected"),
    [
        (ALONE, None, {}, {}, None),
        (ALONE, 4711, {}, {}, ("127.0.0.1", 4711)),
        (ALONE, 4711, {}, {"port_address": "10.0.0.1"}, ("10.0.0.1", 4711)),
        (KUBELET, None, NO_WEBHOOKS, {}, ("0.0.0.0", 10250)),
        (KUBELET, None, {**NO_WEBHOOKS, "port": 4712, "address": "10.0.0.2"}, {}, ("10.0.0.2", 4712)),
        (KUBELET, 0, NO_WEBHOOKS, {}, None),
        (KUBELET, None, {**NO_WEBHOOKS, "enable_server": False}, {}, None),
        (KUBELET, None, {}, {}, None),
        (KUBELET, None, {**NO_WEBHOOKS, "authorization": KubeletAuthorization()}, {}, None),
        (CLUSTER, None, {}, {}, ("0.0.0.0", 10250)),
        (CLUSTER, None, {"port": 4712, "address": "10.0.0.2"}, {}, ("10.0.0.2", 4712)),
        (CLUSTER, None, {}, {"port_address": "127.0.0.1"}, ("127.0.0.1", 10250)),
        (CLUSTER, 4711, {"port": 4712}, {}, ("0.0.0.0", 4711)),
        (CLUSTER, 0, {}, {}, None),
        (CLUSTER, None, {"enable_server": False}, {}, None),
    ],
)
async def test_where_the_port_is(
    kind: str,
    port: int | None,
    fields: dict[str, object],
    section: dict[str, str],
    expected: tuple[str, int] | None,
    tmp_path: Path,
) -> None:
    options = AgentOptions(
        config=KubeletConfiguration(**fields),  # type: ignore[arg-type]
        kubengine_config=KubengineConfiguration(server=ServerSection(**section)),
        runtime="unix:///run/none.sock",
        root_dir=tmp_path,
        node_name="n1",
        clean_up=False,
        kubeconfig=tmp_path / "kubeconfig" if kind == CLUSTER else None,
        port=port,
        as_kubelet=kind == KUBELET,
    )
    process = AgentProcess(options)
    own = process._server._own_port
    assert (own._where if own is not None else None) == expected  # type: ignore[attr-defined]
    if port is not None:
        assert process.node.config.port == port
