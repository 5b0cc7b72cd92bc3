"""Containers of busybox, as manifests have them."""

from __future__ import annotations

from typing import Any

from engine.testing.images import BUSYBOX_TAG

WAIT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


def container(name: str = "c", script: str = WAIT, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": BUSYBOX_TAG,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        **fields,
    }
