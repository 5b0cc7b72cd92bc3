"""Bytes to and from an API server: TLS and HTTP/2, many requests and watches on one connection.

`http2` is one connection, `pool` the connections to one server, `tls` their certificates. Knows nothing of
Kubernetes' objects; imports only `api` (errors). Loaded by an agent that joins a cluster, never without one.
"""
