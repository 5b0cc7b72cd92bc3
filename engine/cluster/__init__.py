"""The control plane as a node sees it: how it is reached, who the node is there, what it says and hears.

`kubeconfig` reads the file, `credentials` hold what it names and read it again when it changes,
`certificate_*` ask for certificates and keep them, `client` asks the API server, `watching` follows a list.
Deciding files are pure; imports `api`, `metrics`, `host`,
`transport`, and nothing of pods' lives: the node hands in what it wants told.
"""
