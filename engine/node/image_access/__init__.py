"""Who may use an image: the credentials of pods and of the node, and records of what was pulled with which.

`keyring`       credentials by the registries and repositories that they are for; pure
`docker_config` the node's own, from its files
`providers`     programs that are asked for credentials
`pull_records`  what was pulled, and who may use it, on disk as a kubelet keeps it
`access`        all of it for the puller
"""
