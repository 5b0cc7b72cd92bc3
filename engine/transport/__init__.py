"""Connects to servers: many parallel requests on one HTTP/2 connection.

`connection` drives one connection over the native core: streams, GOAWAY, requests that were refused. On it,
for an API server: `http2` speaks HTTP over TLS, `pool` keeps the connections to one server, `tls` their
certificates; only an agent in a cluster imports them. For a unix socket: `grpc_channel`, used for the runtime
and plugins.
For sessions of exec, attach and port-forward: `spdy` and `websocket` are wire formats, `spdy_session` has the
rules of a SPDY connection, and `stream_protocols` the names of protocols and channels.
The package knows nothing of Kubernetes' objects, and imports only `api` (errors, gRPC codes) and the native
core.
"""
