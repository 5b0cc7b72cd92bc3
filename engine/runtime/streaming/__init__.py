"""Serve Exec, Attach and PortForward: one-time URLs on a loopback HTTP server, as crictl and kubelets use
them.

`server` listens, `tickets` maps each URL to its purpose. A client upgrades to SPDY/3.1 or to a WebSocket:
`spdy` and `websocket` are the wire formats and `spdy_session` the rules of a SPDY connection, all three
without I/O; `connections` gives both one interface of a few channels with backpressure. `protocol` defines
the messages of the remote command and port forward protocols; `remote_command` and `port_forward` copy the
bytes.
"""
