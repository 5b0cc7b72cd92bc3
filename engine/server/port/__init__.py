"""Serves the node's own port (10250): TLS, authentication, authorization, and the kubelet's paths.

`server` accepts connections; `authentication` and `authorization` decide about each request with the help of
`reviews` by an API server; `access` tells which permission a request needs; `routes` answers. The package is
imported only if the port is open.
"""
