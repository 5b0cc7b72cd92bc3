"""Chooses where the spans of a node go."""

from __future__ import annotations

import logging

from engine.api.config import KubeletConfiguration
from engine.host.tracing import NO_TRACING, Tracing

log = logging.getLogger("kubengine.tracing")


def node_tracing(config: KubeletConfiguration, node: str) -> Tracing:
    """Return the tracing that the configuration asks for; without the libraries it warns, and there is
    none.
    """
    if config.tracing is None:
        return NO_TRACING
    try:
        from engine.host.otlp import OtlpTracing
    except ImportError as error:
        log.warning(
            "tracing: no spans are sent, because %s is not installed; "
            "install it with: pip install 'kubengine[tracing]'",
            error.name,
        )
        return NO_TRACING
    return OtlpTracing(config.tracing, node)
