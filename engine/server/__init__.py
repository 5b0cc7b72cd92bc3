"""Serves the agent's HTTP API: the kubelet's read-only API, health, metrics, and an admin socket.

`HttpServer` listens on the read-only port and the admin socket; `port` serves 10250 with TLS; `Routes`
answers for both. `exposition` turns a `Registry` into text. The package imports `api` and `metrics`, and
reaches the node only through the protocol `ServedNode`.
"""

from engine.server.interfaces.node import ServedNode
from engine.server.listeners import HttpServer, OwnPort
from engine.server.metrics_text import exposition
from engine.server.routes import Routes

__all__ = ["HttpServer", "OwnPort", "Routes", "ServedNode", "exposition"]
