"""Where the node's own port is, and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.config import KubeletConfiguration
from engine.api.kubengine_config import KubengineConfiguration, ServerSection
from engine.cli.agent.process import AgentOptions, AgentProcess

CLUSTER, ALONE = True, False


@pytest.mark.parametrize(
    ("clustered", "port", "fields", "section", "expected"),
    [
        (ALONE, None, {}, {}, None),
        (ALONE, 4711, {}, {}, ("127.0.0.1", 4711)),
        (ALONE, 4711, {}, {"port_address": "10.0.0.1"}, ("10.0.0.1", 4711)),
        (CLUSTER, None, {}, {}, ("0.0.0.0", 10250)),
        (CLUSTER, None, {"port": 4712, "address": "10.0.0.2"}, {}, ("10.0.0.2", 4712)),
        (CLUSTER, None, {}, {"port_address": "127.0.0.1"}, ("127.0.0.1", 10250)),
        (CLUSTER, 4711, {"port": 4712}, {}, ("0.0.0.0", 4711)),
        (CLUSTER, 0, {}, {}, None),
        (CLUSTER, None, {"enable_server": False}, {}, None),
    ],
)
async def test_where_the_port_is(
    clustered: bool,
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
        kubeconfig=tmp_path / "kubeconfig" if clustered else None,
        port=port,
    )
    process = AgentProcess(options)
    own = process._server._own_port
    assert (own._where if own is not None else None) == expected  # type: ignore[attr-defined]
    if port is not None:
        assert process.node.config.port == port
