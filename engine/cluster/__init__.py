"""Talks to the control plane: how to reach it, the node's identity, and what it reports and receives.

`kubeconfig` reads the file; `credentials` hold what it names and read it again when it changes;
`certificates` requests and stores certificates; `client` calls the API server; `watching` follows a list.
Deciding modules are pure. The package imports `api`, `metrics`, `host` and `transport`, and knows nothing
about the life of pods: the node passes in what is to be reported.
"""
