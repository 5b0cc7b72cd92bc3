"""The node's own port (10250): TLS, who may come in, and what a kubelet serves there.

`door` accepts; `authentication` and `authorization` decide about each request by what `reviews` an API server
gave; `access` says what a request needs; `routes` answers. Nothing here is loaded while the port is off.
"""
