"""Name the protocols and channels of exec, attach and port-forward, as Kubernetes clients use them."""

from __future__ import annotations

import json
from typing import Any, Final

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE_CHANNEL: Final = 255
"""v5: a message on this channel closes the channel that its second byte names."""
CHANNELS: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}

V1, V2, V3, V4, V5 = "channel.k8s.io", *(f"v{number}.channel.k8s.io" for number in range(2, 6))
COMMAND_OVER_SPDY: Final = (V4, V3, V2, V1)
COMMAND_OVER_WEBSOCKET: Final = (V5, V4, V1)
PORT_FORWARD: Final = "portforward.k8s.io"
PORT_FORWARD_TUNNEL: Final = "SPDY/3.1+portforward.k8s.io"
"""A WebSocket whose messages are the bytes of a SPDY connection."""
PORT_FORWARD_OVER_WEBSOCKET: Final = (PORT_FORWARD_TUNNEL, V4)


def status(fields: dict[str, Any]) -> bytes:
    """Return the error channel's message since v4: a metav1.Status."""
    return json.dumps({"metadata": {}, **fields}).encode()


def internal_error(message: str) -> bytes:
    """Return the status of a command that did not run, or whose end is unknown."""
    return status(
        {
            "status": "Failure",
            "message": f"Internal error occurred: {message}",
            "reason": "InternalError",
            "details": {"causes": [{"message": message}]},
            "code": 500,
        }
    )
