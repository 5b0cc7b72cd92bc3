"""Liveness, readiness and startup probes.

`engine._fast` holds what runs without Python: the worker's state machine, the readers of HTTP and gRPC
answers, and the loop that probes. Here are the specs and request bytes, the probes that need a library
(exec, HTTPS, targets by host name), messages, metrics and the manager. Touches sockets, `/proc` for what
an exec leaves behind, the runtime client, `api` and `metrics`. Importing this package loads the specs only.
"""

from engine.probes.spec import ProbeSpec, probe_specs

__all__ = ["ProbeSpec", "probe_specs"]
