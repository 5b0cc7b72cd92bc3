"""Connects to the API server: configuration, the node's identity, reports and watches.

`kubeconfig` reads the file; `credentials` loads tokens and certificates, and reloads them when they change;
`certificates` requests and stores certificates; `client` calls the API server; `watching` follows a list.
Deciding modules are pure. The package imports `api`, `metrics`, `host` and `transport`, and does not depend
on the lifecycle of pods: the node passes in the statuses to report.
"""
