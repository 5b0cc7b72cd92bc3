"""Exec, Attach and PortForward: one-time URLs on a loopback HTTP server, as crictl and kubelets use them.

`server` listens, `tickets` remembers what each URL is for. A client upgrades to SPDY/3.1 or to a WebSocket:
`spdy` and `websocket` are the wire formats and `spdy_session` the rules of a SPDY connection, all three
without I/O; `peers` gives both the same face, a few channels with backpressure. `protocol` has the words of
the remote command and port forward protocols; `remote_command` and `port_forward` copy the bytes.
"""
