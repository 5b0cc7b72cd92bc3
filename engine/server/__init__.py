"""The agent's HTTP surface: the kubelet's read-only API, health, metrics text, and an admin socket.

`HttpServer` listens, `port` is the node's own port with TLS, `Routes` has the answers of both, `ServedNode` is
what they ask of a node, `exposition` turns a `Registry` into text. Touches `api` and `metrics`, and the node
only through `ServedNode`.
"""

from engine.server.interfaces.node import ServedNode
from engine.server.listeners import HttpServer, OwnPort
from engine.server.metrics_text import exposition
from engine.server.routes import Routes

__all__ = ["HttpServer", "OwnPort", "Routes", "ServedNode", "exposition"]
