"""The agent's HTTP surface: the kubelet's read-only API, health, metrics text, and an admin socket.

`Server` listens, `ServedNode` is what it asks of a node, `exposition` turns a `Registry` into text.
Touches `api` and `metrics`, and the node only through `ServedNode`.
"""

from engine.server.listeners import Server
from engine.server.metrics_text import exposition
from engine.server.view import ServedNode

__all__ = ["ServedNode", "Server", "exposition"]
