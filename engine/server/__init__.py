"""The agent's HTTP surface: the kubelet's read-only API, health, metrics text, and an admin socket.

`Server` listens, `NodeView` is what it asks of a node, `exposition` turns a `Registry` into text.
Touches `api` and `metrics`, and the node only through `NodeView`.
"""

from engine.server.listeners import Server
from engine.server.metrics_text import exposition
from engine.server.view import NodeView

__all__ = ["NodeView", "Server", "exposition"]
