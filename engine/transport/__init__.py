"""Connects to servers: many parallel requests on one HTTP/2 connection.

For an API server: `http2` is one connection, `pool` the connections to one server, `tls` their certificates;
only an agent in a cluster imports them. For a unix socket: `grpc_channel`, used for the runtime and plugins.
The package knows nothing of Kubernetes' objects, and imports only `api` (errors, gRPC codes) and the native
core.
"""
