"""Runs liveness, readiness and startup probes.

`engine._fast` has what runs without Python: the state machine, the parsers of HTTP and gRPC responses, and
the loop that probes. This package has the specs and request bytes, the probes that need a library (exec,
HTTPS, targets by host name), messages, metrics and the manager. It touches sockets, the runtime client, and
`/proc` for what an exec leaves; it imports `api` and `metrics`. Importing it loads the specs only.
"""

from engine.probes.spec import ProbeSpec, probe_specs

__all__ = ["ProbeSpec", "probe_specs"]
