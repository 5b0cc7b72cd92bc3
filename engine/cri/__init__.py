"""The agent's side of the Container Runtime Interface.

`client` calls the runtime, `labels` are the labels by which a kubelet finds its pods there, `paths` where
their logs and volumes are, and `records` what the runtime holds for a pod. The package imports `api`,
`metrics`, `host`, `transport` and `wire`, and knows nothing of the embedded runtime. This file imports
nothing.
"""
