"""Bytes to and from servers: many requests at once on one HTTP/2 connection.

To an API server: `http2` is one connection, `pool` the connections to one server, `tls` their certificates;
they are loaded by an agent that joins a cluster, never without one. To a unix socket: `grpc_channel`, for the
runtime. Knows nothing of Kubernetes' objects; imports only `api` (errors, gRPC codes) and the native core.
"""
