"""Liveness, readiness and startup probes.

`engine._fast` holds what runs without Python: the worker's state machine, the readers of HTTP and gRPC
answers, and the loop that probes. Here are the request bytes, the probes that need a library (exec,
HTTPS), results and the manager. Touches sockets, the runtime client, `api` and `metrics`.
"""
